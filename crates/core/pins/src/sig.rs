//! P_SIG: signals: events when one is raised or delivered, at the kernel's tracepoints; and
//! interception by ptrace, where a signal is passed, dropped, replaced, or held back until a module
//! decides.
//!
//! An intercepted process has this core for its debugger, so it can have no other. SIGKILL is never
//! seen. Without kernel programs interception works all the same.

use super::{
    kernel, overflow,
    traced::{self, Traced},
    tracer::{Decision, Interception, What},
};
use orbit_rmk::{Command, Kind, Pin, PinError, PinKind, Probe, Reply, Subscription, Verdict};
use std::sync::Arc;

const NAME: &str = "P_SIG";

pub(super) const KIND: PinKind = PinKind {
    name: NAME,
    about: "signals raised and delivered; interception: pass, drop, replace, hold",
    facility: "kernel programs at the signals' tracepoints; interception by ptrace",
    operations: &["SignalIntercept", "SignalDecide", "SignalRelease", "SignalSend"],
    events: &[Kind::SignalRaised, Kind::SignalDelivered, Kind::SignalIntercepted],
    probe: &|env| match traced::probe(env) {
        Probe::Fallback(_) => Probe::Fallback(format!(
            "interception and its events only: {}",
            kernel::support(env).err().unwrap_or_default()
        )),
        other => other,
    },
    load: &|env| Ok(Box::new(Sig { traced: Traced::new(env), interception: Interception::new(env, NAME) })),
};

struct Sig {
    traced: Traced,
    interception: Interception,
}

impl Pin for Sig {
    fn command(&mut self, user: u64, command: &Command) -> Result<Reply, PinError> {
        match command {
            Command::SignalIntercept { pid, signals, verdict } => {
                signals.iter().try_for_each(|signal| exists(*signal))?;
                possible(verdict)?;
                let mask = signals.iter().fold(0u64, |mask, signal| mask | 1 << (signal - 1));
                let mask = if signals.is_empty() { u64::MAX } else { mask };
                self.interception.intercept(user, *pid, What::Signals { mask, verdict: verdict.clone() })?;
            }
            Command::SignalDecide { verdict: Verdict::Hold, .. } => {
                return Err(PinError::Refused("a held signal is held already: decide Pass, Drop or Replace".into()));
            }
            Command::SignalDecide { ticket, verdict } => {
                possible(verdict)?;
                self.interception.decide(user, *ticket, Decision::Signal(verdict.clone()))?;
            }
            Command::SignalRelease { pid } => self.interception.release(user, *pid)?,
            Command::SignalSend { pid, signal } => overflow::send_signal(*pid, *signal)?,
            _ => return Err(PinError::NotMine),
        }
        Ok(Reply::Done)
    }

    fn subscribe(&mut self, subscription: &Arc<Subscription>) -> Result<(), PinError> {
        match subscription.kind {
            Kind::SignalRaised => self.traced.subscribe(subscription, &["signal_generate"], 0),
            Kind::SignalDelivered => self.traced.subscribe(subscription, &["signal_deliver"], 0),
            _ => self.interception.subscribe(subscription),
        }
    }

    fn unsubscribe(&mut self, subscription: &Subscription) {
        self.traced.unsubscribe(subscription);
        self.interception.unsubscribe(subscription);
    }

    fn forget(&mut self, user: u64) {
        self.interception.forget(user);
    }
}

fn exists(signal: u32) -> Result<(), PinError> {
    match signal {
        1..=64 => Ok(()),
        none => Err(PinError::Refused(format!("signal {none} is none: 1 to 64"))),
    }
}

/// A thread cannot continue with a signal that does not exist.
fn possible(verdict: &Verdict) -> Result<(), PinError> {
    if let Verdict::Replace { signal } = verdict { exists(*signal) } else { Ok(()) }
}
