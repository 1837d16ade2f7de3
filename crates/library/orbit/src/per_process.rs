//! Locks that a forked child does not inherit.
//!
//! A fork copies a lock that another thread holds as held, for ever. So what is guarded for the
//! whole process belongs to a generation of process ([`super::generation`]): a child begins with a
//! lock of its own. What the parent's lock guarded comes along as far as [`Inherit`] says, and only
//! if nobody was changing it: then the copy is whole.

use crate::generation::generation;
use std::sync::RwLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What a child has of its parent's value.
pub(crate) trait Inherit: Default + Send + Sync + 'static {
    /// Called with the parent's value as it was at the fork. May wait for no lock.
    fn inherit(&self) -> Self;
}

/// A value behind a lock, of this process alone. Made at the first use.
pub(crate) struct PerProcess<T: 'static> {
    /// Never freed: a thread may be reading it.
    now: AtomicPtr<One<T>>,
}

struct One<T> {
    process: u64,
    value: RwLock<T>,
}

impl<T: Inherit> PerProcess<T> {
    pub const fn new() -> PerProcess<T> {
        PerProcess { now: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The lock of this process, if it has one. Async-signal-safe.
    pub fn existing(&self) -> Option<&'static RwLock<T>> {
        // SAFETY: what the pointer was ever set to is a leaked box.
        let seen: Option<&'static One<T>> = unsafe { self.now.load(Ordering::Acquire).as_ref() };
        seen.filter(|one| one.process == generation()).map(|one| &one.value)
    }

    /// The lock of this process.
    pub fn lock(&self) -> &'static RwLock<T> {
        let process = generation();
        loop {
            let seen = self.now.load(Ordering::Acquire);
            // SAFETY: what the pointer was ever set to is a leaked box.
            let parents: Option<&'static One<T>> = unsafe { seen.as_ref() };
            if let Some(own) = parents.filter(|one| one.process == process) {
                return &own.value;
            }
            let value = parents.and_then(|one| one.value.try_read().ok().map(|value| value.inherit()));
            let fresh = Box::into_raw(Box::new(One { process, value: RwLock::new(value.unwrap_or_default()) }));
            if self.now.compare_exchange(seen, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // Another thread of this process was first.
                // SAFETY: made just above and given to nobody.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }
}
