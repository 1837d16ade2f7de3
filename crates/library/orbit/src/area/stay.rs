//! What keeps an area from being destroyed for long: delegates and collections that live in it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::inner::AreaInner;

/// Keeps an area from being destroyed while it lives, for long: a request to destroy it is
/// rejected. What is placed in the area after a stay began stays mapped, and is this process' to
/// write to, until the stay ends; in a forked child too.
#[derive(Debug)]
pub(crate) struct Stay {
    area: Arc<AreaInner>,
}

impl Stay {
    /// Begins. In an area that is gone it keeps nothing: placing an object there fails.
    pub(super) fn in_area(area: &Arc<AreaInner>) -> Stay {
        // No lock: a child may not take one. The object placed next takes the lock under which
        // `destroy` checks here, so that either this is seen there, or the area is gone by then and
        // nothing is placed.
        area.stays.fetch_add(1, Ordering::AcqRel);
        Stay { area: area.clone() }
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.area.stays.fetch_sub(1, Ordering::AcqRel);
    }
}
