//! A timer at the dispatcher: calls a function each interval, with the number of intervals since
//! the last call.

use super::dispatcher::{Dispatcher, Registration, Source};
use orbit_linux::timerfd::Periodic;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::Arc,
    time::Duration,
};

struct Timer<F> {
    timer: Periodic,
    tick: F,
}

impl<F: FnMut(u64) + Send> Source for Timer<F> {
    fn fd(&self) -> RawFd {
        self.timer.as_fd().as_raw_fd()
    }

    fn ready(&mut self) {
        let passed = self.timer.expired();
        if passed > 0 {
            (self.tick)(passed);
        }
    }
}

/// Calls `tick` on the dispatcher's thread every `interval_ns` (1 us to 1 year), until the
/// registration is dropped. `tick` must not block.
pub fn every(
    dispatcher: &Arc<Dispatcher>,
    interval_ns: u64,
    tick: impl FnMut(u64) + Send + 'static,
) -> io::Result<Registration> {
    let timer = Periodic::start(Duration::from_nanos(interval_ns))?;
    dispatcher.add(Box::new(Timer { timer, tick }))
}
