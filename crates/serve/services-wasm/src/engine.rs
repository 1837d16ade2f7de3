//! What an engine is to the host: it makes a handler of a module, and the handler runs. Two are
//! there: the interpreter of this crate ([`crate::Engine`]), for all, and the compiler of
//! `orbit-services-wasmtime`, for long handlers.

use crate::WasmSpec;
use orbit_services::grant::Granted;
use orbit_services::{Account, Event, Questions, Result};
use std::sync::Arc;

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The handler returned.
    Done,
    /// It used up its budget, in its own code or in calls.
    Overrun,
    /// It trapped.
    Trapped,
}

/// Makes handlers of modules.
pub trait Loader: Send {
    /// What runs them, for messages.
    fn name(&self) -> &'static str;

    /// Loads a module with these handles.
    ///
    /// # Errors
    /// `BadObject`, with what is wrong with the module: no valid wasm, a start function, imports
    /// that services have not got, more memory than allowed, no handler. `Invalid` for what
    /// [`crate::calls::check`] refuses.
    fn load(&self, spec: &WasmSpec, module: &[u8], grants: Vec<Granted>) -> Result<Box<dyn Handler>>;
}

/// A loaded module. One thread at a time uses it.
pub trait Handler: Send {
    /// Runs it once for an event, within its budget, on the calling thread, and charges it.
    fn run(&mut self, event: &Event) -> Outcome;

    /// What it used.
    fn account(&self) -> Account;

    /// An event was dropped: the reservation is used up.
    fn count_unpaid(&mut self);

    /// The questions that wait for it.
    fn questions(&self) -> &Arc<Questions>;

    /// Its handles.
    fn grants(&self) -> &[Granted];
}
