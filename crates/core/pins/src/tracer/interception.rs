//! What one pin holds back, by the core's tracer: [`Interception`].

use super::{Decision, Of, Tracer, What};
use orbit_rmk::{Env, PinError, Subscription};
use std::sync::Arc;

/// A pin's way to the tracer, which is there from the first use on for as long as a pin has it.
pub(crate) struct Interception {
    pin: &'static str,
    env: Env,
    tracer: Option<Arc<Tracer>>,
}

impl Interception {
    pub(crate) fn new(env: &Env, pin: &'static str) -> Interception {
        Interception { pin, env: env.clone(), tracer: None }
    }

    fn of(&self, user: u64) -> Of {
        Of { pin: self.pin, user }
    }

    fn tracer(&mut self) -> Result<Arc<Tracer>, PinError> {
        if let Some(tracer) = &self.tracer {
            return Ok(tracer.clone());
        }
        let tracer = Tracer::of(&self.env)?;
        self.tracer = Some(tracer.clone());
        Ok(tracer)
    }

    /// From now on, in place of what the user wanted there before.
    pub(crate) fn intercept(&mut self, user: u64, pid: u32, what: What) -> Result<(), PinError> {
        self.tracer()?.intercept(self.of(user), pid, what)
    }

    pub(crate) fn decide(&mut self, user: u64, ticket: u64, decision: Decision) -> Result<(), PinError> {
        self.tracer()?.decide(self.of(user), ticket, decision)
    }

    pub(crate) fn release(&mut self, user: u64, pid: u32) -> Result<(), PinError> {
        self.tracer()?.release(self.of(user), Some(pid))
    }

    /// All that it holds back for a user continues.
    pub(crate) fn forget(&mut self, user: u64) {
        if let Some(tracer) = &self.tracer {
            // Without rules of this user there is nothing to release, which is what is wanted.
            let _ = tracer.release(self.of(user), None);
        }
    }

    pub(crate) fn subscribe(&mut self, subscription: &Arc<Subscription>) -> Result<(), PinError> {
        self.tracer()?.subscribe(self.pin, subscription);
        Ok(())
    }

    pub(crate) fn unsubscribe(&mut self, subscription: &Subscription) {
        if let Some(tracer) = &self.tracer {
            tracer.unsubscribe(subscription);
        }
    }
}
