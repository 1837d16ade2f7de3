//! The page ledger: where a page of an area is on its way to one orbit.
//!
//! A page whose content differs from what the orbit was last sent is in exactly one of these, and
//! each is a type:
//!
//! | in | type | leaves it |
//! |---|---|---|
//! | the tracker: written, not harvested | `area::track` | by a harvest, which owes it to every orbit of the area |
//! | the set of owed pages | [`OwedSet`] | by [`Taken::changed`] |
//! | the hands of the call being made | [`Taken`] | into a replica, the log or a copier; dropped, it is owed again |
//! | the log, until the orbit has replayed it | `log::LogWriter` | by `release`; taken back, it is owed again |
//! | a copier, until that has written it | [`Held`] | by [`Held::written`]; dropped, it is owed again |
//!
//! So no path of an error loses a page: what is not delivered returns by itself. Only a call whose
//! area is so often written whole that it is not harvested ([`Taken::all`]) leaves its pages with
//! the tracker as well: they are sent twice.

use std::sync::Weak;

use super::Replica;
use crate::area::{OwedSet, PageRuns};
use crate::channel::DownSide;
use crate::copier::Part;
use crate::error::Result;
use crate::log::LogWriter;
use crate::page::PAGE_BYTES;
use crate::units::{Bytes, Page, Pages};

/// Pages taken for a call of one orbit, not delivered yet. Dropped, they are owed to it again.
#[must_use]
pub(crate) struct Taken<'a> {
    replica: &'a Replica,
    runs: PageRuns,
}

impl<'a> Taken<'a> {
    /// Takes what changed in the area since the orbit's last snapshot: harvests, and takes what it
    /// is owed. `buffer` lends its memory.
    ///
    /// # Errors
    /// Those of a harvest; nothing is taken then.
    pub fn changed(replica: &'a Replica, mut buffer: PageRuns) -> Result<Taken<'a>> {
        buffer.clear();
        let mut taken = Taken { replica, runs: buffer };
        taken.changed_since()?;
        Ok(taken)
    }

    /// Takes what changed since, too.
    ///
    /// # Errors
    /// Those of a harvest; nothing more is taken then.
    pub fn changed_since(&mut self) -> Result<()> {
        self.replica.area.snapshot_pages(&self.replica.owed, &mut self.runs)
    }

    /// Takes the first `used` pages without a harvest: what was written stays with the tracker.
    ///
    /// # Errors
    /// `Gone`.
    pub fn all(replica: &'a Replica, used: Pages, mut buffer: PageRuns) -> Result<Taken<'a>> {
        buffer.clear();
        buffer.push(Page::ZERO, used);
        let taken = Taken { replica, runs: buffer };
        if replica.area.source_begins()? != replica.area.base() as *const u8 {
            // The shadow does not have what is sent now: a page that becomes what it was before
            // would be missed.
            replica.owed.owe(&taken.runs);
        }
        Ok(taken)
    }

    /// The pages.
    pub fn runs(&self) -> &PageRuns {
        &self.runs
    }

    /// How many pages.
    pub fn pages(&self) -> Pages {
        self.runs.pages()
    }

    /// Ends the taking: the pages are where they belong. Returns the memory lent.
    fn delivered(mut self) -> PageRuns {
        let mut buffer = std::mem::take(&mut self.runs);
        buffer.clear();
        buffer
    }

    /// Copies the pages straight into the replica: only while the orbit is idle. Returns the memory
    /// lent.
    ///
    /// # Errors
    /// `Gone`.
    pub fn into_replica(self) -> Result<PageRuns> {
        self.replica.write(&self.runs)?;
        Ok(self.delivered())
    }

    /// What the pages may take of the log.
    pub fn need_of_log(&self) -> Bytes {
        LogWriter::need_for_pages(self.runs.pages(), self.runs.runs())
    }

    /// Appends the pages to the log, which has room for them. Returns the memory lent.
    ///
    /// # Errors
    /// `Gone`.
    pub fn into_log(self, log: &mut LogWriter, down: &DownSide) -> Result<PageRuns> {
        let id = self.replica.area.id();
        self.replica.area.with_source(|source| {
            for (first, count) in self.runs.iter() {
                log.pages(down, id, first, count, source);
            }
        })?;
        Ok(self.delivered())
    }

    /// Leaves the pages to a copier: adds what it is to write to `parts`. They lie from `source`
    /// on.
    pub fn into_copier(mut self, source: *const u8, parts: &mut Vec<Part>) -> Held {
        let replica = self.replica;
        let to: *mut u8 = replica.alias_at.pointer();
        let number = replica.fd.number().unwrap_or(-1);
        parts.extend(self.runs.iter().map(|(first, count)| Part {
            from: source.wrapping_add(first.offset(PAGE_BYTES).get()),
            to: to.wrapping_add(first.offset(PAGE_BYTES).get()),
            pages: count,
            replica: number,
            file: replica.fd.file(),
            at: first.offset(PAGE_BYTES),
        }));
        Held {
            area: replica.area.id(),
            owed: std::sync::Arc::downgrade(&replica.owed),
            runs: std::mem::take(&mut self.runs),
        }
    }

    /// Owes the pages to another replica of the same orbit, which takes this one's place.
    pub fn into_owed_of(self, fresh: &Replica) {
        fresh.owed.owe(&self.runs);
        self.delivered();
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.runs.is_empty() {
            self.replica.owed.owe(&self.runs);
        }
    }
}

/// Pages of one area that a copier holds for a call. Dropped, they are owed to the orbit again, if
/// it has the area still.
#[must_use]
pub(crate) struct Held {
    area: u32,
    owed: Weak<OwedSet>,
    runs: PageRuns,
}

impl Held {
    /// The number of their area.
    pub fn area(&self) -> u32 {
        self.area
    }

    /// The copier has written them into the replica.
    pub fn written(mut self) {
        self.runs.clear();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(owed) = self.owed.upgrade().filter(|_| !self.runs.is_empty()) {
            owed.owe(&self.runs);
        }
    }
}

impl Replica {
    /// Owes pages again that were in a part of the log that is taken back.
    pub fn owe_again(&self, first: Page, count: Pages) {
        self.owed.owe_run(first, count);
    }

    /// Pages that it is owed.
    pub fn owed_pages(&self) -> Pages {
        self.owed.pages()
    }

    /// About how many pages [`Taken::changed`] would take, counting no further than `stop_after`.
    ///
    /// # Errors
    /// Those of a scan.
    pub fn peek(&self, stop_after: Pages) -> Result<Pages> {
        self.area.peek_pages(&self.owed, stop_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area::{Area, Engine};
    use crate::page::PAGE;

    const PAGES: usize = 8;

    /// An area of which each page was written, and a replica that is owed nothing.
    fn area_and_replica() -> (Area, Replica) {
        let area = Area::builder("ledger").limit(PAGES * PAGE).engine(Engine::Compare).build().expect("an area");
        area.alloc_zeroed(PAGES * PAGE, 16).expect("room");
        let replica = Replica::make(&area, 0).expect("a replica");
        Taken::changed(&replica, PageRuns::new()).expect("all of it").into_replica().expect("idle");
        (area, replica)
    }

    fn write(area: &Area, page: usize, value: u64) {
        // SAFETY: the object of the area covers all its pages, and nothing else uses it.
        unsafe { std::ptr::with_exposed_provenance_mut::<u64>(area.base() + page * PAGE).write(value) };
    }

    #[test]
    fn what_is_taken_and_not_delivered_is_owed_again() {
        let (area, replica) = area_and_replica();
        assert_eq!(replica.owed_pages(), Pages::ZERO);
        write(&area, 3, 1);
        let taken = Taken::changed(&replica, PageRuns::new()).expect("a harvest");
        assert_eq!(
            (taken.runs().iter().collect::<Vec<_>>(), replica.owed_pages().get()),
            (vec![(Page::new(3), Pages::ONE)], 0)
        );
        drop(taken);
        assert_eq!(replica.owed_pages(), Pages::ONE, "the page is owed again");
        Taken::changed(&replica, PageRuns::new()).expect("it is taken again").into_replica().expect("idle");
        assert_eq!(replica.owed_pages(), Pages::ZERO);
        // SAFETY: the replica's alias has the area's length.
        let there = unsafe { replica.alias_at.pointer().cast::<u8>().add(3 * PAGE).cast::<u64>().read() };
        assert_eq!(there, 1, "delivered once");
    }

    #[test]
    fn what_a_copier_holds_is_owed_again_unless_it_was_written() {
        let (area, replica) = area_and_replica();
        for written in [true, false] {
            write(&area, 5, 1 + u64::from(written));
            let mut parts = Vec::new();
            let taken = Taken::changed(&replica, PageRuns::new()).expect("a harvest");
            let held = taken.into_copier(area.source_begins().expect("there"), &mut parts);
            assert_eq!(
                (held.area(), parts.len(), parts[0].pages.get(), replica.owed_pages().get()),
                (area.id(), 1, 1, 0)
            );
            if written {
                held.written()
            } else {
                drop(held)
            }
            assert_eq!(replica.owed_pages().get(), usize::from(!written));
        }
    }

    #[test]
    fn a_copier_that_outlives_the_replica_owes_nothing() {
        let (area, replica) = area_and_replica();
        write(&area, 0, 9);
        let taken = Taken::changed(&replica, PageRuns::new()).expect("a harvest");
        let held = taken.into_copier(area.base() as *const u8, &mut Vec::new());
        drop(replica);
        area.destroy().expect("nothing uses it: what a copier holds is a copy");
        drop(held);
    }
}
