//! The `track` engine: the kernel notes which pages are written (`userfaultfd` in asynchronous write-protect mode), and
//! `PAGEMAP_SCAN` fetches the note and protects the page again in one step.
//!
//! A page is protected before it is copied, so a write during the copy is noted for the next harvest. A page that was never
//! protected counts as written. Hot pages are left out of the scan and always reported, see [`super::hot`].

use super::super::fault;
use super::super::pages::PageRuns;
use super::hot::Hot;
use super::kernel::Kernel;
use std::io;
use std::sync::Arc;

/// Pages that one scan call covers: 64 MiB.
const STEP: usize = 16 << 10;

/// One registered range.
#[derive(Debug)]
pub(super) struct Written {
    kernel: Arc<Kernel>,
    base: usize,
    len: usize,
    page: usize,
    hot: Hot,
    /// Room for what a scan finds, kept between harvests.
    found: Vec<(usize, usize)>,
}

impl Written {
    /// Registers the range. Every page counts as written until the first harvest.
    pub fn new(kernel: Arc<Kernel>, base: usize, len: usize, page: usize) -> io::Result<Self> {
        kernel.uffd.register_wp(base, len)?;
        Ok(Written { kernel, base, len, page, hot: Hot::default(), found: Vec::new() })
    }

    /// Adds written pages of the first `used` to `out`, without protecting, until `stop_after` are found.
    pub fn peek(&mut self, used: usize, stop_after: usize, out: &mut PageRuns) -> io::Result<()> {
        self.found.clear();
        self.kernel.pagemap.scan_written(
            self.base,
            self.base + used * self.page,
            false,
            stop_after,
            &mut self.found,
        )?;
        for &(start, end) in &self.found {
            out.push((start - self.base) / self.page, (end - start) / self.page);
        }
        for (first, count) in self.hot.runs() {
            out.push(first, count.min(used.saturating_sub(first)));
        }
        Ok(())
    }

    /// Adds the written pages of the first `used` to `pending` and protects them. After an error `pending` has all pages
    /// that may have lost their note.
    pub fn harvest(&mut self, used: usize, pending: &mut PageRuns) -> io::Result<()> {
        self.hot.begin();
        let hot: Vec<_> = self.hot.runs().collect();
        let mut from = 0;
        for (first, count) in hot {
            if first >= used {
                break;
            }
            self.scan(from, first, pending)?;
            from = (first + count).min(used);
            pending.push(first, from - first);
        }
        self.scan(from, used, pending)?;
        self.hot.learn(pending);
        Ok(())
    }

    /// Scans pages `from..to` in steps.
    fn scan(&mut self, mut from: usize, to: usize, pending: &mut PageRuns) -> io::Result<()> {
        let step = fault::step(STEP);
        while from < to {
            let until = (from + step).min(to);
            fault::check()?;
            self.found.clear();
            let (start, end) = (self.base + from * self.page, self.base + until * self.page);
            let status = self.kernel.pagemap.scan_written(start, end, true, 0, &mut self.found);
            if let Err(error) = status {
                // The kernel may have protected pages whose ranges it did not hand over: all of the step counts as written.
                pending.push(from, until - from);
                return Err(error);
            }
            for &(start, end) in &self.found {
                pending.push((start - self.base) / self.page, (end - start) / self.page);
            }
            from = until;
        }
        Ok(())
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // In a forked child the descriptor still stands for main's memory: taking the range off there would blind main.
        if self.kernel.is_ours() {
            // The range may be unmapped already, which ended the tracking as well: nothing is left to do then.
            let _ = self.kernel.uffd.unregister(self.base, self.len);
        }
    }
}
