//! What the server reports to a module: its events, and each command before it runs.

use std::ffi::c_int;

use crate::context::bytes;
use crate::{Context, core, ffi};

/// An event of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The event loop is about to sleep, or has slept: [`AFTER_SLEEP`].
    EventLoop = 15,
    /// Settings have changed.
    Config = 16,
}

/// The subevent of [`Event::EventLoop`] by which the loop has slept.
pub const AFTER_SLEEP: u64 = 1;

impl Context {
    /// Has this run at each such event. False where the server has no such event. The context is
    /// that of the module's load.
    pub fn subscribe(&self, event: Event, run: ffi::OnEvent) -> bool {
        let event = ffi::Event { id: event as u64, version: 1 };
        // SAFETY: the context is good, and the function of the type that events are reported to.
        unsafe { (core().subscribe)(self.raw, event, Some(run)) == ffi::OK }
    }

    /// Has this run before each command but those that the module calls. False if the server does
    /// not allow it. The context is that of the module's load.
    pub fn filter(&self, run: ffi::OnFilter) -> bool {
        // SAFETY: the context is good, and the function of the type of a filter.
        !unsafe { (core().register_filter)(self.raw, run, ffi::NOT_OWN_CALLS) }.is_null()
    }
}

/// A command that is about to run.
pub struct Filtered(*mut ffi::Filter);

impl Filtered {
    /// The command that a filter was called for.
    ///
    /// # Safety
    /// The server has called the filter with this, and the result is used in that call only.
    pub unsafe fn new(raw: *mut ffi::Filter) -> Filtered {
        Filtered(raw)
    }

    /// Its words: the name and the arguments.
    pub fn count(&self) -> usize {
        // SAFETY: the command is about to run.
        usize::try_from(unsafe { (core().filtered_count)(self.0) }).unwrap_or(0)
    }

    /// One of the words; none from the count on.
    pub fn word(&self, at: usize) -> &[u8] {
        let Ok(at) = c_int::try_from(at) else { return b"" };
        // SAFETY: the command is about to run; its words live as long.
        unsafe {
            let text = (core().filtered_argument)(self.0, at);
            if text.is_null() { b"" } else { bytes(text) }
        }
    }
}
