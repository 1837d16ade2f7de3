//! The bounded queue of events that were posted to a slot: many posters, one taker (the thread that
//! holds the claim).
//!
//! It lies in the control part, which every member can write. A wrong word there loses or delays
//! events; no loop here depends on one for its end, and no index is used unmasked.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Events that wait at most; more are dropped and counted.
pub const WAITING: usize = 32;
/// Attempts against other posters before an event counts as lost.
const ATTEMPTS: usize = 64;

/// One event. `turn` is twice the lap while the cell is free, one more while it is taken.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Cell {
    turn: AtomicU64,
    kind: AtomicU64,
    value: AtomicU64,
    call: AtomicU64,
}

/// The queue. All zeros is an empty one.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Queue {
    put: AtomicU64,
    taken: AtomicU64,
    /// Events dropped since the last one that was taken.
    lost: AtomicU64,
    /// Events dropped so far.
    pub dropped: AtomicU64,
    cells: [Cell; WAITING],
}

/// An event as it waits: its kind, its value, and how many were dropped since the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// [`crate::abi::POSTED`] or another kind.
    pub kind: u32,
    /// The poster's.
    pub value: u64,
    /// Dropped since the one before.
    pub lost: u32,
    /// The call that waits for the end of its run: see [`crate::direct`]; 0: none does.
    pub call: u64,
}

impl Queue {
    fn cell(&self, position: u64) -> (&Cell, u64) {
        (&self.cells[position as usize % WAITING], (position / WAITING as u64).wrapping_mul(2))
    }

    /// Appends an event. False when the queue is full: the event is counted as lost.
    pub fn put(&self, kind: u32, value: u64) -> bool {
        self.put_for(kind, value, 0).is_some()
    }

    /// As [`Queue::put`], for a call; answers the event's position.
    pub fn put_for(&self, kind: u32, value: u64, call: u64) -> Option<u64> {
        for _ in 0..ATTEMPTS {
            let position = self.put.load(Acquire);
            let (cell, free) = self.cell(position);
            let turn = cell.turn.load(Acquire);
            if turn < free {
                break;
            }
            if turn != free || self.put.compare_exchange(position, position.wrapping_add(1), AcqRel, Relaxed).is_err() {
                continue;
            }
            cell.kind.store(u64::from(kind), Relaxed);
            cell.value.store(value, Relaxed);
            cell.call.store(call, Relaxed);
            cell.turn.store(free.wrapping_add(1), Release);
            return Some(position);
        }
        self.lost.fetch_add(1, Relaxed);
        self.dropped.fetch_add(1, Relaxed);
        None
    }

    /// Whether an event was taken.
    pub fn has_taken(&self, position: u64) -> bool {
        let (cell, free) = self.cell(position);
        cell.turn.load(Acquire) >= free.wrapping_add(2)
    }

    /// Whether an event waits.
    pub fn is_waiting(&self) -> bool {
        let position = self.taken.load(Acquire);
        let (cell, free) = self.cell(position);
        cell.turn.load(Acquire) == free.wrapping_add(1)
    }

    /// Takes the oldest event. Only the thread that holds the slot's claim calls it.
    pub fn take(&self) -> Option<Waiting> {
        let position = self.taken.load(Acquire);
        let (cell, free) = self.cell(position);
        if cell.turn.load(Acquire) != free.wrapping_add(1) {
            return None;
        }
        let (kind, value) = (cell.kind.load(Relaxed) as u32, cell.value.load(Relaxed));
        let call = cell.call.load(Relaxed);
        cell.turn.store(free.wrapping_add(2), Release);
        self.taken.store(position.wrapping_add(1), Release);
        let lost = self.lost.swap(0, Relaxed).min(u64::from(u32::MAX)) as u32;
        Some(Waiting { kind, value, lost, call })
    }
}

#[cfg(test)]
mod tests {
    use super::{Queue, WAITING, Waiting};

    #[test]
    fn an_event_was_taken_from_then_on() {
        let queue = Queue::default();
        let position = queue.put_for(2, 7, 9).expect("room");
        assert!(!queue.has_taken(position));
        assert_eq!(queue.take(), Some(Waiting { kind: 2, value: 7, lost: 0, call: 9 }));
        for _ in 0..3 * WAITING {
            assert!(queue.has_taken(position));
            queue.put(2, 1);
            assert!(queue.has_taken(position));
            queue.take();
        }
    }

    #[test]
    fn events_come_in_order_and_what_does_not_fit_is_counted() {
        let queue = Queue::default();
        for lap in 0..5u64 {
            assert!(!queue.is_waiting() && queue.take().is_none());
            for nth in 0..WAITING as u64 + 3 {
                assert_eq!(queue.put(2, lap * 100 + nth), nth < WAITING as u64);
            }
            for nth in 0..WAITING as u64 {
                let lost = if nth == 0 { 3 } else { 0 };
                assert_eq!(queue.take(), Some(Waiting { kind: 2, value: lap * 100 + nth, lost, call: 0 }));
            }
        }
    }

    #[test]
    fn wild_words_end_no_loop() {
        use core::sync::atomic::Ordering::Relaxed;
        let queue = Queue::default();
        for (put, taken, turn) in [(u64::MAX, 0, 7), (0, u64::MAX, u64::MAX), (5, 3, 1), (1 << 63, 1 << 63, 0)] {
            queue.put.store(put, Relaxed);
            queue.taken.store(taken, Relaxed);
            queue.cells.iter().for_each(|cell| cell.turn.store(turn, Relaxed));
            for _ in 0..100 {
                queue.put(2, 1);
                queue.take();
            }
        }
    }
}
