//! What the core gives a pin to work with: [`Env`], and what pins of one core share: [`Shared`].

use super::{dispatcher::Dispatcher, subscription::lock};
use crate::error::{PinError, Result};
use std::{
    any::{Any, TypeId},
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, Weak},
};

/// Something that the pins of one core share, such as a kernel half or a tracer: made by the first
/// pin that needs it, dropped with the last one that holds it. Of each type a core has one at a
/// time.
pub trait Shared: Any + Send + Sync {
    /// A process became the core's own (`true`) or is no longer (`false`): subscriptions to
    /// everyone do not see the core's own.
    fn mark_own(&self, _pid: u32, _own: bool) {}

    /// Names of the kernel programs that it has attached now.
    fn attached(&self) -> Vec<&'static str> {
        Vec::new()
    }
}

/// The dispatcher, the core's own processes, and what pins share. Clones are of the same core.
#[derive(Clone)]
pub struct Env {
    dispatcher: Arc<Dispatcher>,
    shared: Arc<Mutex<BTreeMap<TypeId, Weak<dyn Shared>>>>,
    own: Arc<Mutex<BTreeSet<u32>>>,
    kernel_programs: bool,
}

impl Env {
    /// Starts a dispatcher; `kernel_programs`: whether pins may use kernel programs. A core has its
    /// own; tests of pins make one.
    ///
    /// # Errors
    /// If the dispatcher's thread cannot be started.
    pub fn new(kernel_programs: bool) -> Result<Env> {
        let own = Arc::new(Mutex::new(BTreeSet::from([std::process::id()])));
        Ok(Env { dispatcher: Dispatcher::start()?, shared: Arc::default(), own, kernel_programs })
    }

    /// Where sources of events add themselves.
    pub fn dispatcher(&self) -> &Arc<Dispatcher> {
        &self.dispatcher
    }

    /// Whether pins of this core may use kernel programs (`CoreBuilder::kernel_programs`).
    pub fn kernel_programs(&self) -> bool {
        self.kernel_programs
    }

    /// Processes that are the core's own now.
    pub fn own(&self) -> Vec<u32> {
        lock(&self.own).iter().copied().collect()
    }

    /// What this core's pins share of this type; made now if none of them has it. Others wait
    /// meanwhile.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn shared<T: Shared>(
        &self,
        make: impl FnOnce() -> std::result::Result<Arc<T>, PinError>,
    ) -> std::result::Result<Arc<T>, PinError> {
        let mut all = lock(&self.shared);
        if let Some(there) = all.get(&TypeId::of::<T>()).and_then(Weak::upgrade) {
            let there: Arc<dyn Any + Send + Sync> = there;
            if let Ok(there) = there.downcast() {
                return Ok(there);
            }
        }
        let made = make()?;
        let shared: Arc<dyn Shared> = made.clone();
        all.insert(TypeId::of::<T>(), Arc::downgrade(&shared));
        Ok(made)
    }

    fn all_shared(&self) -> Vec<Arc<dyn Shared>> {
        lock(&self.shared).values().filter_map(Weak::upgrade).collect()
    }

    /// Names of the kernel programs that are attached now.
    pub(crate) fn attached(&self) -> Vec<&'static str> {
        self.all_shared().iter().flat_map(|shared| shared.attached()).collect()
    }

    /// Marks a process as the core's own: it is not seen by subscriptions to everyone.
    pub(crate) fn mark_own(&self, pid: u32, own: bool) {
        // Let go before the other lock is taken: what is made in `shared` takes them in the other
        // order.
        if own {
            lock(&self.own).insert(pid);
        } else {
            lock(&self.own).remove(&pid);
        }
        self.all_shared().iter().for_each(|shared| shared.mark_own(pid, own));
    }
}
