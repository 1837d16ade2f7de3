//! What main reads of an orbit's answers. Every word may have been written by an orbit gone mad:
//! each is read once, checked against what main itself knows, and copied; nothing is followed.
//! Nonsense is named, and ends the orbit.

use std::sync::atomic::Ordering;

use orbit_linux::futex;

use crate::channel::{Down, ENDED_NO_IMAGE, ENDED_RETURNED, ENDED_SKIPPED, PUSH_BYTES, SLOTS, Up};
use crate::error::Result;
use crate::update::{self, Update};
use crate::wire::{PUSH_HEADER, PUSH_PIECE};

/// How a call ended, as the orbit says, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    /// What the function returned; none if the call was skipped.
    pub value: Option<i64>,
    /// When, nanoseconds of CLOCK_MONOTONIC, as the orbit says.
    pub at: u64,
}

/// Main's place in the answers of one process.
#[repr(C)]
pub(crate) struct Reader {
    /// Calls that main has seen completed.
    pub completed: u32,
    /// Bytes of updates taken, counted as [`Up::pushed`] counts.
    pulled: u32,
    /// Pieces of an update that is not whole yet, and its call.
    partial: Vec<u8>,
    partial_call: u32,
}

/// What makes no sense, to be read after "the orbit".
pub(crate) type Nonsense = String;

impl Reader {
    pub fn new() -> Reader {
        Reader { completed: 0, pulled: 0, partial: Vec::new(), partial_call: 0 }
    }

    /// A new process pushes from the start; what the old one had half pushed is forgotten.
    pub fn restart(&mut self, down: &Down) {
        (self.pulled, self.partial) = (0, Vec::new());
        down.pulled.store(0, Ordering::Relaxed);
    }

    /// How many of `pending` calls the orbit has completed that main has not yet seen so.
    pub fn newly_completed(&self, up: &Up, pending: usize) -> std::result::Result<usize, Nonsense> {
        let completed = up.completed.load(Ordering::Acquire);
        let count = completed.wrapping_sub(self.completed) as usize;
        if count > pending {
            return Err(format!("counted {completed} calls done"));
        }
        Ok(count)
    }

    /// How the next completed call ended. To be asked once for each of [`Reader::newly_completed`].
    pub fn ending(&mut self, up: &Up) -> std::result::Result<Ending, Nonsense> {
        let number = self.completed;
        let there = &up.endings[(number & (SLOTS - 1)) as usize];
        let (call, kind) = (there.call.load(Ordering::Relaxed), there.kind.load(Ordering::Relaxed));
        let (value, at) = (there.value.load(Ordering::Relaxed), there.at.load(Ordering::Relaxed));
        let value = match kind {
            ENDED_RETURNED if call == number => Some(value),
            ENDED_SKIPPED | ENDED_NO_IMAGE if call == number => None,
            _ => return Err(format!("gave call {number} an ending that makes no sense")),
        };
        self.completed = number.wrapping_add(1);
        Ok(Ending { value, at })
    }

    /// Whether something is in the ring of updates.
    pub fn has_updates(&self, up: &Up) -> bool {
        up.pushed.load(Ordering::Relaxed) != self.pulled
    }

    /// Takes the updates out of the ring: the number of the call each was pushed in, as the orbit
    /// says, and the update, or why it is none.
    pub fn updates(&mut self, up: &Up, down: &Down) -> std::result::Result<Vec<(u32, Result<Update>)>, Nonsense> {
        let pushed = up.pushed.load(Ordering::Acquire);
        let count = pushed.wrapping_sub(self.pulled) as usize;
        if count == 0 {
            return Ok(Vec::new());
        }
        if count > PUSH_BYTES || !count.is_multiple_of(8) {
            return Err(format!("counted {count} bytes of updates in a ring of {PUSH_BYTES}"));
        }
        let start = self.pulled as usize / 8;
        let mut bytes: Vec<u8> = Vec::with_capacity(count);
        for at in start..start + count / 8 {
            bytes.extend_from_slice(&up.push[at & (PUSH_BYTES / 8 - 1)].load(Ordering::Relaxed).to_le_bytes());
        }
        self.pulled = pushed;
        // SeqCst: the orbit stores `push_waits` and then reads this; here it is the other way
        // round.
        down.pulled.store(pushed, Ordering::SeqCst);
        if up.push_waits.load(Ordering::SeqCst) != 0 {
            futex::wake(&down.pulled, i32::MAX);
        }
        let mut found = Vec::new();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (head, more) = rest.split_at_checked(PUSH_HEADER).ok_or("cut an update short")?;
            let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
            let (len, call, unfinished) = (word(0) as usize, word(4), word(8));
            if len > PUSH_PIECE || unfinished > 1 || len.next_multiple_of(8) > more.len() {
                return Err(format!("pushed a piece of {len} bytes"));
            }
            let (piece, after) = more.split_at(len.next_multiple_of(8));
            rest = after;
            if !self.partial.is_empty() && self.partial_call != call {
                return Err("mixed the pieces of two updates".to_owned());
            }
            self.partial_call = call;
            self.partial.extend_from_slice(&piece[..len]);
            if self.partial.len() > update::MAX_BYTES {
                return Err(format!("pushed an update of more than {} bytes", update::MAX_BYTES));
            }
            if unfinished == 0 {
                let whole = std::mem::take(&mut self.partial);
                found.push((call, Update::decode(&whole)));
            }
        }
        Ok(found)
    }
}

pub(crate) mod fuzzing {
    //! Bodies of fuzz targets.
    use super::*;
    use crate::channel::{DownSide, UpSide};
    use std::sync::OnceLock;

    /// Whatever stands in the memory an orbit writes, reading it neither panics, nor runs off, nor
    /// counts a call done that main has not made.
    pub fn queue(data: &[u8]) {
        static SHARED: OnceLock<Option<(DownSide, UpSide)>> = OnceLock::new();
        let made = || Some((DownSide::create(128 << 10).ok()?, UpSide::create().ok()?));
        let Some((down, up)) = SHARED.get_or_init(made) else { return };
        let mut written = Vec::new();
        read_while_it_is_written(data, down, up, &mut written);
        // As at the start: an input that fails must fail alone as well.
        down.pulled.store(0, Ordering::Relaxed);
        up.completed.store(0, Ordering::Relaxed);
        up.pushed.store(0, Ordering::Relaxed);
        for ending in &up.endings {
            ending.call.store(0, Ordering::Relaxed);
            ending.kind.store(0, Ordering::Relaxed);
        }
        for at in written {
            up.push[at].store(0, Ordering::Relaxed);
        }
    }

    fn read_while_it_is_written(data: &[u8], down: &DownSide, up: &UpSide, written: &mut Vec<usize>) {
        let mut reader = Reader::new();
        let mut pending = 0;
        for chunk in data.chunks(16) {
            let byte = |at: usize| chunk.get(at).copied().unwrap_or(0);
            let word = |at: usize| u32::from_le_bytes([byte(at), byte(at + 1), byte(at + 2), byte(at + 3)]);
            match byte(0) % 8 {
                0 => up.completed.store(word(1), Ordering::Relaxed),
                1 => up.completed.store(reader.completed.wrapping_add(u32::from(byte(1) % 9)), Ordering::Relaxed),
                2 => up.pushed.store(word(1), Ordering::Relaxed),
                3 => up.pushed.store(reader.pulled.wrapping_add(u32::from(byte(1)) * 8), Ordering::Relaxed),
                4 => {
                    let ending = &up.endings[(reader.completed.wrapping_add(word(1) % 4) & (SLOTS - 1)) as usize];
                    ending.call.store(reader.completed.wrapping_add(u32::from(byte(5) % 3)), Ordering::Relaxed);
                    ending.kind.store(u32::from(byte(6) % 5), Ordering::Relaxed);
                }
                5 => {
                    let at = (reader.pulled as usize / 8 + usize::from(byte(1))) & (PUSH_BYTES / 8 - 1);
                    up.push[at].store(u64::from(word(2)) | u64::from(word(6)) << 32, Ordering::Relaxed);
                    written.push(at);
                }
                6 => pending = (pending + 1).min(SLOTS as usize),
                _ => {
                    let Ok(count) = reader.newly_completed(up, pending) else { return reader.restart(down) };
                    assert!(count <= pending);
                    if reader.updates(up, down).is_err() {
                        return reader.restart(down);
                    }
                    for _ in 0..count {
                        if reader.ending(up).is_err() {
                            return;
                        }
                        pending -= 1;
                    }
                }
            }
        }
    }
}
