//! Waiting for traced threads.

use std::io;
use std::time::{Duration, Instant};

/// A status as `waitpid` gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Exited(i32),
    Killed(i32),
    /// Signal, and `PTRACE_EVENT_*` or 0.
    Stopped(i32, i32),
}

/// The next thing of one of this thread's children and traced threads (`tid` -1), or of one of
/// them. With a deadline: nothing once it is over.
pub(crate) fn next(tid: i32, deadline: Option<Instant>) -> io::Result<Option<(i32, Status)>> {
    let flags = libc::__WALL | libc::__WNOTHREAD | if deadline.is_some() { libc::WNOHANG } else { 0 };
    let mut status = 0;
    loop {
        // SAFETY: the status is a live local.
        let found = unsafe { libc::waitpid(tid, &raw mut status, flags) };
        match found {
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            0 if deadline.is_some_and(|d| Instant::now() >= d) => return Ok(None),
            0 => std::thread::sleep(Duration::from_micros(100)),
            found => {
                let seen = if libc::WIFEXITED(status) {
                    Status::Exited(libc::WEXITSTATUS(status))
                } else if libc::WIFSIGNALED(status) {
                    Status::Killed(libc::WTERMSIG(status))
                } else {
                    Status::Stopped(libc::WSTOPSIG(status), status >> 16)
                };
                return Ok(Some((found, seen)));
            }
        }
    }
}

/// Kills a process of this thread's and collects it.
pub(crate) fn end(pid: i32) {
    // SAFETY: no memory is passed; the process is a child that was not collected yet, so its number
    // is its own.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    while let Ok(Some((_, status))) = next(pid, None) {
        if !matches!(status, Status::Stopped(..)) {
            break;
        }
    }
}
