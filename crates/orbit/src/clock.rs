//! The clock that both sides tell time by.

use std::time::Duration;

/// What stands for any longer time: further off, a clock may not be able to say when.
pub(crate) const A_CENTURY: Duration = Duration::from_secs(100 * 366 * 86_400);

/// CLOCK_MONOTONIC, nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the time into a local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
