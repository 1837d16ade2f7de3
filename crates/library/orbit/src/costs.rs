//! What copying a page and cloning main cost on this machine, learnt from what they took; decides
//! whether a large snapshot is copied by main or held by a clone of main (see [`crate::copier`]).
//!
//! The estimates start from what was measured on one machine and follow what is seen: half-way to
//! each observation, which counts for at most four times the estimate, or a quarter of it, since a
//! thread may be delayed for any time. Losing a race between two threads loses an observation and
//! nothing else.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use orbit_linux::procfs;

use crate::units::Pages;

/// An estimate, nanoseconds a page.
struct Estimate(AtomicU32);

impl Estimate {
    fn now(&self) -> u64 {
        u64::from(self.0.load(Ordering::Relaxed))
    }

    fn see(&self, ns: u64, pages: Pages) {
        let now = self.now();
        let seen = (ns / pages.get().max(1) as u64).clamp(now / 4, now * 4);
        self.0.store(((now + seen) / 2).clamp(8, 100_000) as u32, Ordering::Relaxed);
    }
}

/// Copying a page into a replica, pages by the hundred.
static COPY: Estimate = Estimate(AtomicU32::new(500));
/// Cloning main, for each page it has mapped, on top of [`CLONE_NS`].
static CLONE: Estimate = Estimate(AtomicU32::new(40));
/// Cloning a process with next to no memory, nanoseconds.
const CLONE_NS: u64 = 250_000;
/// Fewer pages say nothing of the many.
const ENOUGH_PAGES: Pages = Pages::new(256);

/// Runs what copies so many pages, and learns from it if it is `usual`.
pub(crate) fn copying<R>(pages: Pages, usual: bool, copy: impl FnOnce() -> R) -> R {
    if pages < ENOUGH_PAGES || !usual {
        return copy();
    }
    let began = Instant::now();
    let copied = copy();
    COPY.see(began.elapsed().as_nanos() as u64, pages);
    copied
}

/// Main was cloned.
pub(crate) fn cloned(took: Duration) {
    CLONE.see((took.as_nanos() as u64).saturating_sub(CLONE_NS), mapped_pages());
}

/// The number of pages from which a clone of main delays it less than copying the pages.
pub(crate) fn copier_pays_from(used: Pages) -> Pages {
    let clone = CLONE_NS + mapped_pages().max(used).get() as u64 * CLONE.now();
    Pages::new((clone / COPY.now()).max(1) as usize)
}

/// Pages that main has mapped, as of a fifth of a second ago at most; asking takes 20 us.
fn mapped_pages() -> Pages {
    static KNOWN: Mutex<Option<(Instant, Pages)>> = Mutex::new(None);
    let ask = || {
        let statm = procfs::own_text("statm").ok();
        statm.and_then(|s| s.split_ascii_whitespace().nth(1)?.parse().ok()).map_or(Pages::new(1 << 18), Pages::new)
    };
    // In a forked child it may be held for ever.
    let Ok(mut known) = KNOWN.try_lock() else { return ask() };
    match *known {
        Some((at, pages)) if at.elapsed() < Duration::from_millis(200) => pages,
        _ => {
            let pages = ask();
            *known = Some((Instant::now(), pages));
            pages
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_follows_what_is_seen_and_no_outlier_carries_it_away() {
        let estimate = Estimate(AtomicU32::new(500));
        estimate.see(500_000_000, Pages::new(1000));
        assert_eq!(estimate.now(), 1250, "one stall counts for four times the estimate");
        for _ in 0..20 {
            estimate.see(300_000, Pages::new(1000));
        }
        assert!((295..=305).contains(&estimate.now()), "{}", estimate.now());
        for _ in 0..100 {
            estimate.see(0, Pages::ZERO);
        }
        assert_eq!(estimate.now(), 8);
        estimate.see(u64::MAX, Pages::ONE);
        assert_eq!(estimate.now(), 20);
    }
}
