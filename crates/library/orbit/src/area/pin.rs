//! Areas whose memory orbits map themselves, see `track::share`: the snapshot of one, and what
//! keeps the memory as a call saw it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::inner::AreaInner;
use super::pages::PageRuns;
use super::track::{Refill, Share, Tracker};
use super::{Engine, forks};
use crate::error::{Error, Result};
use crate::own::Own;
use crate::runtime::Runtime;

/// Keeps the memory of a shared area as a call's snapshot needs it: what main writes meanwhile is
/// not merged.
#[derive(Debug)]
pub(crate) struct Pin {
    area: Arc<AreaInner>,
}

/// What came of a merge.
#[derive(Debug)]
pub(crate) enum Merge {
    /// Nothing is left to be merged.
    Done,
    /// A call is in flight, main forks, or something may write.
    Busy,
    /// A forked child may have the memory, and the one that takes its place is not full yet.
    Filling(Arc<Refill>),
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
        let track = self.tracker();
        let Some(share) = track.as_ref().ok_or_else(|| self.gone())?.shared() else { return Ok(None) };
        let file = share.file().map_err(|e| Error::system(format!("the memory of area \"{}\"", self.name), e))?;
        Ok(Some((file, share.number())))
    }

    /// The number of the memory that orbits map from now on; 0 for another area.
    ///
    /// # Errors
    /// `Gone`.
    pub(super) fn shared_number(&self) -> Result<u64> {
        let track = self.tracker();
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

    /// Before a fork of main's: the child gets what main has now. Takes no memory: it may run in a
    /// signal handler, which interrupts no holder of the lock, since those block signals. False for
    /// an area of which the child gets nothing.
    pub(super) fn lend(&self) -> bool {
        self.tracker().as_mut().and_then(Tracker::shared_mut).is_some_and(|share| share.lend().is_ok())
    }

    /// After all such forks, in main. Whether a copy of lent memory is to be made for an orbit.
    pub(super) fn forks_are_over(&self) {
        if let Some(share) = self.tracker().as_mut().and_then(Tracker::shared_mut) {
            share.forks_are_over();
        }
    }

    /// The copy that takes the place of lent memory, if an orbit is to have it.
    pub(super) fn refill(&self) -> Option<Arc<Refill>> {
        if self.users() == 0 {
            return None;
        }
        self.tracker().as_mut().and_then(Tracker::shared_mut)?.refill().ok()?
    }

    /// Adds to `out` the pages of a shared area that main has written and not merged.
    ///
    /// # Errors
    /// `Gone`, `Forked`, `System`.
    pub(super) fn unmerged(&self, out: &mut PageRuns) -> Result<()> {
        self.with_tracker(|tracker| tracker.private_pages(out))
    }

    /// Merges what main wrote to a shared area during calls, if none is in flight that reads it,
    /// and `quiet` says that nothing writes to it until this returns.
    ///
    /// # Errors
    /// `Gone`, `Forked`, `System`: nothing is lost.
    ///
    /// # Safety
    /// The answer of `quiet` is true.
    pub(super) unsafe fn merge(&self, quiet: impl FnOnce() -> bool) -> Result<Merge> {
        let merge = self.with_tracker(|tracker| {
            if !tracker.stands_still() {
                return Ok(Merge::Done);
            }
            let in_fork = tracker.shared().is_some_and(Share::is_in_fork);
            if in_fork || self.pins.load(Ordering::Acquire) != 0 || !quiet() {
                return Ok(Merge::Busy);
            }
            // SAFETY: no call reads the memory without a pin, none is added and no fork begins
            // beside this: the tracker is locked. The rest is the caller's word.
            Ok(unsafe { tracker.merge() }?.map_or(Merge::Done, Merge::Filling))
        })?;
        if matches!(&merge, Merge::Filling(refill) if !refill.is_watched()) {
            forks::note_lent();
            Runtime::knock_in_fork();
        }
        Ok(merge)
    }
}
