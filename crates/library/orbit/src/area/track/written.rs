//! The `track` engine: the kernel notes which pages are written (`userfaultfd` in asynchronous
//! write-protect mode), and `PAGEMAP_SCAN` fetches the note and protects the page again in one
//! step.
//!
//! A page is protected before it is copied, so a write during the copy is noted for the next
//! harvest. A page that was never protected counts as written. Hot pages are left out of the scan
//! and always reported, see [`super::hot`].

use super::super::fault;
use super::super::pages::PageRuns;
use super::super::touched::touched;
use super::chunks::{Chunks, Segment};
use super::hot::Hot;
use super::kernel::Kernel;
use crate::units::{Address, Bytes, Page, Pages};
use std::io;
use std::sync::Arc;

/// Pages that one scan call covers: 64 MiB.
const PAGES_PER_SCAN: Pages = Pages::new(16 << 10);

/// What the range is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub base: Address,
    /// Whole pages.
    pub len: Bytes,
    /// Of a page.
    pub page: Bytes,
    /// The kernel may keep the pages below it as huge pages.
    pub huge: Page,
    /// Pages from here on were not harvested yet, and read as zeros where they were never touched.
    /// `None`: any page may hold something.
    pub fresh: Option<Page>,
}

/// One registered range.
#[derive(Debug)]
pub(super) struct Written {
    kernel: Arc<Kernel>,
    shape: Shape,
    /// Pages in a huge page.
    unit: Pages,
    hot: Hot,
    /// Where pages that were never touched need not be sent: the chunks that are scanned.
    chunks: Option<Chunks>,
    /// Pages at or above what was in use when they were found and protected.
    beyond: PageRuns,
    /// Room for what a scan finds, kept between harvests.
    found: Vec<(usize, usize)>,
}

impl Written {
    /// Registers the range. Every page counts as written until the first harvest.
    pub fn new(kernel: Arc<Kernel>, shape: Shape) -> io::Result<Self> {
        kernel.uffd.get()?.register_wp(shape.base.get(), shape.len.get())?;
        let unit = Bytes::new(2 << 20).whole_pages(shape.page);
        let chunks = shape.fresh.is_some().then(|| Chunks::new(shape.base, shape.page));
        Ok(Written { kernel, shape, unit, chunks, hot: Hot::default(), beyond: PageRuns::new(), found: Vec::new() })
    }

    /// The address of a page.
    fn at(&self, page: Page) -> usize {
        (self.shape.base + page.offset(self.shape.page)).get()
    }

    /// The run of pages from one address to another, as a scan found it.
    fn run(&self, (start, end): (usize, usize)) -> (Page, Pages) {
        let offset = Address::new(start) - self.shape.base;
        (offset.page(self.shape.page), (Address::new(end) - Address::new(start)).whole_pages(self.shape.page))
    }

    /// Lets pages be written without a fault for each; they read as written, as if they had been.
    pub fn announce(&self, first: Page, pages: Pages) -> io::Result<()> {
        self.kernel.uffd.get()?.write_protect(self.at(first), pages.bytes(self.shape.page).get(), false)
    }

    /// Adds written pages below `used` to `out`, without protecting, until `stop_after` are
    /// found.
    pub fn peek(&mut self, used: Page, stop_after: Pages, out: &mut PageRuns) -> io::Result<()> {
        let known = self.shape.fresh.map_or(used, |fresh| fresh.min(used));
        self.found.clear();
        let mut found = Pages::ZERO;
        for Segment { first, end, known } in self.segments(Page::ZERO, known) {
            if found >= stop_after {
                break;
            }
            let (start, end, most) = (self.at(first), self.at(end), (stop_after - found).get());
            let pagemap = self.kernel.pagemap.get()?;
            found += Pages::new(if known {
                pagemap.scan_written(start, end, false, most, &mut self.found)?
            } else {
                pagemap.scan_populated(start, end, most, &mut self.found)?
            });
        }
        for &range in &self.found {
            let (first, count) = self.run(range);
            out.push(first, count);
        }
        if known < used && found < stop_after && !touched(self.shape.base, self.shape.page, known, used - known, out) {
            out.push(known, used - known);
        }
        for (first, count) in self.hot.runs() {
            out.push(first, count.min(first.pages_to(used)));
        }
        Ok(())
    }

    /// Adds the written pages below `used` to `pending` and protects them. After an error
    /// `pending` has all pages that may have lost their note.
    pub fn harvest(&mut self, used: Page, pending: &mut PageRuns) -> io::Result<()> {
        self.hot.begin();
        let earlier = std::mem::take(&mut self.beyond);
        for (first, count) in earlier.iter() {
            self.keep(first, count, used, pending);
        }
        let known = self.shape.fresh.map_or(used, |fresh| fresh.min(used));
        let hot: Vec<_> = self.hot.runs().collect();
        let mut from = Page::ZERO;
        for (first, count) in hot {
            if first >= known {
                break;
            }
            self.scan(from, first, used, pending)?;
            from = (first + count).min(known);
            pending.push(first, from - first);
        }
        self.scan(from, known, used, pending)?;
        // A huge page is scanned whole, or the kernel splits it.
        let end = if used < self.shape.huge { used.up_to(self.unit).min(self.shape.huge) } else { used };
        if known < end {
            self.scan_fresh(known, end, used, pending)?;
        }
        self.hot.learn(pending);
        Ok(())
    }

    /// Scans pages that come into use, and leaves out those that nobody has touched: they read as
    /// zeros, as they do where nothing was ever sent. After they were protected, as a write before
    /// that is no longer noted.
    fn scan_fresh(&mut self, known: Page, end: Page, used: Page, pending: &mut PageRuns) -> io::Result<()> {
        let mut new = PageRuns::new();
        let status = self.scan(known, end, used, &mut new);
        if status.is_err() || self.shape.fresh.is_none() || used <= known {
            pending.extend(&new);
            return status;
        }
        self.shape.fresh = Some(used);
        let mut there = PageRuns::new();
        if touched(self.shape.base, self.shape.page, known, used - known, &mut there) {
            new.common(there.iter(), pending);
        } else {
            pending.extend(&new);
        }
        Ok(())
    }

    /// Pages `from..to` as runs that are scanned, and runs in which nothing was touched so far.
    fn segments(&self, from: Page, to: Page) -> Vec<Segment> {
        match &self.chunks {
            Some(chunks) => chunks.segments(from, to),
            None => vec![Segment { first: from, end: to, known: true }],
        }
    }

    /// Finds what was written of pages `from..to` and protects it, of which those below `used` are
    /// reported now.
    fn scan(&mut self, from: Page, to: Page, used: Page, pending: &mut PageRuns) -> io::Result<()> {
        for Segment { first, end, known } in self.segments(from, to) {
            if known {
                self.scan_known(first, end, used, pending)?;
            } else {
                self.scan_unknown(first, end, used, pending)?;
            }
        }
        Ok(())
    }

    /// Finds chunks that were touched since, and scans those. Their untouched pages are left
    /// out, after all of them were protected, as a write before that is no longer noted.
    fn scan_unknown(&mut self, from: Page, to: Page, used: Page, pending: &mut PageRuns) -> io::Result<()> {
        fault::check()?;
        let mut there = std::mem::take(&mut self.found);
        there.clear();
        let status = self
            .kernel
            .pagemap
            .get()
            .and_then(|pagemap| pagemap.scan_populated(self.at(from), self.at(to), 0, &mut there));
        let mut chunks = PageRuns::new();
        let runs: Vec<_> = there.iter().map(|&range| self.run(range)).collect();
        if let (Ok(_), Some(known)) = (&status, &mut self.chunks) {
            for (first, count) in runs {
                let (low, high) = known.learn(first, count);
                let low = low.max(from);
                chunks.push(low, high.min(to) - low);
            }
        }
        self.found = there;
        status?;
        let mut status = Ok(());
        for (first, count) in chunks.iter() {
            if status.is_err() {
                // Not protected yet: what was written reads as written.
                break;
            }
            let mut new = PageRuns::new();
            status = self.scan_known(first, first + count, used, &mut new);
            let mut there = PageRuns::new();
            if status.is_ok() && touched(self.shape.base, self.shape.page, first, count, &mut there) {
                new.common(there.iter(), pending);
            } else {
                pending.extend(&new);
            }
        }
        status
    }

    /// Scans pages `from..to` in steps, of which those below `used` are reported now.
    fn scan_known(&mut self, mut from: Page, to: Page, used: Page, pending: &mut PageRuns) -> io::Result<()> {
        let step = fault::step(PAGES_PER_SCAN);
        while from < to {
            let mut until = (from + step).min(to);
            if until < self.shape.huge && until < to {
                // Not through the middle of a huge page, which the kernel would split.
                until = until.down_to(self.unit).max(from + Pages::ONE);
            }
            fault::check()?;
            self.found.clear();
            let (start, end) = (self.at(from), self.at(until));
            let pagemap = self.kernel.pagemap.get();
            let status = pagemap.and_then(|pagemap| pagemap.scan_written(start, end, true, 0, &mut self.found));
            if let Err(error) = status {
                // The kernel may have protected pages whose ranges it did not hand over: all of the
                // step counts as written.
                self.keep(from, until - from, used, pending);
                return Err(error);
            }
            let found = std::mem::take(&mut self.found);
            for &range in &found {
                let (first, count) = self.run(range);
                self.keep(first, count, used, pending);
            }
            self.found = found;
            from = until;
        }
        Ok(())
    }

    /// Adds a run to what is reported now, and what of it is not in use yet to what is reported
    /// when it is.
    fn keep(&mut self, first: Page, count: Pages, used: Page, pending: &mut PageRuns) {
        let now = used.clamp(first, first + count) - first;
        pending.push(first, now);
        self.beyond.push(first + now, count - now);
    }
}

impl Written {
    /// Whether the program has closed one of the descriptors that tracking needs: then which pages
    /// were written is not known.
    pub fn is_lost(&self) -> bool {
        !self.kernel.is_whole()
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // In a forked child the descriptor still stands for main's memory: taking the range off
        // there would blind main.
        if self.kernel.is_ours() {
            // The range may be unmapped already, which ended the tracking as well: nothing is left
            // to do then.
            let _ =
                self.kernel.uffd.get().and_then(|uffd| uffd.unregister(self.shape.base.get(), self.shape.len.get()));
        }
    }
}
