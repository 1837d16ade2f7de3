//! What a pin is: [`Pin`], and how the core knows of one before it is loaded: [`PinKind`].

use crate::{
    command::{Command, Reply},
    core::{Env, Subscription},
    error::PinError,
    event::Kind,
};
use std::{fmt, sync::Arc};

/// Whether a pin can work here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Entirely.
    Full,
    /// In another way, or in part: which, and why.
    Fallback(String),
    /// Not at all: what is missing, and what to install or allow.
    Missing(String),
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Probe::Full => write!(f, "yes"),
            Probe::Fallback(how) => write!(f, "fallback: {how}"),
            Probe::Missing(why) => write!(f, "missing: {why}"),
        }
    }
}

/// One facility of the system, loaded. The core calls it from one thread at a time.
///
/// `user` is the module on whose behalf the call is made; what a pin makes for one user (counters,
/// breakpoints, watches) it must not let another use.
pub trait Pin: Send {
    /// Does what the command says.
    fn command(&mut self, user: u64, command: &Command) -> Result<Reply, PinError>;
    /// From now on raises the subscription's events, as its filter says.
    fn subscribe(&mut self, subscription: &Arc<Subscription>) -> Result<(), PinError>;
    /// Raises them no more.
    fn unsubscribe(&mut self, subscription: &Subscription);
    /// Forgets all that it made for a user.
    fn forget(&mut self, user: u64);
}

/// Says whether a pin can work here.
pub type Tries = dyn Fn(&Env) -> Probe + Send + Sync;
/// Loads a pin.
pub type Loads = dyn Fn(&Env) -> Result<Box<dyn Pin>, PinError> + Send + Sync;

/// What the core knows of a pin that may not be loaded.
#[derive(Clone)]
pub struct PinKind {
    /// Its name, as modules use it.
    pub name: &'static str,
    /// One sentence: what it gives.
    pub about: &'static str,
    /// By what it works where it works entirely.
    pub facility: &'static str,
    /// Names of its operations ([`Command`]).
    pub operations: &'static [&'static str],
    /// Events that it raises where it works entirely.
    pub events: &'static [Kind],
    /// Whether it can work here. Quick, without side effects.
    pub probe: &'static Tries,
    /// Loads it.
    pub load: &'static Loads,
}
