//! What pins that listen at the kernel's tracepoints share: the kernel half while somebody
//! subscribes, and the programs for it.

use crate::kernel::{self, Attachment, Kernel};
use orbit_rmk::{Env, PinError, Probe, Subscription};
use std::{collections::HashMap, sync::Arc};

/// Holds the kernel half only while it has a subscription, so that a pin used for its operations
/// alone costs nothing there.
pub(super) struct Traced {
    env: Env,
    kernel: Option<Arc<Kernel>>,
    attached: HashMap<u64, Vec<Attachment>>,
}

impl Traced {
    pub(super) fn new(env: &Env) -> Traced {
        Traced { env: env.clone(), kernel: None, attached: HashMap::new() }
    }

    /// Lets the subscription's events flow: attaches the programs that raise them. `classes`: see
    /// `bpf/rmk.h`.
    pub(super) fn subscribe(
        &mut self,
        subscription: &Arc<Subscription>,
        programs: &[&'static str],
        classes: u64,
    ) -> Result<(), PinError> {
        let kernel = match &self.kernel {
            Some(kernel) => kernel.clone(),
            None => Kernel::of(&self.env)?,
        };
        let attached = kernel.attach_for(&subscription.filter, programs)?;
        kernel.flow().activate(subscription, classes)?;
        self.attached.insert(subscription.id, attached);
        self.kernel = Some(kernel);
        Ok(())
    }

    pub(super) fn unsubscribe(&mut self, subscription: &Subscription) {
        if let Some(kernel) = &self.kernel {
            kernel.flow().deactivate(subscription);
        }
        self.attached.remove(&subscription.id);
        if self.attached.is_empty() {
            self.kernel = None;
        }
    }
}

/// The probe of a pin whose operations work everywhere and whose events need the kernel half.
pub(super) fn probe(env: &Env) -> Probe {
    match kernel::support(env) {
        Ok(()) => Probe::Full,
        Err(why) => Probe::Fallback(format!("its operations only, no events: {why}")),
    }
}
