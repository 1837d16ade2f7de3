//! Starting the program with the library of its side, and its end.

use crate::attach::FATAL;
use crate::error::Error;
use crate::shared::Shared;
use orbit_linux::child::Exit;
use orbit_linux::{host, memfd, signals};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// The program's side, compiled by the build script.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/keep_side.so"));
/// The same for a program without a log: no call of its own passes through it but those of signals,
/// the heap, threads, children and exec.
const PLAIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/keep_plain.so"));

/// The started program. The files stay open: its side opens them through `/proc`.
pub(crate) struct Program {
    child: Child,
    _library: File,
}

impl Program {
    /// Starts `command`, whose first word is the program, with its side loaded. Signals that this
    /// thread blocks are open in it. `mark`: see [`orbit_family::Others::mark`].
    pub fn start(command: &[OsString], shared: &Arc<Shared>, mark: Option<(u64, u64)>) -> Result<Program, Error> {
        let bytes = if shared.has_log() { LIBRARY } else { PLAIN };
        let mut library =
            File::from(memfd::create("orbit-keep-side", bytes.len(), false).map_err(Error::io("making the library"))?);
        library.write_all(bytes).map_err(Error::io("writing the library"))?;
        let me = std::process::id();
        let mut preload = OsString::from(format!("/proc/{me}/fd/{}", library.as_raw_fd()));
        let mut run = Command::new(&command[0]);
        run.args(&command[1..]);
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            run.env("ORBIT_KEEP_PRELOAD", &others);
            preload.push(":");
            preload.push(others);
        }
        run.env("LD_PRELOAD", preload).env("ORBIT_KEEP", format!("/proc/{me}/fd/{}", shared.fd()));
        if let Some(mark) = mark {
            orbit_family::marked(&mut run, mark);
        }
        let its = Arc::clone(shared);
        // SAFETY: what runs in the child makes system calls and writes a word of shared memory; it
        // neither allocates nor locks.
        unsafe {
            run.pre_exec(move || {
                its.orders().pid.store(std::process::id(), SeqCst);
                signals::Set::of([]).set_mask();
                Ok(())
            });
        }
        let child = run.spawn().map_err(|e| Error::Io("starting the program", e))?;
        Ok(Program { child, _library: library })
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// How it has exited, if it has.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.exited().ok().flatten()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // An own child that was not waited for yet, so the number is its own.
        let _ = signals::send(self.pid(), signal);
    }
}

/// How a program can be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It loads libraries.
    Dynamic,
    Static,
    /// It runs with other rights than its caller.
    OtherUser,
    /// It exits, or has exited: what it was is not known.
    Gone,
}

/// What a process that has just begun is.
pub(crate) fn kind(pid: i32) -> Kind {
    const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
    let path = format!("/proc/{pid}/exe");
    let (user, group) = host::real_user_and_group();
    let meta = match std::fs::metadata(&path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Kind::Gone,
        Err(_) => return Kind::OtherUser,
    };
    let (by_user, by_group) = (meta.mode() & libc::S_ISUID != 0, meta.mode() & libc::S_ISGID != 0);
    if meta.mode() & SET_ID != 0 && ((by_user && meta.uid() != user) || (by_group && meta.gid() != group)) {
        return Kind::OtherUser;
    }
    match File::open(path).map(|file| has_interpreter(&file)) {
        Ok(Some(false)) => Kind::Static,
        Err(e) if e.kind() == io::ErrorKind::NotFound => Kind::Gone,
        _ => Kind::Dynamic,
    }
}

/// Whether an ELF file names a loader; `None` for what is none.
fn has_interpreter(file: &File) -> Option<bool> {
    const LOADER: u32 = 3;
    let mut head = [0u8; 64];
    file.read_exact_at(&mut head, 0).ok().filter(|()| head.starts_with(b"\x7fELF\x02"))?;
    let word = |at: usize| u64::from_ne_bytes(head[at..at + 8].try_into().unwrap_or_default());
    let half = |at: usize| u64::from(u16::from_ne_bytes([head[at], head[at + 1]]));
    let (start, size, count) = (word(32), half(54), half(56));
    let mut kind = [0u8; 4];
    for nth in 0..count {
        file.read_exact_at(&mut kind, start + nth * size).ok()?;
        if u32::from_ne_bytes(kind) == LOADER {
            return Some(true);
        }
    }
    Some(false)
}

/// How a program has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// As shells report it.
    pub code: u8,
    /// The signal that it has died of.
    pub signal: Option<i32>,
}

/// The end of a program's run under a keeper.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// Nothing where it cannot be known.
    pub end: Option<End>,
    /// Whether it is to be started again, and nothing of it is left.
    pub again: bool,
}

impl End {
    /// The end of a program whose crash by signal `first` was given up: of another fatal signal it
    /// died only because it was put back half-way.
    pub fn of_crash(self, first: Option<i32>) -> End {
        let is_fatal = |signal: &i32| FATAL.contains(signal);
        match first.filter(is_fatal).filter(|_| self.signal.as_ref().is_some_and(is_fatal)) {
            Some(first) => End { code: u8::try_from(128 + first).unwrap_or(u8::MAX), signal: Some(first) },
            None => self,
        }
    }
}

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> End {
        End { code: code(status), signal: status.signal() }
    }
}

/// The exit status that stands for that of the program: its own, or 128 plus the signal.
fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128u8.wrapping_add(signal as u8),
        (None, None) => u8::MAX,
    }
}

/// The end of another process' child that was not waited for yet.
pub(crate) fn end_of_zombie(pid: i32) -> Option<End> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    if !rest.starts_with('Z') {
        return None;
    }
    Some(End::from(ExitStatus::from_raw(rest.split_whitespace().last()?.parse().ok()?)))
}

/// The exit status for a program that could not be started, as shells have it.
pub(crate) fn not_started(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::CrashReport;

    #[test]
    fn a_crash_that_was_given_up_is_how_it_ends() {
        let by = |signal: i32| End { code: 128 + signal as u8, signal: Some(signal) };
        let end = |end: End, first| end.of_crash(first).signal;
        assert_eq!(end(by(libc::SIGSYS), Some(libc::SIGSEGV)), Some(libc::SIGSEGV));
        assert_eq!(end(by(libc::SIGSYS), None), Some(libc::SIGSYS));
        assert_eq!(end(by(libc::SIGKILL), Some(libc::SIGSEGV)), Some(libc::SIGKILL), "by hand");
        assert_eq!(end(by(libc::SIGBUS), Some(CrashReport::HANG)), Some(libc::SIGBUS));
        assert_eq!(end(End { code: 3, signal: None }, Some(libc::SIGSEGV)), None);
    }
}
