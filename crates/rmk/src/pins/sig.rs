//! P_SIG: signals: events when one is raised or delivered, at the kernel's tracepoints; and interception by ptrace, where a
//! signal is passed, dropped, replaced, or held back until a module decides.
//!
//! An intercepted process has this core for its debugger, so it can have no other. SIGKILL is never seen. Without kernel
//! programs interception works all the same.

use super::{
    overflow,
    traced::{self, Traced},
    tracer::{Decision, Of, Tracer, What},
};
use crate::{
    command::{Command, Reply, Verdict},
    core::{Env, Subscription},
    error::PinError,
    event::Kind,
    pin::{Pin, PinKind, Probe},
};
use std::sync::Arc;

const NAME: &str = "P_SIG";

pub(super) const KIND: PinKind = PinKind {
    name: NAME,
    about: "signals raised and delivered; interception: pass, drop, replace, hold",
    events: &[Kind::SignalRaised, Kind::SignalDelivered, Kind::SignalIntercepted],
    probe: |env| match traced::probe(env) {
        Probe::Fallback(_) => Probe::Fallback(format!(
            "interception and its events only: {}",
            env.kernel_support().err().unwrap_or_default()
        )),
        other => other,
    },
    load: |env| Ok(Box::new(Sig { traced: Traced::new(env), env: env.clone(), tracer: None })),
};

struct Sig {
    traced: Traced,
    env: Env,
    /// While the pin is loaded, once it was needed.
    tracer: Option<Arc<Tracer>>,
}

impl Pin for Sig {
    fn command(&mut self, user: u64, command: &Command) -> Result<Reply, PinError> {
        match command {
            Command::SignalIntercept { pid, signals, verdict } => {
                signals.iter().try_for_each(|signal| exists(*signal))?;
                possible(verdict)?;
                let mask = signals.iter().fold(0u64, |mask, signal| mask | 1 << (signal - 1));
                let mask = if signals.is_empty() { u64::MAX } else { mask };
                self.tracer()?.intercept(of(user), *pid, What::Signals { mask, verdict: verdict.clone() })?;
            }
            Command::SignalDecide { verdict: Verdict::Hold {}, .. } => {
                return Err(PinError::Refused("a held signal is held already: decide Pass, Drop or Replace".into()));
            }
            Command::SignalDecide { ticket, verdict } => {
                possible(verdict)?;
                self.tracer()?.decide(of(user), *ticket, Decision::Signal(verdict.clone()))?;
            }
            Command::SignalRelease { pid } => self.tracer()?.release(of(user), Some(*pid))?,
            Command::SignalSend { pid, signal } => overflow::send_signal(*pid, *signal)?,
            _ => return Err(PinError::NotMine),
        }
        Ok(Reply::Done {})
    }

    fn subscribe(&mut self, subscription: &Arc<Subscription>) -> Result<(), PinError> {
        match subscription.kind {
            Kind::SignalRaised => self.traced.subscribe(subscription, &["signal_generate"], 0),
            Kind::SignalDelivered => self.traced.subscribe(subscription, &["signal_deliver"], 0),
            _ => {
                self.tracer()?.subscribe(NAME, subscription);
                Ok(())
            }
        }
    }

    fn unsubscribe(&mut self, subscription: &Subscription) {
        self.traced.unsubscribe(subscription);
        if let Some(tracer) = &self.tracer {
            tracer.unsubscribe(subscription);
        }
    }

    fn forget(&mut self, user: u64) {
        if let Some(tracer) = &self.tracer {
            // Without rules of this user there is nothing to release, which is what is wanted.
            let _ = tracer.release(of(user), None);
        }
    }
}

fn exists(signal: u32) -> Result<(), PinError> {
    match signal {
        1..=64 => Ok(()),
        none => Err(PinError::Refused(format!("signal {none} is none: 1 to 64"))),
    }
}

/// A thread cannot go on with a signal that does not exist.
fn possible(verdict: &Verdict) -> Result<(), PinError> {
    if let Verdict::Replace { signal } = verdict { exists(*signal) } else { Ok(()) }
}

fn of(user: u64) -> Of {
    Of { pin: NAME, user }
}

impl Sig {
    fn tracer(&mut self) -> Result<Arc<Tracer>, PinError> {
        if let Some(tracer) = &self.tracer {
            return Ok(tracer.clone());
        }
        let tracer = self.env.tracer()?;
        self.tracer = Some(tracer.clone());
        Ok(tracer)
    }
}
