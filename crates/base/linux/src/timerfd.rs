//! A timer behind a descriptor, which is readable once it has expired.

use crate::{Support, check_int, invalid};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// A timer that expires again and again, by the monotonic clock. Close-on-exec, non-blocking.
#[derive(Debug)]
pub struct Periodic(OwnedFd);

impl Periodic {
    /// Starts one: it expires first after `interval`, which is 1 us to 1 year.
    ///
    /// # Errors
    /// `InvalidInput` for another interval; `EMFILE`, `ENFILE`.
    pub fn start(interval: Duration) -> io::Result<Periodic> {
        const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 86_400);
        if !(Duration::from_micros(1)..=MAX_TIMEOUT).contains(&interval) {
            return Err(invalid(format!("interval {} ns is outside 1 us to 1 year", interval.as_nanos())));
        }
        // SAFETY: no pointers are passed.
        let fd =
            check_int(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) })?;
        // SAFETY: the kernel just made this descriptor for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let interval = crate::futex::timespec(interval);
        let spec = libc::itimerspec { it_interval: interval, it_value: interval };
        // SAFETY: `spec` is live for the call; the former setting is not asked for.
        check_int(unsafe { libc::timerfd_settime(fd.as_raw_fd(), 0, &raw const spec, std::ptr::null_mut()) })?;
        Ok(Periodic(fd))
    }

    /// How often it has expired since the last time this was asked; 0 if it has not. Never blocks.
    pub fn expired(&self) -> u64 {
        let mut times = 0u64;
        // SAFETY: eight bytes are written to a live local.
        let n = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut times).cast(), 8) };
        if n == 8 { times } else { 0 }
    }
}

impl AsFd for Periodic {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits for a timer of a microsecond.
pub fn probe() -> Support {
    let tried = Periodic::start(Duration::from_micros(1)).and_then(|timer| {
        let mut fds = [libc::pollfd { fd: timer.0.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        crate::poll::poll(&mut fds, Some(Duration::from_secs(1)))?;
        if timer.expired() > 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EIO)) }
    });
    Support::from_result("timerfd", tried, |_| String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_expires_again_and_again() {
        let timer = Periodic::start(Duration::from_millis(1)).expect("a timer");
        let mut times = 0;
        while times < 3 {
            let mut fds = [libc::pollfd { fd: timer.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 }];
            crate::poll::poll(&mut fds, None).expect("a wait");
            times += timer.expired();
        }
        for interval in [Duration::ZERO, Duration::from_secs(366 * 86_400)] {
            let error = Periodic::start(interval).expect_err("outside the limits");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
