//! Files of `/proc/PID/task/TID`, kept open.

use super::call::Seen;
use super::thread::{State, ThreadState};
use crate::procfs;
use orbit_linux::rlimit;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

const STAT: usize = 0;
const SCHED: usize = 1;
const CALL: usize = 2;
const NAMES: [&str; 3] = ["stat", "schedstat", "syscall"];

/// One thread's files.
#[derive(Debug)]
pub(crate) struct Kept {
    pid: i32,
    tid: i32,
    keep: bool,
    open: [Option<File>; 3],
}

impl Kept {
    pub(crate) fn new(pid: i32, tid: i32, keep: bool) -> Kept {
        Kept { pid, tid, keep, open: [None, None, None] }
    }

    pub(crate) fn tid(&self) -> i32 {
        self.tid
    }

    fn path(&self, which: usize) -> String {
        format!("/proc/{}/task/{}/{}", self.pid, self.tid, NAMES[which])
    }

    /// Reads one of the files anew and hands its bytes to `then`.
    fn with<T>(&mut self, which: usize, then: impl FnOnce(&[u8]) -> Option<T>) -> io::Result<T> {
        let mut buf = [0u8; 1024];
        let opened;
        let file = match &self.open[which] {
            Some(f) => f,
            None => {
                let f = File::open(self.path(which))?;
                if self.keep {
                    self.open[which].insert(f)
                } else {
                    opened = f;
                    &opened
                }
            }
        };
        match procfs::reread(file, &mut buf) {
            Ok(bytes) => then(bytes).ok_or_else(|| io::ErrorKind::InvalidData.into()),
            Err(e) => {
                // The thread has ended; a new one with its number needs a new descriptor.
                self.open[which] = None;
                Err(e)
            }
        }
    }

    /// The thread now; nothing once it has ended.
    pub(crate) fn state(&mut self) -> Option<ThreadState> {
        let (comm, state, ticks) = self.with(STAT, stat).ok()?;
        // Where the kernel keeps no such statistics the ticks of `stat` stand in.
        let (cpu_ns, delayed_ns, switches) = self.with(SCHED, sched).unwrap_or((ticks * 10_000_000, 0, ticks));
        Some(ThreadState { tid: self.tid, comm, state, cpu_ns, delayed_ns, switches })
    }

    /// CPU time and switches.
    pub(crate) fn progress(&mut self) -> Option<(u64, u64)> {
        let (cpu, _, switches) = self.with(SCHED, sched).ok()?;
        Some((cpu, switches))
    }

    /// The system call.
    pub(crate) fn seen(&mut self) -> io::Result<Seen> {
        self.with(CALL, Seen::parse)
    }

    /// The system call, without keeping anything.
    pub(crate) fn peek(&self) -> io::Result<Seen> {
        Kept::new(self.pid, self.tid, false).seen()
    }
}

/// Name, state and CPU ticks from `stat`. The name may hold any byte, parentheses too: the last one
/// counts.
fn stat(line: &[u8]) -> Option<(String, State, u64)> {
    let open = line.iter().position(|&b| b == b'(')?;
    let close = line.iter().rposition(|&b| b == b')')?;
    let comm = String::from_utf8_lossy(line.get(open + 1..close)?).into_owned();
    let rest = std::str::from_utf8(line.get(close + 1..)?).ok()?;
    let mut f = rest.split_ascii_whitespace();
    let state = State::of(*f.next()?.as_bytes().first()?);
    let mut ticks = f.skip(10).map(|n| n.parse::<u64>().unwrap_or(0));
    Some((comm, state, ticks.next()? + ticks.next()?))
}

fn sched(line: &[u8]) -> Option<(u64, u64, u64)> {
    let text = std::str::from_utf8(line).ok()?;
    let mut f = text.split_ascii_whitespace().map(|n| n.parse().ok());
    Some((f.next()??, f.next()??, f.next()??))
}

/// Threads whose descriptors may be kept: a third of a half of what this process may open.
pub(crate) fn room() -> usize {
    let soft = rlimit::get(0, rlimit::Resource::Files).map_or(0, |(soft, _)| soft);
    usize::try_from(soft / 6).unwrap_or(usize::MAX)
}

/// Number of threads, from the link count of the task directory.
pub(crate) fn count(pid: i32) -> Option<usize> {
    let links = std::fs::metadata(format!("/proc/{pid}/task")).ok()?.nlink();
    usize::try_from(links).ok()?.checked_sub(2)
}

/// Whether the program is a 32-bit one. Where that cannot be read, no.
pub(crate) fn is_32bit(pid: i32) -> bool {
    use io::Read;
    let mut ident = [0u8; 5];
    File::open(format!("/proc/{}/exe", procfs::living(pid)))
        .and_then(|mut f| f.read_exact(&mut ident))
        .is_ok_and(|()| &ident == b"\x7fELF\x01")
}

/// Where in the kernel a thread waits, empty where the kernel does not say.
pub(crate) fn wchan(tid: i32) -> String {
    let text = procfs::text(&format!("/proc/{tid}/wchan"), 128).unwrap_or_default();
    if text == "0" { String::new() } else { text }
}
