//! The ways in which getting into another process fails, each with its way out.

use crate::denial::Denial;
use std::io;
use std::time::Duration;

/// Why something could not be done to another process.
#[derive(Debug)]
pub enum Error {
    /// There is no such process or thread, or it has ended meanwhile.
    Gone {
        /// The process or thread.
        id: i32,
    },
    /// What was named is not a process that can be entered.
    Unsuitable {
        /// The process or thread.
        id: i32,
        /// Why not, and what to do.
        why: String,
    },
    /// Another program traces the thread, and a thread has one tracer only.
    Traced {
        /// The thread.
        tid: i32,
        /// The tracer's process id, 0 where it cannot be seen.
        by: i32,
    },
    /// The kernel does not permit it.
    NotPermitted {
        /// The process.
        pid: i32,
        /// What was tried.
        what: &'static str,
        /// The first reason found, and what would lift it.
        reason: Denial,
    },
    /// A thread did not stop in time. All others continue at once, this one as soon as it comes out
    /// of the kernel.
    NotStopped {
        /// The thread.
        tid: i32,
        /// How long was waited.
        waited: Duration,
        /// What it does.
        why: String,
    },
    /// A seccomp filter judges the program's calls and cannot be suspended: an injected call might
    /// kill the program.
    Filtered {
        /// The thread.
        tid: i32,
        /// What would lift it.
        why: String,
    },
    /// An injected call failed in the program.
    Call {
        /// The number of the call.
        number: i64,
        /// Its error.
        errno: i32,
    },
    /// An injected call did not return in time. The thread continues where it was once the call
    /// returns.
    NotReturned {
        /// The thread.
        tid: i32,
        /// The number of the call.
        number: i64,
        /// How long was waited.
        waited: Duration,
    },
    /// The range is not free in the program.
    Occupied {
        /// First address.
        start: u64,
        /// Length in bytes.
        len: u64,
        /// What stands there: its name, or `anonymous memory`.
        by: String,
    },
    /// Memory of the program that is not mapped, or not as needed.
    Memory {
        /// `reading` or `writing`.
        what: &'static str,
        /// First address.
        address: u64,
        /// Length in bytes.
        len: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// A program could not be started.
    Start {
        /// The program.
        program: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Any other failure of a system call.
    Io {
        /// The process or thread.
        id: i32,
        /// What was tried.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl Error {
    /// The error of a call about `id`: ended if the kernel says so.
    pub(crate) fn of(id: i32, what: &'static str, source: io::Error) -> Error {
        match source.raw_os_error() {
            Some(libc::ESRCH | libc::ENOENT | libc::ECHILD) => Error::Gone { id },
            _ => Error::Io { id, what, source },
        }
    }

    /// The `errno` behind it, for callers that must answer with one.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Gone { .. } => libc::ESRCH,
            Error::Unsuitable { .. } => libc::EINVAL,
            Error::Traced { .. } | Error::NotPermitted { .. } | Error::Filtered { .. } => libc::EPERM,
            Error::NotStopped { .. } | Error::NotReturned { .. } => libc::ETIMEDOUT,
            Error::Call { errno, .. } => *errno,
            Error::Occupied { .. } => libc::EEXIST,
            Error::Memory { source, .. } | Error::Start { source, .. } | Error::Io { source, .. } => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Gone { id } => write!(f, "{id} has exited"),
            Error::Unsuitable { id, why } => write!(f, "{id} cannot be entered: {why}"),
            Error::Traced { tid, by: 0 } => {
                write!(f, "thread {tid} is traced by another program already: detach that first")
            }
            Error::Traced { tid, by } => write!(f, "thread {tid} is traced by process {by} already: detach that first"),
            Error::NotPermitted { pid, what, reason } => write!(f, "{what} process {pid} is not permitted: {reason}"),
            Error::NotStopped { tid, waited, why } => {
                write!(f, "thread {tid} did not stop within {} ms: {why}", waited.as_millis())
            }
            Error::Filtered { tid, why } => write!(f, "no call can be injected into thread {tid}: {why}"),
            Error::Call { number, errno } => {
                write!(f, "call {number} failed in the program: {}", io::Error::from_raw_os_error(*errno))
            }
            Error::NotReturned { tid, number, waited } => {
                write!(f, "call {number} in thread {tid} did not return within {} ms", waited.as_millis())
            }
            Error::Occupied { start, len, by } => {
                write!(
                    f,
                    "{len} bytes at {start:#x} are not free in the program: {by} is there; choose by free_address"
                )
            }
            Error::Memory { what, address, len, source } => {
                write!(f, "{what} {len} bytes at {address:#x} of the program: {source}")
            }
            Error::Start { program, source } => write!(f, "starting {program}: {source}"),
            Error::Io { id, what, source } => write!(f, "{what} {id}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Memory { source, .. } | Error::Start { source, .. } | Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
