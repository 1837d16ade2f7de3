//! Copies pages past the caches.
//!
//! A large delta finds neither its source nor its target in a cache, and main will not read the
//! target again. Streaming stores spare the memory the read of every line before it is overwritten,
//! and asking for the next page while this one is copied hides that it lies elsewhere: 340 to 450
//! ns a page against 460 to 570 by plain copying (64 pages and more of 64 MiB). A small delta is
//! better off plain: the orbit then finds it in a cache.

use crate::page::PAGE;
use crate::units::Pages;

/// From so many pages on (256 KiB) streaming pays.
pub(crate) const WORTH_IT: Pages = Pages::new(64);

/// Copies whole pages from the first to the second of each pair. Other processes see the pages once
/// this has returned and a word was stored that says so.
///
/// # Safety
/// Each source is readable and each target writable for [`PAGE`] bytes, both are aligned to 16
/// bytes, and no target overlaps a source. The source may change meanwhile: then the target holds
/// any mixture.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn copy_pages(mut pages: impl Iterator<Item = (*const u8, *mut u8)>) {
    use std::arch::x86_64::{__m128i, _MM_HINT_T0, _mm_load_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    let mut next = pages.next();
    while let Some((from, to)) = next {
        next = pages.next();
        let ahead = next.map_or(from, |(from, _)| from);
        for at in (0..PAGE).step_by(LINE) {
            // SAFETY: `at` plus a line lies within the page; the caller promises access and
            // alignment. A prefetch never faults.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(ahead.add(at).cast());
                let (from, to) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
                let line = [0, 1, 2, 3].map(|i| _mm_load_si128(from.add(i)));
                for (i, part) in line.into_iter().enumerate() {
                    _mm_stream_si128(to.add(i), part);
                }
            }
        }
    }
    // Streaming stores are not ordered with the store that announces them.
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { _mm_sfence() };
}

/// The same where streaming stores are not known: plain.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy_pages(pages: impl Iterator<Item = (*const u8, *mut u8)>) {
    for (from, to) in pages {
        // SAFETY: as the caller promises.
        unsafe { std::ptr::copy_nonoverlapping(from, to, PAGE) };
    }
}

/// Copies whole pages through the caches by one instruction in place: a call of libc's `memcpy`
/// runs through further lines and pages of code, which cost more than they save where these are
/// cold.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`] for `bytes` bytes, a multiple of 8. The source may change
/// meanwhile.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn copy_plainly(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise; the direction flag is clear, as the ABI has it.
    unsafe {
        std::arch::asm!(
            "rep movsq",
            inout("rcx") bytes / 8 => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Copies a few whole pages that no cache has any more, in place too, and past the caches, both
/// halves side by side, so that more lines are on their way at a time: 16 pages after a sleep of
/// 1.5 or 10 ms take 4 to 5 us, by [`copy_plainly`] 8.
///
/// # Safety
/// As [`copy_plainly`], for a multiple of 128 bytes; both are aligned to 16 bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn copy_cold(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_load_si128, _mm_sfence, _mm_stream_si128};
    let half = bytes / 2;
    let mut at = 0;
    while at < half {
        for at in [at, half + at] {
            // SAFETY: a line lies within the range; the caller promises access and alignment.
            unsafe {
                let (from, to) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
                let line = [0, 1, 2, 3].map(|i| _mm_load_si128(from.add(i)));
                for (i, part) in line.into_iter().enumerate() {
                    _mm_stream_si128(to.add(i), part);
                }
            }
        }
        at += 64;
    }
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { _mm_sfence() };
}

/// The same elsewhere.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) unsafe fn copy_cold(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_plainly(from, to, bytes) };
}

/// The same as the first elsewhere.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) unsafe fn copy_plainly(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(4096))]
    struct Page([u8; PAGE]);

    #[test]
    fn pages_arrive_whole_and_where_they_belong() {
        let from: Vec<Page> = (0..5u8).map(|n| Page(std::array::from_fn(|at| n ^ ((at * 7) >> 3) as u8))).collect();
        let mut to: Vec<Page> = (0..5).map(|_| Page([0xee; PAGE])).collect();
        let order = [3, 0, 4];
        let base = to.as_mut_ptr();
        // SAFETY: pages of two vectors that live through the call.
        unsafe { copy_pages(order.iter().map(|&n| (from[n].0.as_ptr(), base.add(n).cast()))) };
        for n in 0..5 {
            let expected = if order.contains(&n) { from[n].0 } else { [0xee; PAGE] };
            assert!(to[n].0 == expected, "page {n}");
        }
        // SAFETY: nothing is copied.
        unsafe { copy_pages(std::iter::empty()) };
        // SAFETY: pages 1 and 2 of two vectors.
        unsafe { copy_plainly(from.as_ptr().add(1).cast(), base.add(1).cast(), 2 * PAGE) };
        assert!((0..5).all(|n| to[n].0 == from[n].0));
        to[2..].iter_mut().for_each(|page| page.0.fill(0));
        // SAFETY: pages 2 to 4 of two vectors.
        unsafe { copy_cold(from.as_ptr().add(2).cast(), to.as_mut_ptr().add(2).cast(), 3 * PAGE) };
        assert!((0..5).all(|n| to[n].0 == from[n].0));
    }
}
