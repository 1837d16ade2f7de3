//! Handles of processes: a pidfd names one process for ever, also after its number was given to
//! another.
//!
//! A pidfd polls readable (`POLLIN`) when its process has ended. Only the parent can learn how it
//! ended ([`wait`]).

use crate::{Support, check, check_int};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// `waitid` id type "pidfd" (Linux 5.4).
const P_PIDFD: libc::idtype_t = 3;

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// `libc::CLD_EXITED`, `CLD_KILLED` or `CLD_DUMPED`.
    pub code: i32,
    /// The exit status if it exited, else the signal.
    pub status: i32,
}

impl Ended {
    /// The exit status, if the process exited of itself.
    pub fn exit_status(&self) -> Option<i32> {
        (self.code == libc::CLD_EXITED).then_some(self.status)
    }

    /// The signal that ended the process, if one did.
    pub fn signal(&self) -> Option<i32> {
        (self.code == libc::CLD_KILLED || self.code == libc::CLD_DUMPED).then_some(self.status)
    }
}

/// A handle of the process that has this id now, close-on-exec.
///
/// # Errors
/// `ESRCH` if there is none, `EINVAL` for a thread that leads no group. `Unsupported`, naming the
/// call, where the kernel has no `pidfd_open` (before Linux 5.3), or no `pidfd_send_signal`,
/// without which a handle could not end its process.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: two integers.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) }).map_err(|e| named("pidfd_open", e))?;
    // SAFETY: the kernel just made this descriptor for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    match send_signal(fd.as_fd(), 0) {
        Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => Err(named("pidfd_send_signal", e)),
        _ => Ok(fd),
    }
}

/// Names the call that is missing.
fn named(call: &str, error: io::Error) -> io::Error {
    if error.raw_os_error() != Some(libc::ENOSYS) {
        return error;
    }
    io::Error::new(
        io::ErrorKind::Unsupported,
        format!("{call}: {error}: needs Linux 5.3, or a filter that lets it pass"),
    )
}

/// Whether the process has ended, reaped or not. Does not wait.
pub fn has_ended(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    crate::poll::poll(&mut fds, Some(std::time::Duration::ZERO)).unwrap_or(0) > 0
}

/// Sends a signal to exactly the process of this handle (0: only checks that it is there).
/// Async-signal-safe.
///
/// # Errors
/// `ESRCH` when it has ended and was reaped, `EPERM`.
pub fn send_signal(fd: BorrowedFd<'_>, sig: i32) -> io::Result<()> {
    // SAFETY: no siginfo is given; the rest are integers.
    let r =
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), sig, ptr::null::<libc::siginfo_t>(), 0) };
    check(r).map(|_| ())
}

/// Waits for a child of the calling process to end, reaps it and says how it ended, whatever its
/// exit signal (`__WALL`). Asks only once it has ended, so that no stop is taken from a thread of
/// this process that traces it ([`crate::child`]).
///
/// `Ok(None)` only with `nohang`: it has not ended. Otherwise blocks. Async-signal-safe.
///
/// # Errors
/// `ECHILD` when the process is no child of the caller, was reaped already, or SIGCHLD is ignored.
pub fn wait(fd: BorrowedFd<'_>, nohang: bool) -> io::Result<Option<Ended>> {
    let options = libc::WEXITED | libc::__WALL | if nohang { libc::WNOHANG } else { 0 };
    loop {
        let mut fds = [libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        if crate::poll::poll(&mut fds, nohang.then_some(std::time::Duration::ZERO))? == 0 {
            if nohang {
                return Ok(None);
            }
            continue;
        }
        // SAFETY: a siginfo is plain data; zero means below that nothing happened.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the struct outlives the call.
        let r = unsafe { libc::waitid(P_PIDFD, fd.as_raw_fd() as libc::id_t, &raw mut info, options) };
        match check_int(r) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
            // SAFETY: waitid filled the fields of a child's end, or left zero.
            Ok(_) if unsafe { info.si_pid() } == 0 => return Ok(None),
            // SAFETY: as above.
            Ok(_) => return Ok(Some(Ended { code: info.si_code, status: unsafe { info.si_status() } })),
        }
    }
}

/// A descriptor of our own, close-on-exec, for the open file behind descriptor `fd` of the process.
/// Flags and offset of the file are shared.
///
/// # Errors
/// `EBADF` if the process has no such descriptor, `EPERM` without the right to trace it, `ESRCH`
/// when it has ended, `ENOSYS` before Linux 5.6.
pub fn duplicate(process: BorrowedFd<'_>, fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: three integers.
    let copy = check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) })?;
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(copy as i32) })
}

/// Opens the calling process and sends it signal 0.
pub fn probe() -> Support {
    let tried = open(std::process::id() as i32).and_then(|fd| send_signal(fd.as_fd(), 0));
    Support::from_result("pidfd_open", tried, |_| "needs Linux 5.3".into())
}
