//! The clock that both sides use.

use std::time::Duration;

/// What stands for any longer time: further off, a clock may not be able to say when.
pub(crate) const A_CENTURY: Duration = Duration::from_secs(100 * 366 * 86_400);

pub(crate) use orbit_linux::clock::monotonic_ns as now_ns;
