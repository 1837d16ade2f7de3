//! Areas whose memory orbits map themselves, see `track::share`: the snapshot of one, and what
//! keeps the memory as a call saw it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Engine;
use super::inner::{AreaInner, lock};
use super::pages::PageRuns;
use crate::error::{Error, Result};
use crate::own::Own;

/// Keeps the memory of a shared area as a call's snapshot needs it: what main writes meanwhile is
/// not merged.
#[derive(Debug)]
pub(crate) struct Pin {
    area: Arc<AreaInner>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        // After all that the task has read.
        self.area.pins.fetch_sub(1, Ordering::AcqRel);
    }
}

impl AreaInner {
    /// Whether orbits map the area's own memory.
    pub(super) fn is_shared(&self) -> bool {
        self.asked == Engine::Share
    }

    /// The memory that orbits of a shared area map; `None` for another.
    ///
    /// # Errors
    /// `Gone`, `System` when the program has closed it.
    pub(super) fn shared_file(&self) -> Result<Option<Own>> {
        if !self.is_shared() {
            return Ok(None);
        }
        let track = lock(&self.track);
        let file = track.as_ref().ok_or_else(|| self.gone())?.shared_file().transpose();
        file.map_err(|error| Error::system(format!("the memory of area \"{}\"", self.name), error))
    }

    /// Takes the snapshot of a shared area: adds to `out` the pages that the orbit is to lay over
    /// the shared memory. That stands still as long as the pin lives. `quiet` is asked only where
    /// it matters: whether nothing writes to the area until this returns.
    ///
    /// # Errors
    /// `Gone`, `Forked`, `System`: nothing has happened.
    ///
    /// # Safety
    /// The answer of `quiet` is true.
    pub(super) unsafe fn pin(self: &Arc<Self>, quiet: impl FnOnce() -> bool, out: &mut PageRuns) -> Result<Pin> {
        self.with_tracker(|tracker| {
            let may_merge = || self.pins.load(Ordering::Acquire) == 0 && quiet();
            // SAFETY: no call reads the memory without a pin, and none is added beside this: the
            // tracker is locked. The rest is the caller's word.
            unsafe { tracker.share(may_merge, out)? };
            self.pins.fetch_add(1, Ordering::AcqRel);
            Ok(Pin { area: self.clone() })
        })
    }

    /// Merges what main wrote to a shared area during calls, if none is in flight that reads it,
    /// and `quiet` says that nothing writes to it until this returns. Whether all is merged.
    ///
    /// # Errors
    /// `Gone`, `Forked`, `System`: nothing is lost.
    ///
    /// # Safety
    /// The answer of `quiet` is true.
    pub(super) unsafe fn merge(&self, quiet: impl FnOnce() -> bool) -> Result<bool> {
        self.with_tracker(|tracker| {
            if !tracker.stands_still() {
                return Ok(true);
            }
            if self.pins.load(Ordering::Acquire) != 0 || !quiet() {
                return Ok(false);
            }
            // SAFETY: no call reads the memory without a pin, and none is added beside this: the
            // tracker is locked. The rest is the caller's word.
            unsafe { tracker.merge() }.map(|()| true)
        })
    }
}
