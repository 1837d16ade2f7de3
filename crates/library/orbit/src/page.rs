//! The page that areas, replicas and the log count in.

use crate::units::Bytes;

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
/// The same as what it is.
pub(crate) const PAGE_BYTES: Bytes = Bytes::new(PAGE);
