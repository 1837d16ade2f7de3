//! Waiting for several descriptors at once.

use crate::Support;
use crate::futex::timespec;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

/// Blocks until one of `fds` has an event, at most for `timeout` (`None`: no limit); answers how
/// many have.
///
/// 0 when the time is over or a signal came: callers with a deadline read the clock themselves.
/// Nanosecond timeouts. Async-signal-safe.
///
/// # Errors
/// `EINVAL` for more descriptors than the limit of open files, `ENOMEM`.
pub fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    let spec = timeout.map(timespec);
    let spec_ptr = spec.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the slice and the timespec live until the call returns; no signal mask is given.
    let n = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, spec_ptr, ptr::null()) };
    if n >= 0 {
        return Ok(n as usize);
    }
    let e = io::Error::last_os_error();
    match e.raw_os_error() {
        Some(libc::EINTR) => Ok(0),
        // A filter that knows the older call only.
        Some(libc::EPERM | libc::ENOSYS) => poll_in_ms(fds, timeout),
        _ => Err(e),
    }
}

/// The older call: whole milliseconds, not less than asked for.
fn poll_in_ms(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    let ms = timeout.map_or(-1, |time| i32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
    // SAFETY: the slice lives until the call returns.
    let n = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ms) };
    if n >= 0 {
        return Ok(n as usize);
    }
    let e = io::Error::last_os_error();
    if e.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(e) }
}

/// Whether there is something to read, now. A descriptor that cannot be polled has nothing.
pub fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    poll(&mut fds, Some(Duration::ZERO)).is_ok_and(|count| count > 0) && fds[0].revents & libc::POLLIN != 0
}

/// Polls nothing for no time.
pub fn probe() -> Support {
    Support::from_result("ppoll", poll(&mut [], Some(Duration::ZERO)), |_| String::new())
}
