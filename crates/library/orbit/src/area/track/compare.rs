//! The `compare` engine: finds changed pages by comparing with a shadow of what was last harvested.
//! Works everywhere.
//!
//! The shadow is also what a snapshot copies from: a page that changes while it is being copied
//! then differs from the shadow and is found by the next harvest. So no protection is needed, and
//! nothing can be lost, at the price of reading every page. The C library's `memcmp` picks the
//! widest instructions the processor has.

use super::super::fault;
use super::super::pages::PageRuns;
use crate::units::{Address, Bytes, Page, Pages};
use orbit_linux::map::{self, Mapping};
use std::io;

/// The shadow of one area.
#[derive(Debug)]
pub(super) struct Compare {
    base: Address,
    page: Bytes,
    shadow: Mapping,
}

impl Compare {
    /// A shadow, all zeros, for the `len` bytes at `base`. Only address space until pages are
    /// harvested.
    pub fn new(base: Address, len: Bytes, page: Bytes) -> io::Result<Self> {
        let shadow = Mapping::reserve(len.get())?;
        // SAFETY: the range is the mapping just made; nobody has a reference into it.
        unsafe { map::protect(shadow.addr(), len.get(), libc::PROT_READ | libc::PROT_WRITE)? };
        Ok(Compare { base, page, shadow })
    }

    /// Where a page lies: in the area, and in the shadow.
    fn places(&self, page: Page) -> (*const libc::c_void, *mut libc::c_void) {
        let at = page.offset(self.page);
        ((self.base + at).pointer().cast_const().cast(), self.shadow.as_ptr().wrapping_add(at.get()).cast())
    }

    fn differs(&self, page: Page) -> bool {
        let (area, shadow) = self.places(page);
        // SAFETY: both ranges are mapped and readable for a page from `at` on (the tracker asks for
        // pages below its limit only). Other threads may write to the area meanwhile: the C
        // function then answers either way, and a page that reads as equal and changes after that
        // is found by the next comparison.
        unsafe { libc::memcmp(area, shadow, self.page.get()) != 0 }
    }

    /// Brings the shadow of `count` pages from `first` on up to date.
    fn refresh(&mut self, first: Page, count: Pages) {
        let (area, shadow) = self.places(first);
        // SAFETY: as in `differs`; the ranges do not overlap, and the shadow is this value's own.
        // Bytes torn by a writer beside us differ from the area afterwards, and so are found again.
        unsafe { libc::memcpy(shadow, area, count.bytes(self.page).get()) };
    }

    /// Adds differing pages below `used` to `out`, until `stop_after` are found.
    pub fn peek(&self, used: Page, stop_after: Pages, out: &mut PageRuns) {
        for page in Page::ZERO.until(used).filter(|&page| self.differs(page)).take(stop_after.get()) {
            out.push(page, Pages::ONE);
        }
    }

    /// Adds every differing page below `used` to `pending`, and takes all of `pending` into
    /// the shadow.
    pub fn harvest(&mut self, used: Page, pending: &mut PageRuns) -> io::Result<()> {
        let step = fault::step(Pages::MAX);
        let mut from = Page::ZERO;
        while from < used {
            let to = from + step.min(used - from);
            // No system call is made here; the point stands for what would be one in another
            // engine.
            fault::check()?;
            for page in from.until(to) {
                if self.differs(page) {
                    pending.push(page, Pages::ONE);
                    self.refresh(page, Pages::ONE);
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
    pub fn source(&self, page: Page) -> *const u8 {
        self.places(page).1.cast_const().cast()
    }
}
