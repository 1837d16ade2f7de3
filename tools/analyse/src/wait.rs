//! Waiting for traced threads.

use orbit_linux::{ptrace, signals};
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
    loop {
        match ptrace::state::next_status(tid, deadline.is_none()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(None) if deadline.is_some_and(|d| Instant::now() >= d) => return Ok(None),
            Ok(None) => std::thread::sleep(Duration::from_micros(100)),
            Ok(Some((found, status))) => {
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
    // The process is a child that was not collected yet, so its number is its own.
    let _ = signals::send(pid, libc::SIGKILL);
    while let Ok(Some((_, status))) = next(pid, None) {
        if !matches!(status, Status::Stopped(..)) {
            break;
        }
    }
}
