//! The files that hold sections by name, and where those return to in them.
//!
//! Owns: the open files, one descriptor for each, and which places behind calls are known: of one
//! file they are searched for once, however many processes run it. Promises: in a tick so many
//! callers are read, of all sections together, for a large file takes milliseconds. Rejects
//! code that is not as in the file.

use orbit_inspect::functions::{self, Function};
use orbit_inspect::{Maps, Memory};
use orbit_uprobe::code::{self, Place, Return};
use orbit_uprobe::{Behind, CodeFile};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// Callers that are read in one tick.
const CALLERS_A_TICK: usize = 4;
/// Places that are known at a time.
const MAX_PLACES: usize = 4096;

/// Device and inode.
type Identity = (u64, u64);

/// A breakpoint.
const INT3: u8 = 0xcc;
/// What the kernel may put a call of its own in place of, where it is probed (6.18).
const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];

/// Whether a function's code in memory is that of the file, as far as it can be read, but for what
/// probes of others put there.
pub(super) fn as_in_file(memory: &Memory, function: &Function) -> bool {
    same(&memory.vec(function.address, function.code.len()), &function.code)
}

fn same(now: &[u8], file: &[u8]) -> bool {
    let mut at = 0;
    while at < now.len().min(file.len()) {
        at += match file[at..].starts_with(&NOP5) {
            true => NOP5.len(),
            false if now[at] == file[at] || now[at] == INT3 => 1,
            false => return false,
        };
    }
    true
}

#[derive(Debug, Default)]
pub(super) struct Callers {
    /// By the name and the file that it led to.
    files: BTreeMap<(PathBuf, Identity), Weak<CodeFile>>,
    /// By the file and the offset in it that is returned to.
    known: BTreeMap<(Identity, u64), (Weak<CodeFile>, Return)>,
    /// Reads of callers that are left in this tick.
    left: usize,
}

impl Callers {
    /// The file that holds a function.
    pub(super) fn open(&mut self, function: &Function) -> io::Result<Arc<CodeFile>> {
        let key = (function.file.clone(), function.identity);
        if let Some(file) = self.files.get(&key).and_then(Weak::upgrade) {
            return Ok(file);
        }
        let (dev, ino) = function.identity;
        // In two halves there.
        let dev = libc::makedev((dev >> 32) as u32, dev as u32);
        let file = Arc::new(CodeFile::open(&function.file, (dev, ino))?);
        self.files.retain(|_, file| file.strong_count() > 0);
        self.files.insert(key, Arc::downgrade(&file));
        Ok(file)
    }

    pub(super) fn begin_tick(&mut self) {
        self.left = CALLERS_A_TICK;
    }

    /// Where functions of a process are seen to have returned to these addresses, nothing where it
    /// cannot be seen; of as many as the tick allows.
    pub(super) fn of(&mut self, pid: i32, backs: &[u64]) -> Vec<(u64, Option<Behind>)> {
        if backs.is_empty() || self.left == 0 {
            return Vec::new();
        }
        // One that has ended returns nowhere.
        let Ok(maps) = Maps::of(pid) else { return Vec::new() };
        let mut found = Vec::new();
        for &back in backs {
            let at = maps.at(back.wrapping_sub(1)).map(|m| ((m.dev, m.ino), back - m.start + m.offset));
            let known =
                at.and_then(|at| self.known.get(&at)).and_then(|(file, places)| Some((file.upgrade()?, *places)));
            if let Some((file, places)) = known {
                found.push((back, Some(Behind { file, places })));
                continue;
            }
            if self.left == 0 {
                continue;
            }
            self.left -= 1;
            let behind = self.read_caller(pid, &maps, back);
            if let (Some(at), Some(Behind { file, places })) = (at, &behind) {
                self.known.retain(|_, (file, _)| file.strong_count() > 0);
                if self.known.len() < MAX_PLACES {
                    self.known.insert(at, (Arc::downgrade(file), *places));
                }
            }
            found.push((back, behind));
        }
        found
    }

    fn read_caller(&mut self, pid: i32, maps: &Maps, back: u64) -> Option<Behind> {
        // The call lies before it, and may be the last instruction of a function.
        let caller = functions::at(pid, maps, back.checked_sub(1)?).filter(|f| f.size != 0)?;
        let memory = Memory::of(pid);
        if !as_in_file(&memory, &caller) {
            return None;
        }
        let found = code::behind(&caller.code, caller.address, back, &|at, len| memory.vec(at, len))?;
        let in_file = |place: Place| Place { offset: caller.offset + place.offset, ..place };
        let places = Return { own: found.own.map(in_file), shared: found.shared.map(in_file) };
        Some(Behind { file: self.open(&caller).ok()?, places })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::arch::global_asm;

    // Never called: only the places where they would continue are read.
    global_asm!(
        ".globl orbit_named_callers",
        ".type orbit_named_callers, @function",
        "orbit_named_callers:",
        ".cfi_startproc",
        "push rbx",
        ".rept 8",
        "call orbit_named_callers",
        "nop",
        ".endr",
        "pop rbx",
        "ret",
        ".cfi_endproc",
        ".size orbit_named_callers, . - orbit_named_callers",
    );

    unsafe extern "C" {
        fn orbit_named_callers();
    }

    /// Where its calls return to: behind a push of one byte each takes five, and a no-op follows.
    fn backs() -> Vec<u64> {
        (0..8).map(|n| orbit_named_callers as *const () as u64 + 1 + n * 6 + 5).collect()
    }

    #[test]
    fn breakpoints_are_no_change_of_the_code() {
        let file = [&[0x55][..], &NOP5, &[0x5d, 0xc3]].concat();
        assert!(same(&file, &file) && same(&file[..3], &file) && same(&[], &file));
        assert!(same(&[0xcc, 0x0f, 0x1f, 0x44, 0, 0, 0xcc, 0xcc], &file));
        assert!(same(&[0x55, 0xe8, 1, 2, 3, 4, 0x5d, 0xc3], &file));
        assert!(!same(&[0x55, 0x0f, 0x1f, 0x44, 0, 0, 0x5d, 0x90], &file));
    }

    #[test]
    fn so_many_a_tick_of_all_sections_and_those_that_are_known() {
        let pid = std::process::id() as i32;
        let (mut callers, backs) = (Callers::default(), backs());
        callers.begin_tick();
        let (one, other) = backs.split_at(3);
        let mut found = callers.of(pid, one);
        found.extend(callers.of(pid, other));
        assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), backs[..CALLERS_A_TICK]);
        assert!(found.iter().all(|(_, b)| b.as_ref().is_some_and(|b| b.places.own.is_some())), "{found:?}");
        // As those of another process of this file: only one of them costs a read.
        callers.left = 1;
        let again = callers.of(pid, &backs);
        assert_eq!(again.len(), CALLERS_A_TICK + 1);
        drop((found, again));
        assert!(callers.known.values().all(|(file, _)| file.upgrade().is_none()), "files stay open");
    }
}
