//! The tracker: which pages of an area were written since the last harvest.
//!
//! **Vocabulary.** To *harvest* is to fetch the written pages and begin anew, in that order page by
//! page: a page is protected (or copied to the shadow) before it is reported. To *peek* is to count
//! without beginning anew. An *engine* is a way of finding out; [`Engine`] names them.
//!
//! **Promise.** A page whose content changed is reported by the first harvest that begins after the
//! change, or by a later one if that one fails: what a failed harvest has fetched is kept in
//! `pending`. The opposite is not promised: a reported page may be unchanged.
//!
//! A tracker is used by one thread at a time, beside any number of threads that write to the area.

mod chunks;
mod compare;
mod hot;
mod kernel;
mod memory;
mod share;
mod written;

use super::Engine;
pub use super::pages::PageRuns;
use crate::error::{Error, Kind, Result};
use crate::generation::generation;
use crate::units::{Address, Bytes, Page, Pages};
use compare::Compare;
use kernel::Kernel;
pub(crate) use memory::Refill;
pub(super) use share::Share;
use std::io;
use std::sync::Arc;
use written::{Shape, Written};

/// Up to this many pages, `Auto` copies them all: 64 KiB are copied in 2 us out of the cache, and
/// tracking takes 4 and, where another CPU has to be interrupted for it, 20 more (`area_costs`,
/// `small_areas_by_engine`; `orbit bench call`).
const COPIED_PAGES: Pages = Pages::new(16);

/// The engine at work.
#[derive(Debug)]
enum Way {
    Copy,
    Compare(Compare),
    Track(Written),
    Share(Share),
}

/// Finds the written pages of one range of memory. See the module's head.
#[derive(Debug)]
pub struct Tracker {
    base: Address,
    /// A multiple of `page`.
    limit: Bytes,
    page: Bytes,
    /// What was asked for; `Auto` and `Fork` leave the choice to us.
    asked: Engine,
    way: Way,
    /// Why the choice is not the usual one.
    note: Option<String>,
    /// The first page that is not tracked.
    used: Page,
    /// Pages that the next harvest reports whatever the engine says. Below `used`.
    pending: PageRuns,
    /// Whether pages that were never touched read as zeros, as they do where nothing was ever sent:
    /// then they need not be.
    zeroes: bool,
    /// From the base on, what may be huge pages.
    huge: Bytes,
    /// The process it works in, see [`super::forked`].
    generation: u64,
}

impl Tracker {
    /// A tracker of the `limit` bytes at `base` (whole pages, mapped and writable, for as long as
    /// the tracker lives). It tracks nothing until [`Tracker::grow`].
    ///
    /// # Errors
    /// `Unsupported` when the engine asked for is not available here, with the facility that is
    /// missing. `Auto` always finds one that works.
    pub fn new(base: Address, limit: Bytes, engine: Engine) -> Result<Tracker> {
        Self::make(base, limit, engine, false, Bytes::ZERO)
    }

    /// The same of new anonymous memory, of which the first `huge` bytes may be huge pages. Pages
    /// that nobody touches are not reported, also not when they come into use.
    ///
    /// # Errors
    /// As [`Tracker::new`].
    pub fn over_zeroes(base: Address, limit: Bytes, engine: Engine, huge: Bytes) -> Result<Tracker> {
        Self::make(base, limit, engine, true, huge)
    }

    /// A tracker of the `share` engine, which puts the memory of the area into this range of the
    /// window.
    ///
    /// # Errors
    /// `Unsupported`, with the facility that is missing.
    pub(super) fn over_shared(base: Address, limit: Bytes) -> Result<Tracker> {
        let mut tracker = Self::make(base, limit, Engine::Auto, true, Bytes::ZERO)?;
        let share = Share::over(base, limit).map_err(|error| {
            let why = format!("engine \"share\" is not available: {error}; choose engine auto");
            Error::new(Kind::Unsupported, why)
        })?;
        (tracker.asked, tracker.way) = (Engine::Share, Way::Share(share));
        Ok(tracker)
    }

    fn make(base: Address, limit: Bytes, engine: Engine, zeroes: bool, huge: Bytes) -> Result<Tracker> {
        let mut tracker = Tracker {
            base,
            limit,
            page: Bytes::new(orbit_linux::map::page_size()),
            asked: engine,
            way: Way::Copy,
            note: None,
            used: Page::ZERO,
            pending: PageRuns::new(),
            zeroes,
            huge,
            generation: generation(),
        };
        let refused = |needs: String, instead: &str| {
            Error::new(Kind::Unsupported, format!("engine \"{engine}\" is not available: {needs}; choose {instead}"))
        };
        match engine {
            Engine::Auto | Engine::Fork | Engine::Copy => {}
            Engine::Track => {
                tracker.way = tracker.track(Page::ZERO).map_err(|why| refused(why, "engine auto or compare"))?;
            }
            Engine::Compare => {
                let compare = Compare::new(base, limit, tracker.page);
                tracker.way = Way::Compare(compare.map_err(|error| {
                    refused(format!("no address space for a shadow ({error})"), "a lower limit or engine copy")
                })?);
            }
            Engine::Share => {
                let needs = "it needs memory of the library's, not the program's".to_owned();
                return Err(refused(needs, "an area that is made, or engine auto"));
            }
        }
        Ok(tracker)
    }

    /// The `track` engine, for an area of which the pages below `known` were harvested before.
    fn track(&self, known: Page) -> std::result::Result<Way, String> {
        let kernel = Kernel::open().map_err(|missing| missing.reason())?;
        let fresh = self.zeroes.then_some(known);
        let shape = Shape { base: self.base, len: self.limit, page: self.page, huge: self.huge.page(self.page), fresh };
        let written = Written::new(kernel, shape);
        written.map(Way::Track).map_err(|error| format!("userfaultfd refused the range: {error}"))
    }

    /// The engine at work now. [`Engine::Auto`] and [`Engine::Fork`] show what they came to.
    pub fn engine(&self) -> Engine {
        match self.way {
            Way::Copy => Engine::Copy,
            Way::Compare(_) => Engine::Compare,
            Way::Track(_) => Engine::Track,
            Way::Share(_) => Engine::Share,
        }
    }

    /// Why the engine is not the one expected, if so: the facility that is missing and the way out.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    fn chooses(&self) -> bool {
        matches!(self.asked, Engine::Auto | Engine::Fork)
    }

    /// Goes over to comparing, after `why`. The pages below `known` count as written, as what the
    /// engine before knew is gone; others were never sent, and the shadow is all zeros as well.
    fn degrade(&mut self, why: String, known: Page) -> io::Result<()> {
        self.way = Way::Compare(Compare::new(self.base, self.limit, self.page)?);
        self.note = Some(why);
        self.pending.push(Page::ZERO, known - Page::ZERO);
        Ok(())
    }

    fn ours(&self) -> Result<()> {
        if self.generation == generation() {
            return Ok(());
        }
        Err(Error::new(
            Kind::Forked,
            "this area was made by the process that this one was forked from; make areas of your own after a fork",
        ))
    }

    /// From now on tracks the first `used_pages` pages (never fewer than before). The new ones
    /// are reported by the next harvest, except untouched ones of new memory. `Auto` may change the
    /// engine.
    ///
    /// # Errors
    /// `Forked` in another process than the one it was made in.
    pub fn grow(&mut self, used_pages: Pages) -> Result<()> {
        self.ours()?;
        let used = Page::ZERO + used_pages.min(self.limit.whole_pages(self.page));
        if used <= self.used {
            return Ok(());
        }
        let known = self.used;
        self.used = used;
        if !self.zeroes {
            self.pending.push(known, used - known);
        }
        if self.chooses() && self.used_pages() > COPIED_PAGES && matches!(self.way, Way::Copy) && self.note.is_none() {
            match self.track(known) {
                Ok(way) => {
                    self.way = way;
                    self.pending.push(Page::ZERO, known - Page::ZERO);
                }
                Err(why) => {
                    if let Err(error) = self.degrade(why.clone(), known) {
                        self.note = Some(format!("{why}; no address space for a shadow either: {error}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Begins tracking anew if the program has closed the descriptors that it needs, or goes over
    /// to comparing where the engine is ours to choose; the pages in use count as written. True if
    /// so.
    fn begin_anew_if_lost(&mut self) -> io::Result<bool> {
        if !matches!(&self.way, Way::Track(written) if written.is_lost()) {
            return Ok(false);
        }
        // The range must be no one's for another descriptor to have it.
        self.way = Way::Copy;
        match self.track(self.used) {
            Ok(way) => {
                self.way = way;
                self.pending.push(Page::ZERO, self.used_pages());
                Ok(true)
            }
            Err(why) if self.chooses() => self.degrade(why, self.used).map(|()| true),
            Err(why) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "the program closed the descriptors of engine \"{}\", and they cannot be opened again: {why}",
                    self.asked
                ),
            )),
        }
    }

    /// How many pages the next harvest would report, counting no further than `stop_after`.
    /// Protects nothing.
    ///
    /// # Errors
    /// `Forked`, or `System` when the kernel rejects the scan.
    pub fn peek(&mut self, stop_after: Pages) -> Result<Pages> {
        self.ours()?;
        let anew = |error| Error::system("counting the written pages of an area", error);
        if self.begin_anew_if_lost().map_err(anew)? || self.pending.pages() >= stop_after {
            return Ok(self.pending.pages().min(stop_after));
        }
        let mut pages = self.pending.clone();
        match &mut self.way {
            Way::Copy | Way::Share(_) => return Ok(self.used_pages().min(stop_after)),
            Way::Compare(compare) => compare.peek(self.used, stop_after, &mut pages),
            Way::Track(written) => {
                let status = written.peek(self.used, stop_after, &mut pages);
                status.map_err(|error| Error::system("counting the written pages of an area", error))?;
            }
        }
        Ok(pages.pages().min(stop_after))
    }

    /// Adds to `out` every page written since the last harvest that succeeded, after protecting it
    /// again.
    ///
    /// # Errors
    /// `Forked`, or `System` when the kernel fails: then `out` is as before, nothing is lost, and
    /// the next harvest reports what this one has fetched. An engine of `Auto`'s choice that the
    /// kernel no longer allows is replaced instead.
    pub fn harvest(&mut self, out: &mut PageRuns) -> Result<()> {
        self.ours()?;
        let mut status = self.fetch();
        if status.is_err() && self.begin_anew_if_lost().map_err(|e| Error::system("tracking an area", e))? {
            status = self.fetch();
        }
        if let Err(error) = &status
            && self.chooses()
            && matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
        {
            let why =
                format!("the kernel no longer lets this process track writes ({error}); pages are compared instead");
            status = self.degrade(why, self.used).and_then(|()| self.fetch());
        }
        status.map_err(|error| Error::system("fetching the written pages of an area", error))?;
        out.extend(&self.pending);
        self.pending.clear();
        Ok(())
    }

    /// How many pages each harvest reports, whatever was written; `None`: those that were.
    pub fn sends_whole(&self) -> Option<Pages> {
        (matches!(self.way, Way::Copy) && self.asked != Engine::Fork).then_some(self.used_pages())
    }

    fn fetch(&mut self) -> io::Result<()> {
        match &mut self.way {
            Way::Copy | Way::Share(_) => {
                self.pending.push(Page::ZERO, self.used - Page::ZERO);
                Ok(())
            }
            Way::Compare(compare) => {
                compare.adopt(&self.pending);
                compare.harvest(self.used, &mut self.pending)
            }
            Way::Track(written) => written.harvest(self.used, &mut self.pending),
        }
    }

    /// The memory of a `share` area; `None`: another engine.
    pub(super) fn shared(&self) -> Option<&Share> {
        if let Way::Share(share) = &self.way { Some(share) } else { None }
    }

    /// Takes the snapshot of a `share` area: adds to `out` the pages that differ from the shared
    /// memory, none of them if that was made to stand still just now.
    ///
    /// # Errors
    /// `System`: nothing has happened.
    pub(super) fn share(&mut self, out: &mut PageRuns) -> Result<()> {
        self.ours()?;
        let (used, page) = (self.used, self.page);
        let Way::Share(share) = &mut self.way else { return Ok(()) };
        let taken = if share.is_flipped() { share.private_pages(used, page, out) } else { share.flip() };
        taken.map_err(|error| Error::system("taking the snapshot of a shared area by moving its page tables", error))
    }

    /// Adds to `out` the pages of a `share` area that differ from memory that stands still.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn private_pages(&self, out: &mut PageRuns) -> Result<()> {
        match &self.way {
            Way::Share(share) if share.is_flipped() => share
                .private_pages(self.used, self.page, out)
                .map_err(|error| Error::system("finding what main wrote to a shared area", error)),
            _ => Ok(()),
        }
    }

    /// The memory of a `share` area, to be changed.
    pub(super) fn shared_mut(&mut self) -> Option<&mut Share> {
        if let Way::Share(share) = &mut self.way { Some(share) } else { None }
    }

    /// Merges what main wrote to a `share` area since its memory was made to stand still. `Some`:
    /// the memory that is to take the place of lent memory is not full yet.
    ///
    /// # Errors
    /// `System`: nothing is lost, and it is not merged.
    ///
    /// # Safety
    /// No task reads an earlier snapshot of memory that is not lent, and nothing writes to the area
    /// until this returns.
    pub(super) unsafe fn merge(&mut self) -> Result<Option<Arc<Refill>>> {
        self.ours()?;
        let (used, page) = (self.used, self.page);
        match &mut self.way {
            // SAFETY: the caller's word.
            Way::Share(share) if share.is_flipped() => unsafe { share.settle(used, page) }
                .map_err(|error| Error::system("merging what main wrote to a shared area", error)),
            _ => Ok(None),
        }
    }

    /// Whether a `share` area's memory stands still.
    pub(super) fn stands_still(&self) -> bool {
        matches!(&self.way, Way::Share(share) if share.is_flipped())
    }

    /// Main is about to write to `pages` pages from `first` on: where each first write would be a
    /// fault it no longer is, and they are reported by the next harvest. Engines without such
    /// faults do nothing.
    pub fn announce(&self, first: Page, pages: Pages) {
        if let Way::Track(written) = &self.way {
            // Where the kernel fails, the writes are noticed one by one, as always.
            let _ = written.announce(first, pages);
        }
    }

    /// Makes the next harvest report `pages` pages from `first` on: for changes that the engine
    /// cannot see, as `MADV_DONTNEED`. Pages not tracked yet are reported anyway once they are.
    pub fn mark(&mut self, first: Page, pages: Pages) {
        self.pending.push(first, first.pages_to((first + pages).min(self.used)));
    }

    /// From where a snapshot copies `page` after a harvest: the area, or the shadow of `compare`.
    /// Readable for a page as long as the tracker lives; the content of one taken from the area may
    /// change while it is being copied, and is then reported by the next harvest.
    pub fn source(&self, page: Page) -> *const u8 {
        debug_assert!(page.offset(self.page) < self.limit);
        match &self.way {
            Way::Compare(compare) => compare.source(page),
            _ => (self.base + page.offset(self.page)).pointer(),
        }
    }

    /// How many pages are tracked.
    pub fn used_pages(&self) -> Pages {
        self.used - Page::ZERO
    }
}
