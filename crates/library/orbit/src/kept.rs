//! Updates that synchronous calls brought: nobody has a future of such a call, so they wait here,
//! at their orbit, for [`Orbit::pull`](crate::Orbit::pull).
//!
//! A program that never pulls does not grow by it: at most [`MOST_BYTES`] wait, or one update if it
//! alone is larger; the oldest are dropped for newer ones, and counted.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use crate::update::Update;

/// Bytes of updates that wait, as they are encoded.
pub const MOST_BYTES: usize = 1 << 20;

/// The updates that wait at one orbit, the oldest first.
pub(crate) struct Kept {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// With the bytes of each.
    updates: VecDeque<(Update, usize)>,
    /// The sum of those.
    bytes: usize,
    dropped: u64,
}

impl Kept {
    pub fn new() -> Kept {
        Kept { state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Keeps one more.
    pub fn add(&self, update: Update) {
        let mut state = self.lock();
        let bytes = update.encoded_bytes();
        while !state.updates.is_empty() && state.bytes + bytes > MOST_BYTES {
            if let Some((_, oldest)) = state.updates.pop_front() {
                state.bytes -= oldest;
                state.dropped += 1;
            }
        }
        state.bytes += bytes;
        state.updates.push_back((update, bytes));
    }

    /// Takes the oldest.
    pub fn take(&self) -> Option<Update> {
        let mut state = self.lock();
        let (update, bytes) = state.updates.pop_front()?;
        state.bytes -= bytes;
        Some(update)
    }

    /// Updates dropped so far.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_and_are_counted() {
        let kept = Kept::new();
        let of = |byte: u8, len: usize| {
            let mut update = Update::new();
            update.data(&vec![byte; len]);
            update
        };
        let first = |kept: &Kept| kept.take().and_then(|u| u.first_data().map(|data| data[0]));
        for byte in 0..8 {
            kept.add(of(byte, 300 << 10));
        }
        assert_eq!(kept.dropped(), 5);
        assert_eq!([first(&kept), first(&kept), first(&kept), first(&kept)], [Some(5), Some(6), Some(7), None]);
        kept.add(of(1, 10));
        kept.add(of(2, 2 * MOST_BYTES));
        assert_eq!((first(&kept), kept.dropped()), (Some(2), 6), "one that is larger than all is kept alone");
        kept.add(of(3, 10));
        assert_eq!((first(&kept), first(&kept)), (Some(3), None), "and what it took is free again");
    }
}
