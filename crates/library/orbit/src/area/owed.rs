//! The pages of one area that one orbit has not been sent yet.
//!
//! A harvest fetches what was written since the last one, for whichever orbit asked; every other
//! orbit that has the area is owed the same pages. The invariant: a page whose content differs
//! from what an orbit was last sent is either still held by the tracker (written, not harvested) or
//! in that orbit's set.

use super::pages::{Bitmap, PageRuns};
use crate::units::{Page, Pages};
use std::sync::{Mutex, PoisonError};

/// The pages owed to one orbit. Any thread may add to it; the orbit's caller takes from it.
#[derive(Debug, Default)]
pub struct OwedSet {
    pages: Mutex<Bitmap>,
}

impl OwedSet {
    fn lock(&self) -> std::sync::MutexGuard<'_, Bitmap> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts pages back that were taken and did not arrive, or adds new ones.
    pub fn owe(&self, runs: &PageRuns) {
        self.lock().add(runs);
    }

    /// Owes `count` pages from `first` on.
    pub fn owe_run(&self, first: Page, count: Pages) {
        self.lock().set(first, count);
    }

    /// Moves everything owed into `out` (joined with what `out` holds).
    pub fn take(&self, out: &mut PageRuns) {
        let mut pages = self.lock();
        out.union(&pages);
        pages.clear();
    }

    /// How many pages are owed.
    pub fn pages(&self) -> Pages {
        self.lock().pages()
    }
}
