//! The locks that Python threads hold: an `RLock` however it was acquired, others by a `with`
//! statement.
//!
//! An `RLock` keeps its owner, so a waiter's frame leads to the holder: see [`Python::owners`].
//! Another lock keeps none. But a thread inside `with lock:` has the lock's
//! `__exit__` on the stack of that frame, at a depth that the code's table of exceptions says for
//! each instruction: nothing is guessed from stale memory. While a thread still waits to enter, its
//! instruction is before the range that the table gives to the block, so that it is not taken for a
//! holder. Promises and bounds are those of the module. Refuses: 3.9 and 3.10, whose blocks are
//! kept otherwise, and 3.14: [`Python::reads_locks`] says so; a `Lock` acquired by a call.

use super::{Layout, MAX_FRAMES, MAX_TABLE, Python, Reader, Top, layout};
use crate::waits::Watched;
use std::collections::{BTreeMap, HashSet};

/// Where a frame's variables begin, in all versions from 3.11 on.
const VARIABLES: u64 = 72;
/// Where a code object has its table of exceptions, and where the count of its variables stands
/// after that of its first line.
const EXCEPTIONS: u64 = 40;
const COUNT_AFTER_FIRST_LINE: u64 = 4;
/// Of an object its type, of a type its name, of a method what it is bound to.
const KIND: u64 = 8;
const KIND_NAME: u64 = 24;
const METHOD_OF: u64 = 24;
/// What the type of reentrant locks is called.
const R_LOCK: &[u8] = b"_thread.RLock";
/// Where a lock object keeps its lock.
const LOCK: u64 = 16;
/// Of an `RLock`, after its lock, the thread that owns it, as the C library names that, and how
/// often that one acquired it.
const OWNER: u64 = 24;
const TIMES: u64 = 32;
/// More references than this an object never has: what was freed has an address in their place.
const MAX_REFERENCES: u64 = 1 << 32;
/// Where a code object has the depth of its stack, before its first line.
const DEPTH_BEFORE_FIRST_LINE: u64 = 4;
/// Deepest stack of a frame, and most variables, that are read.
const MAX_DEPTH: u64 = 64;
const MAX_VARIABLES: u32 = 10_000;

/// A lock that a thread is inside of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The thread.
    pub holder: i32,
    /// Address of the word that waiters of this lock sleep at.
    pub word: u64,
}

impl Python {
    /// Whether the holders of locks can be read.
    ///
    /// # Errors
    /// A sentence, where the version is not known.
    pub fn reads_locks(&self) -> Result<(), String> {
        if self.layout.table == layout::Table::Locations {
            return Ok(());
        }
        let (major, minor) = self.version;
        Err(format!("holders of Python's locks are read of CPython 3.11 to 3.13 alone, not of {major}.{minor}"))
    }

    /// The owners of the `RLock`s that these threads wait for, each given with the word that it
    /// sleeps at. The lock is found in the waiter's innermost Python frame, by that word; its
    /// memory names the owner. The process is not stopped.
    pub fn owners(&self, waiters: &[(i32, u64)]) -> Vec<HeldLock> {
        if self.reads_locks().is_err() || waiters.is_empty() {
            return Vec::new();
        }
        let mut reader = Reader::of(self.memory, super::MAX_READS);
        let watched = Watched::of_few(self.pid).ok();
        let (mut places, mut threads) = (Vec::new(), BTreeMap::new());
        for state in self.states(&mut reader) {
            let tid = self.tid(&mut reader, state, watched.as_ref());
            if let Some(thread) = reader.u64(state.wrapping_add(self.layout.thread_id)).filter(|_| tid != 0) {
                threads.insert(thread, tid);
            }
            places.extend(waiters.iter().find(|(waiter, _)| *waiter == tid).map(|(_, word)| (state, *word)));
        }
        let mut out: Vec<HeldLock> = Vec::new();
        for (state, word) in places {
            let owner = self.owner(&mut reader, state, word);
            let holder = owner.and_then(|owner| threads.get(&owner)).copied();
            let held = holder.map(|holder| HeldLock { holder, word });
            out.extend(held.filter(|held| !out.contains(held)));
        }
        out
    }

    /// The owner, as the C library names it, of the `RLock` whose word this is, if the thread's
    /// innermost Python frame has it.
    fn owner(&self, r: &mut Reader, state: u64, word: u64) -> Option<u64> {
        let l: &Layout = &self.layout;
        let mut frame = self.top(r, state)?;
        if let Some(at) = l.owner
            && r.bytes::<1>(frame.wrapping_add(at)) == Some([layout::OWNED_BY_C])
        {
            frame = r.pointer(frame.wrapping_add(l.previous))?;
        }
        let code = r.pointer(frame.wrapping_add(l.code))?;
        let depth = r.bytes(code.wrapping_add(l.first_line - DEPTH_BEFORE_FIRST_LINE)).map(u32::from_le_bytes)?;
        let count = r.bytes(code.wrapping_add(l.first_line + COUNT_AFTER_FIRST_LINE)).map(u32::from_le_bytes)?;
        let count = u64::from(count.min(MAX_VARIABLES)) + u64::from(depth).min(MAX_DEPTH);
        let words = r.vec(frame.wrapping_add(VARIABLES), 8 * count)?;
        let objects = (0..words.len()).step_by(8).filter_map(|at| crate::stacks::elf::u64_at(&words, at));
        objects.filter(|at| *at > 4096 && at & 7 == 0).find_map(|at| {
            // A method that is bound to the lock, or the lock itself.
            let bound = r.pointer(at.wrapping_add(METHOD_OF)).filter(|lock| self.is_lock_of(r, *lock, word));
            let lock = bound.or_else(|| Some(at).filter(|lock| self.is_lock_of(r, *lock, word)))?;
            let times = r.u64(lock.wrapping_add(TIMES))?;
            r.u64(lock.wrapping_add(OWNER)).filter(|owner| times > 0 && *owner != 0)
        })
    }

    /// Whether a living `RLock` is there whose waiters sleep at that word.
    fn is_lock_of(&self, r: &mut Reader, lock: u64, word: u64) -> bool {
        r.u64(lock.wrapping_add(LOCK)) == Some(word)
            && r.u64(lock).is_some_and(|references| (1..MAX_REFERENCES).contains(&references))
            && r.pointer(lock.wrapping_add(KIND))
                .and_then(|kind| r.u64(kind.wrapping_add(KIND_NAME)))
                .is_some_and(|name| is_text(r, name, &[R_LOCK]))
    }

    /// The locks that threads hold by `with`, outermost frames last. The process is not stopped:
    /// what it says of threads that did not run meanwhile is as it was at one moment.
    pub fn held_locks(&self) -> Vec<HeldLock> {
        if self.reads_locks().is_err() {
            return Vec::new();
        }
        let mut reader = Reader::of(self.memory, super::MAX_READS);
        let watched = Watched::of_few(self.pid).ok();
        let mut out = Vec::new();
        for state in self.states(&mut reader) {
            let holder = self.tid(&mut reader, state, watched.as_ref());
            if holder == 0 {
                continue;
            }
            let words = self.held_by(&mut reader, state);
            out.extend(words.into_iter().map(|word| HeldLock { holder, word }));
        }
        out
    }

    fn held_by(&self, r: &mut Reader, state: u64) -> Vec<u64> {
        let l: &Layout = &self.layout;
        let (mut next, mut known, mut out) = (self.top(r, state), HashSet::new(), Vec::new());
        while let Some(frame) = next.filter(|f| *f != 0 && f & 7 == 0)
            && known.len() < MAX_FRAMES
            && known.insert(frame)
        {
            next = r.u64(frame.wrapping_add(l.previous));
            let owner = l.owner.and_then(|at| r.bytes::<1>(frame.wrapping_add(at)));
            if owner != Some([layout::OWNED_BY_C]) {
                out.extend(self.held_in(r, frame).unwrap_or_default());
            }
        }
        out
    }

    /// The innermost frame of a thread state.
    fn top(&self, r: &mut Reader, state: u64) -> Option<u64> {
        match self.layout.top {
            Top::Direct(at) => r.u64(state.wrapping_add(at)),
            Top::Through(at, then) => {
                r.pointer(state.wrapping_add(at)).and_then(|between| r.u64(between.wrapping_add(then)))
            }
        }
    }

    /// The locks of the blocks that a frame is in.
    fn held_in(&self, r: &mut Reader, frame: u64) -> Option<Vec<u64>> {
        let l: &Layout = &self.layout;
        let code = r.pointer(frame.wrapping_add(l.code))?;
        let table = r.pointer(code.wrapping_add(EXCEPTIONS))?;
        let size = r.u64(table.wrapping_add(16))?;
        if size == 0 || size > MAX_TABLE {
            return Some(Vec::new());
        }
        let table = r.vec(table.wrapping_add(32), size)?;
        let instruction = r.u64(frame.wrapping_add(l.instruction))?;
        let depth = depth(&table, self.offset(code, instruction) / 2)?.min(MAX_DEPTH);
        let count = r.bytes(code.wrapping_add(l.first_line + COUNT_AFTER_FIRST_LINE)).map(u32::from_le_bytes)?;
        let first = frame.wrapping_add(VARIABLES + 8 * u64::from(count.min(MAX_VARIABLES)));
        Some((0..depth).filter_map(|nth| self.lock_left_by(r, first.wrapping_add(8 * nth))).collect())
    }

    /// The word of the lock whose `__exit__` stands at a place of a stack, if one does.
    fn lock_left_by(&self, r: &mut Reader, place: u64) -> Option<u64> {
        // A method of C: count, type, its definition, the object that it is bound to.
        let method = r.pointer(place)?;
        let definition = r.pointer(method.wrapping_add(16))?;
        let lock = r.pointer(method.wrapping_add(METHOD_OF))?;
        let name_at = r.u64(definition)?;
        let kind = r.pointer(lock.wrapping_add(KIND))?;
        let kind_at = r.u64(kind.wrapping_add(KIND_NAME))?;
        let is_exit = is_text(r, name_at, &[b"__exit__"]);
        let is_lock = is_text(r, kind_at, &[b"_thread.lock", R_LOCK]);
        if is_exit && is_lock { r.pointer(lock.wrapping_add(LOCK)) } else { None }
    }
}

/// Whether one of these texts stands there, with its end.
fn is_text(r: &mut Reader, at: u64, texts: &[&[u8]]) -> bool {
    let found = r.bytes::<16>(at).unwrap_or_default();
    texts.iter().any(|text| found.starts_with(text) && found.get(text.len()) == Some(&0))
}

/// How deep the stack of a frame is at least at an instruction, by the innermost entry of the
/// table of exceptions that covers it; nothing where none does.
fn depth(table: &[u8], instruction: u64) -> Option<u64> {
    let mut bytes = table.iter().copied().peekable();
    let mut number = || {
        let mut byte = bytes.next()?;
        let mut n = u64::from(byte & 63);
        while byte & 64 != 0 {
            byte = bytes.next()?;
            n = n << 6 | u64::from(byte & 63);
        }
        Some(n)
    };
    while let (Some(start), Some(size), Some(_handler), Some(depth)) = (number(), number(), number(), number()) {
        // Entries do not overlap: an inner block has those of its instructions alone.
        if (start..start.saturating_add(size)).contains(&instruction) {
            return Some(depth >> 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::depth;

    #[test]
    fn the_depth_at_an_instruction() {
        // Two entries: 10 instructions from 4 on at depth 1; 70 from 200 on at depth 3.
        let table = [128 | 4, 10, 20, 1 << 1, 128 | 64 | 3, 8, 64 | 1, 6, 64 | 5, 0, 3 << 1 | 1];
        assert_eq!([3, 4, 13, 14].map(|at| depth(&table, at)), [None, Some(1), Some(1), None]);
        assert_eq!([199, 200, 269, 270].map(|at| depth(&table, at)), [None, Some(3), Some(3), None]);
        assert_eq!(depth(&table[..2], 4), None, "cut off");
    }
}
