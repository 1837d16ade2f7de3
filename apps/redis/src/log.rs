//! The slow log itself: the newest entries, taken from the ring. It is the state of the auxiliary
//! task, and lives in the orbit, or in Redis where the task runs inside.

use std::collections::VecDeque;

use crate::record::Entry;
use crate::ring::Span;

/// What a hand-over says beside the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handover {
    /// Where the entries are.
    pub span: Span,
    /// Entries older than this id were reset.
    pub reset_before: u64,
    /// Most entries to keep.
    pub max_len: u64,
}

impl Handover {
    /// As words for a call's arguments.
    pub fn words(&self) -> [u64; 6] {
        let Span { base, capacity, tail, head } = self.span;
        [base as u64, capacity as u64, tail, head, self.reset_before, self.max_len]
    }

    /// Back from words.
    pub fn from_words([base, capacity, tail, head, reset_before, max_len]: [u64; 6]) -> Handover {
        let span = Span { base: base as usize, capacity: capacity as usize, tail, head };
        Handover { span, reset_before, max_len }
    }
}

/// The log.
#[derive(Default)]
pub struct Log {
    entries: VecDeque<Entry>,
    /// Position in the ring up to which it was read.
    read_to: u64,
}

impl Log {
    /// Takes in what is new in the ring, and lets go of what is too old.
    ///
    /// # Safety
    /// As [`Span::read`].
    pub unsafe fn take_in(&mut self, handover: &Handover) {
        // SAFETY: the caller's promise.
        unsafe {
            handover.span.read(self.read_to, |mut bytes| {
                if let Some(entry) = Entry::decode(&mut bytes) {
                    self.entries.push_back(entry);
                }
            });
        }
        self.read_to = handover.span.head;
        while self.entries.len() as u64 > handover.max_len
            || self.entries.front().is_some_and(|e| e.id < handover.reset_before)
        {
            self.entries.pop_front();
        }
    }

    /// Entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The newest entries, the newest first, at most `count`.
    pub fn newest(&self, count: usize) -> impl Iterator<Item = &Entry> {
        self.before(u64::MAX).take(count)
    }

    /// Entries older than this id, the newest first.
    pub fn before(&self, id: u64) -> impl Iterator<Item = &Entry> {
        self.entries.range(..self.entries.partition_point(|entry| entry.id < id)).rev()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Draft;
    use crate::ring::Ring;

    #[test]
    fn keeps_the_newest_and_forgets_what_was_reset() {
        let mut memory = vec![0u64; 1024];
        let capacity = memory.len() * 8;
        // SAFETY: the vector outlives the ring and is used through it alone.
        let mut ring = unsafe { Ring::new(memory.as_mut_ptr().cast(), capacity) };
        let mut log = Log::default();
        let mut draft = Draft::default();
        let mut note = |ring: &mut Ring| {
            draft.begin(1, 2, b"", b"");
            draft.set_id(ring.next());
            draft.argument(b"PING");
            ring.push(draft.bytes());
        };
        let take_in = |log: &mut Log, ring: &Ring, reset_before, max_len| {
            let handover = Handover { span: ring.span(), reset_before, max_len };
            assert_eq!(Handover::from_words(handover.words()), handover);
            // SAFETY: nothing is pushed meanwhile.
            unsafe { log.take_in(&handover) };
        };
        for _ in 0..10 {
            note(&mut ring);
        }
        take_in(&mut log, &ring, 0, 4);
        assert_eq!(log.newest(9).map(|e| e.id).collect::<Vec<_>>(), [9, 8, 7, 6]);
        note(&mut ring);
        take_in(&mut log, &ring, 9, 4);
        take_in(&mut log, &ring, 9, 4);
        assert_eq!(log.newest(9).map(|e| e.id).collect::<Vec<_>>(), [10, 9]);
        assert_eq!((log.len(), log.newest(1).count()), (2, 1));
        let before = |id| log.before(id).map(|e| e.id).collect::<Vec<_>>();
        assert_eq!((before(11), before(10), before(9)), (vec![10, 9], vec![9], vec![]));
    }
}
