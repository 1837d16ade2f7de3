//! The table that the recorder in the program fills (`side/record.c` has the same layout).
//!
//! Owns the shared memory. Promises: nothing that the program writes there is used as an index, a
//! length or an address of this process without a check. Words are read one by one: the program may
//! write them meanwhile.

use orbit_linux::map::Mapping;
use orbit_linux::memfd;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Frames kept of a stack.
const FRAMES: usize = 32;
/// Addresses that are known at the same time.
const SLOTS: usize = 1 << 20;
const EVENTS: usize = 1 << 12;
/// Bytes of a slot, and of an event.
const SLOT: usize = 32 + 8 * FRAMES;
const EVENT: usize = 24;
const RING_AT: usize = 128;
const INDEX_AT: usize = RING_AT + EVENTS * EVENT;
const SLOTS_AT: usize = INDEX_AT + SLOTS * 4;
const LEN: usize = SLOTS_AT + SLOTS * SLOT;

/// The words of its head.
#[derive(Clone, Copy)]
pub(crate) enum Word {
    /// The recorder's idea of the table's length, once it is ready.
    Ready,
    /// Set by the tracer.
    Go,
    /// Address of the recorder's mode.
    Mode,
    /// Address of a system call instruction with a breakpoint behind it.
    Gate,
    /// Allocations that found no slot.
    Lost,
    /// Events of the copy so far; ahead of it is the recorder's own clock.
    Events = 6,
    /// The copy is in the allocator.
    Inside,
    /// Slots in use.
    Used,
}

/// The recorder's mode in the copy.
pub(crate) const MODE_COPY: u64 = 2;

/// An allocation as recorded.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) live: bool,
    /// Order in which it was made, or freed.
    pub(crate) sequence: u64,
    /// Return addresses, innermost first.
    pub(crate) stack: Vec<u64>,
}

/// What the copy did to the heap itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Made { address: u64, size: u64 },
    Freed { address: u64 },
}

pub(crate) struct Table {
    file: OwnedFd,
    memory: Mapping,
}

impl Table {
    pub(crate) fn new() -> io::Result<Table> {
        let file = memfd::create("orbit-analyse", LEN, false)?;
        let memory = Mapping::shared(file.as_fd(), LEN, true, false)?;
        Ok(Table { file, memory })
    }

    /// The name by which the program opens it.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= LEN);
        // SAFETY: inside the mapping, which lives as long as `self` and whose file cannot shrink
        // (sealed by `memfd::create` against new seals, and its descriptor is this process');
        // aligned; the other side accesses it by whole words.
        unsafe { AtomicU64::from_ptr(self.memory.as_ptr().add(at).cast()) }
    }

    fn at(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    pub(crate) fn get(&self, word: Word) -> u64 {
        self.at(word as usize * 8)
    }

    pub(crate) fn set(&self, word: Word, value: u64) {
        self.word(word as usize * 8).store(value, Ordering::Release);
    }

    /// Whether the recorder is there. It must have the same layout.
    pub(crate) fn ready(&self) -> bool {
        self.get(Word::Ready) == LEN as u64
    }

    /// All allocations and freed ones whose slot has not been used again.
    pub(crate) fn records(&self) -> Vec<Record> {
        let used = usize::try_from(self.get(Word::Used)).unwrap_or(SLOTS).min(SLOTS);
        (0..used).filter_map(|i| self.record(i)).collect()
    }

    fn record(&self, i: usize) -> Option<Record> {
        let index = INDEX_AT + i * 4;
        // SAFETY: `i` is below SLOTS, so this is inside the mapping; else as in `word`.
        let slot =
            unsafe { AtomicU32::from_ptr(self.memory.as_ptr().add(index).cast()) }.load(Ordering::Acquire) as usize;
        let at = SLOTS_AT + slot.min(SLOTS - 1) * SLOT;
        let state = self.at(at + 16);
        let depth = usize::try_from(self.at(at + 24)).unwrap_or(0).min(FRAMES);
        let record = Record {
            address: self.at(at),
            size: self.at(at + 8),
            live: state & 3 == 2,
            sequence: state >> 2,
            stack: (0..depth).map(|k| self.at(at + 32 + k * 8)).collect(),
        };
        // Written meanwhile, or not whole yet.
        (state & 3 != 0 && self.at(at + 16) == state && record.address != 0).then_some(record)
    }

    /// The copy's events from `seen` on, which it moves.
    pub(crate) fn events(&self, seen: &mut u64) -> Vec<Event> {
        let now = self.get(Word::Events);
        let from = (*seen).max(now.saturating_sub(EVENTS as u64));
        *seen = now;
        let one = |n: u64| {
            let at = RING_AT + (n % EVENTS as u64) as usize * EVENT;
            let (address, size) = (self.at(at), self.at(at + 8));
            if self.at(at + 16) == 1 { Event::Made { address, size } } else { Event::Freed { address } }
        };
        (from..now).map(one).collect()
    }
}
