//! The lock of an area's tracker.

use std::sync::MutexGuard;

use super::inner::{AreaInner, lock};
use super::track::Tracker;
use orbit_linux::signals::Blocked;

/// The tracker of an area, locked.
pub(super) struct Locked<'a> {
    track: MutexGuard<'a, Option<Tracker>>,
    /// Dropped after the lock.
    _blocked: Option<Blocked>,
}

impl std::ops::Deref for Locked<'_> {
    type Target = Option<Tracker>;

    fn deref(&self) -> &Option<Tracker> {
        &self.track
    }
}

impl std::ops::DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Option<Tracker> {
        &mut self.track
    }
}

impl AreaInner {
    /// The tracker, locked; `None` once the area is gone. Whoever forks takes this lock for a
    /// shared area, also in a signal handler: so none interrupts the thread that has it.
    pub(super) fn tracker(&self) -> Locked<'_> {
        let blocked = self.is_shared().then(Blocked::all);
        Locked { track: lock(&self.track), _blocked: blocked }
    }
}
