//! The locks that Python threads hold by a `with` statement.
//!
//! A Python lock keeps no owner (an `RLock` does). But a thread inside `with lock:` has the lock's
//! `__exit__` on the stack of that frame, at a depth that the code's table of exceptions says for
//! each instruction: nothing is guessed from stale memory. While a thread still waits to enter, its
//! instruction is before the range that the table gives to the block, so that it is not taken for a
//! holder. Promises and bounds are those of the module. Refuses: 3.9 and 3.10, whose blocks are
//! kept otherwise; locks acquired by a call.

use super::{Layout, MAX_FRAMES, MAX_TABLE, Python, Reader, Top, layout};
use crate::waits::Watched;
use std::collections::HashSet;

/// Where a frame's variables begin, in all versions from 3.11 on.
const VARIABLES: u64 = 72;
/// Where a code object has its table of exceptions, and where the count of its variables stands
/// after that of its first line.
const EXCEPTIONS: u64 = 40;
const COUNT_AFTER_FIRST_LINE: u64 = 4;
/// Where a lock object keeps its lock.
const LOCK: u64 = 16;
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
    /// The locks that threads hold by `with`, outermost frames last. The process is not stopped:
    /// what it says of threads that did not run meanwhile is as it was at one moment.
    pub fn held_locks(&self) -> Vec<HeldLock> {
        if self.layout.table != layout::Table::Locations {
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
        let top = match l.top {
            Top::Direct(at) => r.u64(state.wrapping_add(at)),
            Top::Through(at, then) => {
                r.pointer(state.wrapping_add(at)).and_then(|between| r.u64(between.wrapping_add(then)))
            }
        };
        let (mut next, mut known, mut out) = (top, HashSet::new(), Vec::new());
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
        let lock = r.pointer(method.wrapping_add(24))?;
        let name_at = r.u64(definition)?;
        let kind = r.pointer(lock.wrapping_add(8))?;
        let kind_at = r.u64(kind.wrapping_add(24))?;
        let is = |r: &mut Reader, at: u64, names: &[&[u8]]| {
            let text = r.bytes::<16>(at).unwrap_or_default();
            names.iter().any(|name| text.starts_with(name) && text.get(name.len()) == Some(&0))
        };
        let is_exit = is(r, name_at, &[b"__exit__"]);
        let is_lock = is(r, kind_at, &[b"_thread.lock", b"_thread.RLock"]);
        if is_exit && is_lock { r.pointer(lock.wrapping_add(LOCK)) } else { None }
    }
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
