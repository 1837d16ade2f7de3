//! What a module is: [`Module`], and what it can ask of the core: [`Context`].
//!
//! A module runs in a process of its own and knows nothing of the platform. It is called with one
//! thing at a time and answers by asking: everything it asks for leaves its process when it
//! returns, or before by [`Context::hand_over`], so nothing it does can block the core. What it
//! asked is done in order; a command's reply comes back by [`Module::reply`].

use crate::{
    command::{Command, Reply},
    event::{Event, Kind},
    filter::Filter,
    wire::encode,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Something that watches or helps programs, made of nothing but events and commands.
pub trait Module: 'static {
    /// Its name, for messages and lists.
    const NAME: &'static str;
    /// The pins it cannot do without: it is not installed where one is missing.
    const PINS: &'static [&'static str];
    /// How often [`Module::tick`] is called; `None`: never.
    const PERIOD: Option<Duration> = None;

    /// Makes it, from the settings it was installed with. Called again after each reload: what it
    /// knew is gone.
    fn create(settings: &[u8]) -> Self;
    /// Called once, first: subscribes to the events that it needs.
    fn start(&mut self, context: &mut Context);
    /// An event of one of its subscriptions.
    fn event(&mut self, context: &mut Context, event: &Event);
    /// The reply to a command, by the ticket that [`Context::issue_cmd`] gave; an error as a
    /// sentence.
    fn reply(&mut self, _context: &mut Context, _ticket: u64, _reply: &Result<Reply, String>) {}
    /// The programs guarded for it now that still run, without the processes they made: sent after
    /// the start, and whenever one came or was let go. An event of one that is no longer guarded
    /// may come after that.
    fn guarded(&mut self, _context: &mut Context, _pids: &[u32]) {}
    /// The period passed.
    fn tick(&mut self, _context: &mut Context) {}
}

/// One request of a module to the core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Request {
    Use { pin: String },
    Release { pin: String },
    Subscribe { handle: u64, pin: String, kind: Kind, filter: Filter },
    Unsubscribe { handle: u64 },
    Command { ticket: u64, pin: String, command: Command },
    Report { text: String },
    Fail { why: String },
}

/// A module's way to the core, for the time of one call.
#[derive(Default)]
pub struct Context {
    pub(super) requests: Vec<Request>,
    pub(super) next: u64,
    pub(super) missed: u64,
}

impl Context {
    /// Uses one more pin than [`Module::PINS`] names.
    pub fn use_pin(&mut self, pin: &str) {
        self.requests.push(Request::Use { pin: pin.into() });
    }

    /// Uses a pin no more.
    pub fn release_pin(&mut self, pin: &str) {
        self.requests.push(Request::Release { pin: pin.into() });
    }

    /// Subscribes. Gives the number that its events carry ([`Event::subscription`]).
    pub fn subscr_event(&mut self, pin: &str, kind: Kind, filter: Filter) -> u64 {
        self.next += 1;
        self.requests.push(Request::Subscribe { handle: self.next, pin: pin.into(), kind, filter });
        self.next
    }

    /// Ends a subscription.
    pub fn unsubscr_event(&mut self, subscription: u64) {
        self.requests.push(Request::Unsubscribe { handle: subscription });
    }

    /// Has a pin do something. Gives the ticket that the reply carries.
    pub fn issue_cmd(&mut self, pin: &str, command: Command) -> u64 {
        self.next += 1;
        self.requests.push(Request::Command { ticket: self.next, pin: pin.into(), command });
        self.next
    }

    /// Reports a text to the program that runs the core.
    pub fn report(&mut self, text: impl Into<String>) {
        self.requests.push(Request::Report { text: text.into() });
    }

    /// Says that it cannot do its work, and why, in one sentence. Said from [`Module::start`] it
    /// makes the installation fail; later it is reported to the program that runs the core.
    pub fn fail(&mut self, why: impl Into<String>) {
        self.requests.push(Request::Fail { why: why.into() });
    }

    /// Has all that was asked so far leave the process now: a module that fails later in the same
    /// call has asked it all the same. Waits while the core takes nothing.
    pub fn hand_over(&mut self) {
        // What could not leave is tried once more when the call returns, where it counts as a
        // failure.
        let _ = self.leave();
    }

    /// Pushes what was asked.
    pub(super) fn leave(&mut self) -> orbit::Result<()> {
        if self.requests.is_empty() {
            return Ok(());
        }
        let bytes = encode(&self.requests);
        let mut update = orbit::Update::new();
        update.data(&bytes);
        orbit::push(&update)?;
        self.requests.clear();
        Ok(())
    }

    /// Events that earlier lives of the module did not see, since it was installed.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

/// A message of the core to a module, one a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    Start {
        settings: Vec<u8>,
        missed: u64,
    },
    Replied {
        ticket: u64,
        reply: Result<Reply, String>,
    },
    Tick,
    /// Events, as bytes one after the other.
    Happened {
        events: Vec<u8>,
    },
    Guarded {
        pids: Vec<u32>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::decode;

    #[test]
    fn requests_are_equal_after_encoding_and_decoding() {
        let mut context = Context::default();
        context.subscr_event("P_SCHL", Kind::Ended, Filter::pids(&[1, 2]).cpus(&[0]).every(3));
        context.report("x");
        let bytes = encode(&context.requests);
        assert_eq!(decode(&bytes), Some(context.requests));
        for n in 0..bytes.len() {
            assert_eq!(decode::<Vec<Request>>(&bytes[..n]), None);
        }
    }
}
