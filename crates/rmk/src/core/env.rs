//! What the core gives a pin to work with: [`Env`].

use super::{
    dispatcher::Dispatcher,
    kernel::{self, Kernel},
    subscription::lock,
};
use crate::{error::PinError, pins};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, Weak},
};

/// The dispatcher, and the kernel half where it can be had.
#[derive(Clone)]
pub struct Env {
    dispatcher: Arc<Dispatcher>,
    kernel: Arc<Mutex<Weak<Kernel>>>,
    tracer: Arc<Mutex<Weak<pins::Tracer>>>,
    own: Arc<Mutex<BTreeSet<u32>>>,
    allow_kernel: bool,
}

impl Env {
    pub(crate) fn new(dispatcher: Arc<Dispatcher>, allow_kernel: bool) -> Env {
        let own = BTreeSet::from([std::process::id()]);
        Env { dispatcher, kernel: Arc::default(), tracer: Arc::default(), own: Arc::new(Mutex::new(own)), allow_kernel }
    }

    /// Where sources of events add themselves.
    pub fn dispatcher(&self) -> &Arc<Dispatcher> {
        &self.dispatcher
    }

    /// Whether the kernel half can be loaded; if not, what to allow.
    pub fn kernel_support(&self) -> Result<(), String> {
        if !self.allow_kernel {
            return Err("kernel programs are switched off for this core (CoreBuilder::kernel_programs)".into());
        }
        kernel::probe()
    }

    /// The kernel half, loaded now if no pin has it yet.
    pub(crate) fn kernel(&self) -> Result<Arc<Kernel>, PinError> {
        self.kernel_support().map_err(PinError::Refused)?;
        let mut slot = lock(&self.kernel);
        if let Some(kernel) = slot.upgrade() {
            return Ok(kernel);
        }
        let own: Vec<u32> = lock(&self.own).iter().copied().collect();
        let kernel = Kernel::load(&self.dispatcher, &pins::call_classes(), &own)?;
        *slot = Arc::downgrade(&kernel);
        Ok(kernel)
    }

    /// The core's tracer, started now if no pin has it yet: a program has one tracer at a time.
    pub(crate) fn tracer(&self) -> Result<Arc<pins::Tracer>, PinError> {
        let mut slot = lock(&self.tracer);
        if let Some(tracer) = slot.upgrade() {
            return Ok(tracer);
        }
        let tracer = pins::Tracer::start().map_err(|error| PinError::of("starting the tracer's thread", error))?;
        *slot = Arc::downgrade(&tracer);
        Ok(tracer)
    }

    /// Names of the kernel programs that are attached now.
    pub(crate) fn attached(&self) -> Vec<&'static str> {
        lock(&self.kernel).upgrade().map(|kernel| kernel.attached()).unwrap_or_default()
    }

    /// Marks a process as the core's own: it is not seen by subscriptions to everyone.
    pub(crate) fn mark_own(&self, pid: u32, own: bool) {
        // Let go before the kernel half's lock is taken: `kernel` takes them in the other order.
        if own {
            lock(&self.own).insert(pid);
        } else {
            lock(&self.own).remove(&pid);
        }
        if let Some(kernel) = lock(&self.kernel).upgrade() {
            kernel.flow().mark_own(pid, own);
        }
    }
}
