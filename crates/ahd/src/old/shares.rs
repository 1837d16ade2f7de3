//! CPU time that a thread got while another one waited for it.
//!
//! Owns: a book for each wait and holder, opened when it is first asked about. Promises: what a holder used before the wait began
//! is never counted: a wait ends when the waiter is put on a CPU, which its count of slices shows. Refuses: to read anything.

use crate::old::proc::Sched;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
struct Book {
    /// Times the waiter had been put on a CPU: another number is another wait.
    slices: u64,
    /// CPU time the holder had used when it was first asked about, ns.
    run: u64,
}

/// The books, by waiter and holder.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    books: BTreeMap<(i32, i32), Book>,
}

impl Shares {
    /// CPU time, ns, that the holder has got since this wait for it was first asked about.
    pub(crate) fn got(&mut self, waiter: (i32, Sched), holder: (i32, Sched)) -> u64 {
        let ((tid, waits), (held_by, now)) = (waiter, holder);
        let fresh = Book { slices: waits.slices, run: now.run };
        let book = self.books.entry((tid, held_by)).or_insert(fresh);
        if book.slices != waits.slices {
            *book = fresh;
        }
        now.run.saturating_sub(book.run)
    }

    /// Drops the books of waits that are over; `slices` of a waiter, if it is there.
    pub(crate) fn keep_up(&mut self, slices: impl Fn(i32) -> Option<u64>) {
        self.books.retain(|&(waiter, _), book| slices(waiter) == Some(book.slices));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(run: u64, slices: u64) -> Sched {
        Sched { run, wait: 0, slices }
    }

    #[test]
    fn holds_that_are_over_are_not_added_up() {
        let mut shares = Shares::default();
        for hold in 0..100 {
            // Each time the waiter has had the lock in between.
            assert_eq!(shares.got((1, at(0, hold)), (2, at(hold * 400, 0))), 0);
            assert_eq!(shares.got((1, at(0, hold)), (2, at(hold * 400 + 300, 0))), 300);
        }
        assert_eq!(shares.got((1, at(0, 99)), (2, at(99 * 400 + 1000, 0))), 1000, "one long hold");
        assert_eq!(shares.got((1, at(0, 99)), (3, at(5000, 0))), 0, "another holder");
        assert_eq!(shares.got((4, at(0, 7)), (2, at(90_000, 0))), 0, "another waiter");
    }

    #[test]
    fn only_waits_that_last_are_kept() {
        let mut shares = Shares::default();
        for waiter in 0..4 {
            shares.got((waiter, at(0, 5)), (9, at(0, 0)));
        }
        shares.keep_up(|waiter| (waiter < 3).then_some(if waiter == 1 { 6 } else { 5 }));
        assert_eq!(shares.books.keys().map(|k| k.0).collect::<Vec<_>>(), [0, 2]);
    }
}
