//! The `compare` engine: finds changed pages by comparing with a shadow of what was last harvested.
//! Works everywhere.
//!
//! The shadow is also what a snapshot copies from: a page that changes while it is being copied
//! then differs from the shadow and is found by the next harvest. So no protection is needed, and
//! nothing can be lost, at the price of reading every page. The C library's `memcmp` picks the
//! widest instructions the processor has.

use super::super::fault;
use super::super::pages::PageRuns;
use orbit_linux::map::{self, Mapping};
use std::io;

/// The shadow of one area.
#[derive(Debug)]
pub(super) struct Compare {
    base: usize,
    page: usize,
    shadow: Mapping,
}

impl Compare {
    /// A shadow, all zeros, for the `len` bytes at `base`. Only address space until pages are
    /// harvested.
    pub fn new(base: usize, len: usize, page: usize) -> io::Result<Self> {
        let shadow = Mapping::reserve(len)?;
        // SAFETY: the range is the mapping just made; nobody has a reference into it.
        unsafe { map::protect(shadow.addr(), len, libc::PROT_READ | libc::PROT_WRITE)? };
        Ok(Compare { base, page, shadow })
    }

    fn differs(&self, page: usize) -> bool {
        let at = page * self.page;
        // SAFETY: both ranges are mapped and readable for a page from `at` on (the tracker asks for
        // pages below its limit only). Other threads may write to the area meanwhile: the C
        // function then answers either way, and a page that reads as equal and changes after that
        // is found by the next comparison.
        unsafe {
            libc::memcmp((self.base + at) as *const _, self.shadow.as_ptr().add(at).cast_const().cast(), self.page) != 0
        }
    }

    /// Brings the shadow of `count` pages from `first` on up to date.
    fn refresh(&mut self, first: usize, count: usize) {
        let at = first * self.page;
        // SAFETY: as in `differs`; the ranges do not overlap, and the shadow is this value's own.
        // Bytes torn by a writer beside us differ from the area afterwards, and so are found again.
        unsafe {
            libc::memcpy(self.shadow.as_ptr().add(at).cast(), (self.base + at) as *const _, count * self.page);
        }
    }

    /// Adds differing pages of the first `used` to `out`, until `stop_after` are found.
    pub fn peek(&self, used: usize, stop_after: usize, out: &mut PageRuns) {
        for page in (0..used).filter(|&page| self.differs(page)).take(stop_after) {
            out.push(page, 1);
        }
    }

    /// Adds every differing page of the first `used` to `pending`, and takes all of `pending` into
    /// the shadow.
    pub fn harvest(&mut self, used: usize, pending: &mut PageRuns) -> io::Result<()> {
        let step = fault::step(usize::MAX);
        let mut from = 0;
        while from < used {
            let to = from.saturating_add(step).min(used);
            // No system call is made here; the point stands for what would be one in another
            // engine.
            fault::check()?;
            for page in from..to {
                if self.differs(page) {
                    pending.push(page, 1);
                    self.refresh(page, 1);
                }
            }
            from = to;
        }
        Ok(())
    }

    /// Takes pages that are reported for another reason into the shadow as well.
    pub fn adopt(&mut self, runs: &PageRuns) {
        for (first, count) in runs.iter() {
            self.refresh(first, count);
        }
    }

    /// Where the harvested content of `page` lies.
    pub fn source(&self, page: usize) -> *const u8 {
        // SAFETY: the tracker asks for pages below its limit only, and the shadow is that long.
        unsafe { self.shadow.as_ptr().add(page * self.page).cast_const() }
    }
}
