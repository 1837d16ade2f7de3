//! Areas whose memory orbits map themselves, see `track::share`: the snapshot of one, and what
//! keeps the memory as a call saw it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Engine;
use super::inner::{AreaInner, lock};
use super::pages::PageRuns;
use super::track::Share;
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

    /// The memory that orbits of a shared area map, and its number: another one takes its place
    /// where a child of main may have mapped it. `None` for another area.
    ///
    /// # Errors
    /// `Gone`, `System` when the program has closed it.
    pub(super) fn shared_file(&self) -> Result<Option<(Own, u64)>> {
        if !self.is_shared() {
            return Ok(None);
        }
        let track = lock(&self.track);
        let Some(share) = track.as_ref().ok_or_else(|| self.gone())?.shared() else { return Ok(None) };
        let file = share.file().map_err(|e| Error::system(format!("the memory of area \"{}\"", self.name), e))?;
        Ok(Some((file, share.number())))
    }

    /// The number of the memory that orbits map from now on; 0 for another area.
    ///
    /// # Errors
    /// `Gone`.
    pub(super) fn shared_number(&self) -> Result<u64> {
        let track = lock(&self.track);
        Ok(track.as_ref().ok_or_else(|| self.gone())?.shared().map_or(0, Share::number))
    }

    /// Takes the snapshot of a shared area: adds to `out` the pages that the orbit is to lay over
    /// the shared memory. That stands still as long as the pin lives. `None`: it is not the memory
    /// of this number any more.
    ///
    /// # Errors
    /// `Gone`, `Forked`, `System`: nothing has happened.
    pub(super) fn pin(self: &Arc<Self>, number: u64, out: &mut PageRuns) -> Result<Option<Pin>> {
        self.with_tracker(|tracker| {
            if tracker.shared().is_none_or(|share| share.number() != number) {
                return Ok(None);
            }
            tracker.share(out)?;
            // Under the tracker's lock, so that no merge is beside this.
            self.pins.fetch_add(1, Ordering::AcqRel);
            Ok(Some(Pin { area: self.clone() }))
        })
    }

    /// Before a fork of main's: the child gets what main has now. False for an area of which it
    /// gets nothing.
    pub(super) fn lend(&self) -> bool {
        self.is_shared() && self.with_tracker(|tracker| Ok(tracker.lend())).unwrap_or(false)
    }

    /// After it, in main.
    pub(super) fn fork_is_over(&self) {
        // Gone, or as before.
        let _ = self.with_tracker(|tracker| {
            tracker.fork_is_over();
            Ok(())
        });
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
