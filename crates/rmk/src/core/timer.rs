//! A timer at the dispatcher: calls a function each interval, with the number of intervals since the last call.

use super::dispatcher::{Dispatcher, Registration, Source};
use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    sync::Arc,
};

struct Timer<F> {
    fd: OwnedFd,
    tick: F,
}

impl<F: FnMut(u64) + Send> Source for Timer<F> {
    fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn ready(&mut self) {
        let mut passed = 0u64;
        // SAFETY: eight bytes are written to a live local.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut passed).cast(), 8) };
        if n == 8 {
            (self.tick)(passed);
        }
    }
}

/// Calls `tick` on the dispatcher's thread every `interval_ns` (1 us to 1 year), until the registration is dropped. `tick` must not block.
pub fn every(
    dispatcher: &Arc<Dispatcher>,
    interval_ns: u64,
    tick: impl FnMut(u64) + Send + 'static,
) -> io::Result<Registration> {
    if !(1_000..=31_536_000_000_000_000).contains(&interval_ns) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("interval {interval_ns} ns is outside 1 us to 1 year"),
        ));
    }
    // SAFETY: no pointers are passed.
    let raw = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and belongs to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    let interval =
        libc::timespec { tv_sec: (interval_ns / 1_000_000_000) as i64, tv_nsec: (interval_ns % 1_000_000_000) as i64 };
    let spec = libc::itimerspec { it_interval: interval, it_value: interval };
    // SAFETY: `spec` is live for the call; the old value is not asked for.
    if unsafe { libc::timerfd_settime(raw, 0, &spec, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    dispatcher.add(Box::new(Timer { fd, tick }))
}
