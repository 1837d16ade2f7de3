//! The page that areas, replicas and the log count in.

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
