//! Command lines of the witnesses, as `ps` shows them and `pkill -f` searches them.
//!
//! A copy of the guard has the guard's command line, in which the program's is, and would be hit
//! with both. So each has a name of its own in place of the guard's part, and the far one behind it
//! what the program has: it is hit by what hits the program, the near one by neither. Their name
//! has no word of the guard's command line, and stands first, so that neither is taken for the
//! program by commands that compare the beginning of a command line (`pidof`). Where the kernel
//! does not say where the arguments are, all stays as it is.

use orbit_linux::stat::Stat;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::ptr;

const NAME: &[u8] = b"witness\0";

/// Where this process, and a copy of it, has its arguments: `length` bytes from `at` on, the last
/// `program` of them the program's.
pub struct Arguments {
    at: usize,
    length: usize,
    program: usize,
}

impl Arguments {
    /// Of this process, which is to run this program; `None` where they are not as expected, or
    /// have no room for the name.
    pub fn own(program: &[OsString]) -> Option<Arguments> {
        let joined = |all: &mut dyn Iterator<Item = OsString>| {
            let mut bytes = Vec::new();
            for argument in all {
                bytes.extend_from_slice(argument.as_bytes());
                bytes.push(0);
            }
            bytes
        };
        let (all, program) = (joined(&mut std::env::args_os()), joined(&mut program.iter().cloned()));
        let places = Stat::own().ok()?.arguments;
        let (at, end) = (usize::try_from(places.start).ok()?, usize::try_from(places.end).ok()?);
        if at == 0
            || end.checked_sub(at)? != all.len()
            || !all.ends_with(&program)
            || NAME.len() + program.len() > all.len()
        {
            return None;
        }
        // SAFETY: the kernel says that this process' arguments are there, as many bytes as they
        // have; nothing writes to them.
        let there = unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(at), all.len()) };
        (there == all).then_some(Arguments { at, length: all.len(), program: program.len() })
    }

    /// Gives this process, a copy that reads its arguments no more, the name, and what the
    /// program has if asked for. Async-signal-safe.
    pub fn overwrite(&self, with_program: bool) {
        let kept = if with_program { self.program } else { 0 };
        let at = ptr::with_exposed_provenance_mut::<u8>(self.at);
        // SAFETY: all within the arguments, which are on the stack that the kernel made, and of
        // which nobody holds a reference. The name and the program's fit into them, as `own` has
        // it.
        unsafe {
            ptr::copy(at.add(self.length - kept), at.add(NAME.len()), kept);
            ptr::write_bytes(at.add(NAME.len() + kept), 0, self.length - NAME.len() - kept);
            ptr::copy_nonoverlapping(NAME.as_ptr(), at, NAME.len());
        }
    }

    /// Whether what the witness shows of the program's is in the program's, which an interpreter
    /// may begin.
    pub fn shown(witness: i32, program: i32) -> bool {
        let line = |pid: i32| {
            let mut line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.truncate(line.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
            line
        };
        let (witness, program) = (line(witness), line(program));
        witness.strip_prefix(NAME).is_some_and(|shown| !shown.is_empty() && program.ends_with(shown))
    }
}
