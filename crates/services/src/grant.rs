//! What a handle stands for, on the host's side: an attribute of one target, the rights to it, and
//! its guard.

use crate::error::{Error, Kind, Result};
use crate::manager::{AttributeClass, Manager};
use orbit_sandbox_lib::abi::{GET, Grant, SET};
use orbit_sandbox_lib::guard::{Guard, Verdict};
use std::sync::Arc;

/// See the module's head. Made by [`crate::Host::grant`], which notes the attribute's value, so
/// that it can be put back also when the host is killed; given back by [`crate::Host::release`].
#[derive(Clone, Debug)]
pub struct Granted {
    pub(crate) manager: Arc<dyn Manager>,
    pub(crate) class: AttributeClass,
    pub(crate) target: i32,
    pub(crate) rights: u32,
    pub(crate) guard: Guard,
    pub(crate) original: i64,
    /// Its place in the region's ledger.
    pub(crate) entry: Option<usize>,
}

impl Granted {
    /// The class.
    pub fn class(&self) -> &AttributeClass {
        &self.class
    }

    /// The thread or process it is about.
    pub fn target(&self) -> i32 {
        self.target
    }

    /// Whether it may be read.
    pub fn may_get(&self) -> bool {
        self.rights & GET != 0
    }

    /// Whether it may be set.
    pub fn may_set(&self) -> bool {
        self.rights & SET != 0
    }

    /// Reads the attribute.
    ///
    /// # Errors
    /// Those of [`Manager::read`].
    pub fn read(&self) -> Result<i64> {
        self.manager.read(&self.class, self.target)
    }

    /// Asks for a value: what the guard says, and what came of applying it (nothing is applied
    /// where the guard refuses).
    pub fn set(&self, value: i64) -> (Verdict, Result<()>) {
        let verdict = if self.may_set() { self.guard.judge(value) } else { Verdict::NoRight };
        let applied = verdict.value().map_or(Ok(()), |value| self.manager.apply(&self.class, self.target, value));
        (verdict, applied)
    }

    /// Puts back what the attribute was when it was granted, if it may have been set. A target that
    /// is gone needs nothing put back.
    ///
    /// # Errors
    /// Those of [`Manager::apply`], with the attribute and the value.
    pub fn restore(&self) -> Result<()> {
        if !self.may_set() {
            return Ok(());
        }
        match self.manager.apply(&self.class, self.target, self.original) {
            Err(error) if !matches!(error.kind(), Kind::NotFound | Kind::System(libc::ESRCH)) => {
                let (name, target, value) = (self.class.name, self.target, self.original);
                let text = format!("{name} of {target} could not be put back to {value}: {error}");
                Err(Error::new(error.kind(), text))
            }
            _ => Ok(()),
        }
    }

    /// As native services have it.
    pub(crate) fn native(&self, handle: u64) -> Grant {
        Grant {
            handle,
            class: self.class.id,
            rights: self.rights,
            target: self.target,
            clamp: u32::from(self.guard.clamp),
            min: self.guard.min,
            max: self.guard.max,
        }
    }
}
