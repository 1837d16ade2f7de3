//! Which pages of new anonymous memory were ever touched: the others read as zeros.
//!
//! A page that write-protection has reached before anything else holds only the kernel's marker,
//! which `pagemap` shows as swapped out. `mincore` distinguishes it from a page that is there, but
//! not from one that really is swapped out, so where there is swap the answer is "not known".

use super::pages::PageRuns;
use crate::units::{Address, Bytes, Page, Pages};
use orbit_linux::{host, map};

/// Pages asked for in one call.
const PAGES_PER_CALL: Pages = Pages::new(4096);

/// Adds the touched ones of `count` pages, `page` bytes each, from number `first` of the memory at
/// `base` on. False if it cannot be known; `out` is as before then.
pub(super) fn touched(base: Address, page: Bytes, first: Page, count: Pages, out: &mut PageRuns) -> bool {
    let mut found = PageRuns::new();
    let mut there = [0u8; PAGES_PER_CALL.get()];
    let mut from = first;
    while from < first + count {
        let pages = PAGES_PER_CALL.min(first + count - from);
        let there = &mut there[..pages.get()];
        if map::present((base + from.offset(page)).get(), pages.bytes(page).get(), there).is_err() {
            return false;
        }
        for (number, _) in there.iter().enumerate().filter(|(_, byte)| **byte & 1 == 1) {
            found.push(from + Pages::new(number), Pages::ONE);
        }
        from += pages;
    }
    // Last, so that nothing was swapped out during the scan.
    if host::has_swap() {
        return false;
    }
    out.extend(&found);
    true
}
