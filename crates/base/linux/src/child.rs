//! Exits of children that a thread of the same process may trace.
//!
//! For a tracer, `waitpid` and `waitid` take the stops of its children besides their exits,
//! whatever was asked for (`wait_consider_task` in the kernel's kernel/exit.c: a traced child's
//! stops are reported without `WUNTRACED` and `WSTOPPED`). Where one thread traces a child and
//! another asks for its exit, the second steals a stop that the first waits for: the child then
//! stands still for good. So an exit is asked for with `WNOWAIT`, which takes nothing, and
//! collected only once it is there. [`std::process::Child::wait`] and `try_wait` are denied
//! elsewhere (clippy.toml).

#![allow(clippy::disallowed_methods, reason = "this file is what the others use instead")]

use crate::{check_int, pidfd, poll};
use std::io;
use std::os::fd::AsRawFd;
use std::process::{Child, ExitStatus};
use std::time::Duration;

/// How long passes between two checks where the kernel has no pidfd.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Asks for the exit of a child without taking stops of a tracer in the same process.
pub trait Exit {
    /// How it has exited, if it has. Does not wait.
    ///
    /// # Errors
    /// `ECHILD` if SIGCHLD is ignored, or something else has reaped it.
    fn exited(&mut self) -> io::Result<Option<ExitStatus>>;

    /// Waits for its exit; closes its standard input first, as [`Child::wait`] does.
    ///
    /// # Errors
    /// As [`Exit::exited`].
    fn wait_for_exit(&mut self) -> io::Result<ExitStatus>;
}

impl Exit for Child {
    fn exited(&mut self) -> io::Result<Option<ExitStatus>> {
        match has_exited(self.id() as i32) {
            Ok(false) => Ok(None),
            // Not a child any more: the status is known from an earlier call, or lost.
            Err(error) if error.raw_os_error() != Some(libc::ECHILD) => Err(error),
            Ok(true) | Err(_) => self.try_wait(),
        }
    }

    fn wait_for_exit(&mut self) -> io::Result<ExitStatus> {
        drop(self.stdin.take());
        loop {
            if let Some(status) = self.exited()? {
                return Ok(status);
            }
            match pidfd::open(self.id() as i32) {
                Ok(life) => {
                    let mut polled = [libc::pollfd { fd: life.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
                    // 0: a signal came.
                    if poll::poll(&mut polled, None)? > 0 && !has_exited(self.id() as i32).unwrap_or(true) {
                        // Of a traced child the exit is its parent's once the tracer has seen it.
                        std::thread::sleep(CHECK_INTERVAL);
                    }
                }
                Err(_) => std::thread::sleep(CHECK_INTERVAL),
            }
        }
    }
}

/// Whether a child of this process has exited and was not reaped. Takes nothing: neither its exit
/// nor a stop.
///
/// # Errors
/// `ECHILD` if there is no such child (any more).
pub fn has_exited(pid: i32) -> io::Result<bool> {
    Ok(matches!(how(pid)?, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED))
}

/// Whether a child of this process has exited with a core, and was not reaped. Takes nothing.
///
/// # Errors
/// As [`has_exited`].
pub fn has_dumped(pid: i32) -> io::Result<bool> {
    Ok(how(pid)? == libc::CLD_DUMPED)
}

/// How a child has exited, as `si_code` has it; 0 if it has not.
fn how(pid: i32) -> io::Result<i32> {
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: a siginfo is plain data; zeros say that nothing happened.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the struct outlives the call.
    check_int(unsafe { libc::waitid(libc::P_PID, pid as libc::id_t, &raw mut info, options) })?;
    Ok(info.si_code)
}
