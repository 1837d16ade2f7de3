//! The alarm of a handler's thread: a timer whose signal moves the engine's epoch on, which the
//! module's code compares at each loop and call. Handlers of that signal do nothing else, so it may
//! come at any time.
//!
//! It fires again and again until the run is over: one that fires while the engine computes the
//! next deadline moves that on, too.

use orbit_linux::signals::{Action, Set};
use orbit_services::sys;
use orbit_services::{Error, Kind, Result};
use std::sync::OnceLock;

/// The signal of alarms. Services of the host use 16 (or 23) and 61.
const SIGNAL: i32 = 62;
/// The least time of an alarm: below it the module would do nothing but answer them, nanoseconds.
const LEAST_NS: u64 = 10_000;
/// Until it fires again, nanoseconds.
const AGAIN_NS: u64 = 1_000_000;

/// The engine of this process, whose epoch alarms move on.
static ENGINE: OnceLock<wasmtime::Engine> = OnceLock::new();

/// Makes an engine the one of this process, once; answers it. Its alarms can fire from then on.
///
/// # Errors
/// `System` when the signal's handler cannot be installed.
pub(crate) fn engine(make: impl FnOnce() -> Result<wasmtime::Engine>) -> Result<&'static wasmtime::Engine> {
    if ENGINE.get().is_none() {
        // Of two threads that come here at once, one's engine is dropped.
        let _ = ENGINE.set(make()?);
        let action = Action::handler(fired as extern "C" fn(i32) as usize, libc::SA_RESTART, &Set::of([]));
        // SAFETY: the handler adds to one atomic word of an engine that is never dropped, which is
        // async-signal-safe.
        unsafe { action.install(SIGNAL) }.map_err(|error| Error::system("the signal of alarms", &error))?;
    }
    ENGINE.get().ok_or_else(|| Error::new(Kind::Unsupported, "there is no engine"))
}

extern "C" fn fired(_: i32) {
    if let Some(engine) = ENGINE.get() {
        engine.increment_epoch();
    }
}

/// A timer of the thread that sets it.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    /// The thread and its timer.
    made: Option<(i32, i32)>,
}

impl Alarm {
    /// Has it fire in `ns` nanoseconds, and then again and again. False where no timer can be made:
    /// a run must not begin then.
    pub(crate) fn set(&mut self, ns: u64) -> bool {
        let thread = sys::thread();
        let timer = match self.made {
            Some((made_by, timer)) if made_by == thread => timer,
            _ => {
                self.delete();
                let timer = sys::timer_create(SIGNAL, 0, thread) as i32;
                if timer < 0 {
                    return false;
                }
                self.made = Some((thread, timer));
                timer
            }
        };
        sys::timer_repeat(timer, ns.max(LEAST_NS), AGAIN_NS) >= 0
    }

    /// The run is over.
    pub(crate) fn clear(&self) {
        if let Some((_, timer)) = self.made {
            sys::timer_set(timer, 0);
        }
    }

    fn delete(&mut self) {
        if let Some((_, timer)) = self.made.take() {
            sys::timer_delete(timer);
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.delete();
    }
}
