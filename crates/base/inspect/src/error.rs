//! The errors of inspecting another process, each with its remedy.

use std::io;

/// Why something could not be learnt.
#[derive(Debug)]
pub enum Error {
    /// No such process or thread (it may have ended just now).
    Gone {
        /// The id that was asked for.
        id: i32,
    },
    /// The kernel does not let this process inspect it.
    NotPermitted {
        /// The process or thread inspected.
        id: i32,
        /// What was tried.
        what: &'static str,
        /// What the kernel would want, in words.
        needs: String,
    },
    /// Another program traces the thread, and a thread has one tracer only.
    Traced {
        /// The thread.
        tid: i32,
        /// The tracer's process id, 0 where it cannot be seen.
        by: i32,
    },
    /// The thread did not stop in time: it is inside the kernel and cannot be interrupted (disk
    /// wait), or gets no CPU.
    NotStopped {
        /// The thread.
        tid: i32,
        /// How long was waited, in milliseconds.
        waited_ms: u64,
    },
    /// The thread runs inside the kernel: to stop it could end its call early.
    InKernel {
        /// The thread.
        tid: i32,
    },
    /// The thread goes in and out of calls that a stop could end early, too fast to be seen in one.
    Restless {
        /// The thread.
        tid: i32,
    },
    /// Any other failure of a call.
    Io {
        /// The process or thread inspected.
        id: i32,
        /// What was tried.
        what: &'static str,
        /// What the kernel answered.
        source: io::Error,
    },
}

impl Error {
    /// The error for an `errno` that came from inspecting `id`.
    pub(crate) fn of(id: i32, what: &'static str, source: io::Error) -> Error {
        match source.raw_os_error() {
            Some(libc::ESRCH | libc::ENOENT) => Error::Gone { id },
            Some(libc::EPERM | libc::EACCES) => Error::NotPermitted { id, what, needs: needed(id) },
            _ => Error::Io { id, what, source },
        }
    }
}

/// What would have to be granted so that this process may trace `id`.
fn needed(id: i32) -> String {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "3" => "a kernel with kernel.yama.ptrace_scope below 3 (at 3 nobody may trace until a reboot)".into(),
        "2" => "CAP_SYS_PTRACE (kernel.yama.ptrace_scope is 2)".into(),
        "1" => format!(
            "CAP_SYS_PTRACE, or kernel.yama.ptrace_scope 0 and the same user, or prctl(PR_SET_PTRACER) called by {id}"
        ),
        _ => format!(
            "CAP_SYS_PTRACE, or the same user as {id} (which must be dumpable), and no seccomp filter against it"
        ),
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Gone { id } => write!(f, "{id} has ended"),
            Error::NotPermitted { id, what, needs } => {
                write!(f, "{what} of {id} is not permitted: needs {needs}")
            }
            Error::Traced { tid, by: 0 } => {
                write!(f, "thread {tid} is traced by another program already; detach that first")
            }
            Error::Traced { tid, by } => write!(f, "thread {tid} is traced by process {by} already; detach that first"),
            Error::NotStopped { tid, waited_ms } => write!(
                f,
                "thread {tid} did not stop within {waited_ms} ms: it waits inside the kernel where it cannot be \
                 interrupted, or gets no CPU"
            ),
            Error::InKernel { tid } => write!(
                f,
                "thread {tid} runs inside the kernel, and was not stopped, for that could end its call early; its \
                 stack can be seen with CAP_PERFMON"
            ),
            Error::Restless { tid } => {
                write!(
                    f,
                    "thread {tid} goes in and out of calls that a stop could end early, too fast to be seen in one"
                )
            }
            Error::Io { id, what, source } => write!(f, "{what} of {id}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
