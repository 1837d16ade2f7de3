//! Free runs of pages below the high-water mark: which there are, which fits, which are worth
//! giving back.

use crate::area::pages::Bitmap;
use crate::units::{Page, Pages};
use std::collections::{BTreeMap, BTreeSet};

/// Free pages of one area.
///
/// Invariants: `by_first` and `by_len` hold the same runs; no two runs overlap or touch; every page
/// of a run is below the heap's top; `dirty` of a run is the number of its pages in `touched`.
#[derive(Debug, Default)]
pub(super) struct FreeRuns {
    /// first -> (pages, dirty pages)
    by_first: BTreeMap<Page, (Pages, Pages)>,
    /// (pages, first)
    by_len: BTreeSet<(Pages, Page)>,
}

impl FreeRuns {
    fn add(&mut self, first: Page, pages: Pages, dirty: Pages) {
        if pages != Pages::ZERO {
            self.by_first.insert(first, (pages, dirty));
            self.by_len.insert((pages, first));
        }
    }

    fn remove(&mut self, first: Page) -> Option<(Pages, Pages)> {
        let (pages, dirty) = self.by_first.remove(&first)?;
        self.by_len.remove(&(pages, first));
        Some((pages, dirty))
    }

    /// Takes `[at, at + pages)` out of the run that starts at `first` and holds it.
    fn carve(&mut self, first: Page, at: Page, pages: Pages, touched: &Bitmap) {
        if let Some((len, dirty)) = self.remove(first) {
            // Counted are the parts that are short: what is taken, and what alignment leaves before
            // it.
            let (end, before) = (at + pages, touched.count_in(first, at - first));
            let after = dirty - before - touched.count_in(at, pages);
            self.add(first, at - first, before);
            self.add(end, first + len - end, after);
        }
    }

    /// Takes `pages` pages from the smallest run that fits, its lowest pages whose number plus
    /// `skew` is a multiple of `align`; `None` if no run fits.
    pub fn take(&mut self, pages: Pages, align: Pages, skew: Pages, touched: &Bitmap) -> Option<Page> {
        let (first, at) = self.by_len.range((pages, Page::ZERO)..).find_map(|&(len, first)| {
            let at = (first + skew).up_to(align) - skew;
            (at + pages <= first + len).then_some((first, at))
        })?;
        self.carve(first, at, pages, touched);
        Some(at)
    }

    /// Takes exactly the `pages` pages from `at` on, if the run that begins there has them.
    pub fn take_at(&mut self, at: Page, pages: Pages, touched: &Bitmap) -> bool {
        match self.by_first.get(&at) {
            Some(&(len, _)) if len >= pages => {
                self.carve(at, at, pages, touched);
                true
            }
            _ => false,
        }
    }

    /// The run that begins at `at`, as a number of pages.
    pub fn len_at(&self, at: Page) -> Pages {
        self.by_first.get(&at).map_or(Pages::ZERO, |&(len, _)| len)
    }

    /// Where the run that ends at `end` begins, or `end`.
    pub fn begin_of(&self, end: Page) -> Page {
        match self.by_first.range(..end).next_back() {
            Some((&first, &(len, _))) if first + len == end => first,
            _ => end,
        }
    }

    /// Puts a run back and joins it with its neighbours. Returns the whole run: first, pages, dirty
    /// pages.
    pub fn put(&mut self, mut first: Page, mut pages: Pages, touched: &Bitmap) -> (Page, Pages, Pages) {
        let mut dirty = touched.count_in(first, pages);
        let before = self.begin_of(first);
        if before != first
            && let Some((len, more)) = self.remove(before)
        {
            first = before;
            pages += len;
            dirty += more;
        }
        if let Some((len, more)) = self.remove(first + pages) {
            pages += len;
            dirty += more;
        }
        self.add(first, pages, dirty);
        (first, pages, dirty)
    }

    /// Notes that the run that begins at `first` was released to the kernel and has `dirty` pages
    /// left that were not.
    pub fn cleaned(&mut self, first: Page, dirty: Pages) {
        if let Some(run) = self.by_first.get_mut(&first) {
            run.1 = dirty;
        }
    }

    /// Notes that `pages` pages from `first` on, some of them perhaps free, are about to come to
    /// `touched`.
    pub fn dirtied(&mut self, first: Page, pages: Pages, touched: &Bitmap) {
        let end = first + pages;
        let from = self.by_first.range(..=first).next_back().map_or(first, |(&at, _)| at);
        for (&at, (len, dirty)) in self.by_first.range_mut(from..end) {
            let (start, stop) = (at.max(first), (at + *len).min(end));
            let inside = start.pages_to(stop);
            *dirty += inside - touched.count_in(start, inside);
        }
    }

    /// The longest run, in pages.
    pub fn longest(&self) -> Pages {
        self.by_len.last().map_or(Pages::ZERO, |&(len, _)| len)
    }

    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (Page, Pages, Pages)> + '_ {
        self.by_first.iter().map(|(&first, &(pages, dirty))| (first, pages, dirty))
    }
}
