//! Which pages of new anonymous memory were ever touched: the others read as zeros.
//!
//! A page that write-protection has reached before anything else holds only the kernel's marker, which `pagemap` shows as
//! swapped out. `mincore` tells it from a page that is there; it cannot tell it from one that really is swapped out, so
//! where there is swap the answer is "not known".

use super::pages::PageRuns;

/// Pages asked for in one call.
const STEP: usize = 4096;

/// Adds the touched ones of `count` pages, `page` bytes each, from number `first` of the memory at `base` on. False if it
/// cannot be known; `out` is as before then.
pub(super) fn touched(base: usize, page: usize, first: usize, count: usize, out: &mut PageRuns) -> bool {
    let mut found = PageRuns::new();
    let mut there = [0u8; STEP];
    let mut from = first;
    while from < first + count {
        let pages = STEP.min(first + count - from);
        let at = std::ptr::without_provenance_mut(base + from * page);
        // SAFETY: the call writes a byte for each page of the range, and the array has as many.
        if unsafe { libc::mincore(at, pages * page, there.as_mut_ptr()) } != 0 {
            return false;
        }
        for (number, _) in there[..pages].iter().enumerate().filter(|(_, byte)| *byte & 1 == 1) {
            found.push(from + number, 1);
        }
        from += pages;
    }
    // Last, so that nothing was swapped out while we looked.
    if has_swap() {
        return false;
    }
    out.extend(&found);
    true
}

fn has_swap() -> bool {
    // SAFETY: an all-zero sysinfo is valid, and the call only writes it.
    unsafe {
        let mut info: libc::sysinfo = std::mem::zeroed();
        libc::sysinfo(&mut info) != 0 || info.totalswap != 0
    }
}
