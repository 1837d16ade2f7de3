//! A counter behind a descriptor: signalling it makes it readable, draining it makes it silent
//! again.

use crate::{Support, check_int};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A new event counter at 0, non-blocking and close-on-exec.
///
/// # Errors
/// `EMFILE`, `ENFILE`.
pub fn create() -> io::Result<OwnedFd> {
    // SAFETY: two integers.
    let fd = check_int(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })?;
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Adds 1: the descriptor polls readable until it is drained. Never blocks: a full counter is
/// readable anyhow. Async-signal-safe.
pub fn signal(fd: BorrowedFd<'_>) {
    let one = 1u64;
    // SAFETY: eight bytes of a live integer.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Takes what has been signalled since the last time and sets the counter to 0. Never blocks.
/// Async-signal-safe.
pub fn drain(fd: BorrowedFd<'_>) -> u64 {
    let mut count = 0u64;
    // SAFETY: eight bytes of a live integer.
    let n = unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) };
    if n == 8 { count } else { 0 }
}

/// Signals and drains one.
pub fn probe() -> Support {
    let tried = create().and_then(|fd| {
        signal(fd.as_fd());
        if drain(fd.as_fd()) == 1 { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EIO)) }
    });
    Support::from_result("eventfd", tried, |_| String::new())
}
