//! The rival: a heartbeat as systemd's `WatchdogSec=` wants it. The server's main loop sends
//! `WATCHDOG=1` at half the time allowed (the injected library does that for it); whoever hears
//! nothing for the time allowed takes it for hung.

use super::scratch;
use orbit_console::out::Failure;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// Listens to a server's heartbeat.
pub struct Watchdog {
    last: Arc<AtomicI64>,
    allowed: Duration,
}

impl Watchdog {
    /// Listens at this path from now on, until the process ends or the path is gone.
    pub fn listen(at: &Path, allowed: Duration) -> std::io::Result<Watchdog> {
        let socket = UnixDatagram::bind(at)?;
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        let last = Arc::new(AtomicI64::new(0));
        let heard = Arc::downgrade(&last);
        std::thread::spawn(move || {
            let mut text = [0; 64];
            while let Some(last) = heard.upgrade() {
                if socket.recv(&mut text).is_ok() {
                    last.store(orbit_rmk::now() as i64, Ordering::Relaxed);
                }
            }
        });
        Ok(Watchdog { last, allowed })
    }

    /// The time allowed, milliseconds.
    pub fn allowed_ms(&self) -> usize {
        self.allowed.as_millis() as usize
    }

    /// Waits until it takes a server that hung at `hung` (nanoseconds of the monotonic clock) for
    /// such: milliseconds from then on; nothing if the heartbeat continued. `pass` lets time pass.
    pub fn wait(
        &self,
        hung: i64,
        mut pass: impl FnMut(Duration) -> Result<(), Failure>,
    ) -> Result<Option<f64>, Failure> {
        let allowed = self.allowed.as_nanos() as i64;
        loop {
            scratch::go_on()?;
            pass(Duration::from_millis(20))?;
            let (last, now) = (self.last.load(Ordering::Relaxed), orbit_rmk::now() as i64);
            // One that was on its way when the server hung is no sign of life; one that was due
            // after is.
            if last > hung + allowed / 4 {
                return Ok(None);
            }
            let due = last.max(hung - allowed) + allowed;
            if now >= due {
                return Ok(Some((due - hung) as f64 / 1e6));
            }
        }
    }
}
