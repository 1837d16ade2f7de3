//! What a module is: [`Module`], and what it can ask of the core: [`Context`].
//!
//! A module runs in a process of its own and knows nothing of the platform. It is called with one thing at a time and answers by
//! asking: everything it asks for leaves its process when it returns, or before by [`Context::hand_over`], so nothing it does can block
//! the core. What it asked is done in order; a command's reply comes back by [`Module::reply`].

use crate::{
    command::{Command, Reply},
    event::{Event, Kind},
    filter::{Filter, Who},
    wire::{Wire, wire_enum},
};
use std::time::Duration;

/// Something that watches or helps programs, made of nothing but events and commands.
pub trait Module: 'static {
    /// Its name, for messages and lists.
    const NAME: &'static str;
    /// The pins it cannot do without: it is not installed where one is missing.
    const PINS: &'static [&'static str];
    /// How often [`Module::tick`] is called; `None`: never.
    const PERIOD: Option<Duration> = None;

    /// Makes it, from the settings it was installed with. Called again after each reload: what it knew is gone.
    fn create(settings: &[u8]) -> Self;
    /// Called once, first: subscribes to what it wants to see.
    fn start(&mut self, context: &mut Context);
    /// An event of one of its subscriptions.
    fn event(&mut self, context: &mut Context, event: &Event);
    /// The reply to a command, by the ticket that [`Context::issue_cmd`] gave; an error as a sentence.
    fn reply(&mut self, _context: &mut Context, _ticket: u64, _reply: &Result<Reply, String>) {}
    /// The programs guarded for it now that still run, without the processes they made: told after the start, and whenever
    /// one came or was let go. An event of one that is no longer guarded may come after that.
    fn guarded(&mut self, _context: &mut Context, _pids: &[u32]) {}
    /// The period passed.
    fn tick(&mut self, _context: &mut Context) {}
}

wire_enum! {
    /// One thing that a module asks of the core.
    Ask {
        0 Use { pin: String, }
        1 Release { pin: String, }
        2 Subscribe { handle: u64, pin: String, kind: Kind, filter: Filter, }
        3 Unsubscribe { handle: u64, }
        4 Command { ticket: u64, pin: String, command: Command, }
        5 Report { text: String, }
        6 Fail { why: String, }
    }
}

/// A module's way to the core, for the time of one call.
#[derive(Default)]
pub struct Context {
    pub(super) asks: Vec<Ask>,
    pub(super) next: u64,
    pub(super) missed: u64,
}

impl Context {
    /// Uses one more pin than [`Module::PINS`] names.
    pub fn use_pin(&mut self, pin: &str) {
        self.asks.push(Ask::Use { pin: pin.into() });
    }

    /// Uses a pin no more.
    pub fn release_pin(&mut self, pin: &str) {
        self.asks.push(Ask::Release { pin: pin.into() });
    }

    /// Subscribes. Gives the number that its events carry ([`Event::subscription`]).
    pub fn subscr_event(&mut self, pin: &str, kind: Kind, filter: Filter) -> u64 {
        self.next += 1;
        self.asks.push(Ask::Subscribe { handle: self.next, pin: pin.into(), kind, filter });
        self.next
    }

    /// Ends a subscription.
    pub fn unsubscr_event(&mut self, subscription: u64) {
        self.asks.push(Ask::Unsubscribe { handle: subscription });
    }

    /// Has a pin do something. Gives the ticket that the reply carries.
    pub fn issue_cmd(&mut self, pin: &str, command: Command) -> u64 {
        self.next += 1;
        self.asks.push(Ask::Command { ticket: self.next, pin: pin.into(), command });
        self.next
    }

    /// Tells whoever runs the core something.
    pub fn report(&mut self, text: impl Into<String>) {
        self.asks.push(Ask::Report { text: text.into() });
    }

    /// Says that it cannot do its work, and why, in one sentence. Said from [`Module::start`] it makes the installation fail; later
    /// it is told to whoever runs the core.
    pub fn fail(&mut self, why: impl Into<String>) {
        self.asks.push(Ask::Fail { why: why.into() });
    }

    /// Has all that was asked so far leave the process now: a module that fails later in the same call has asked it all the same. Waits
    /// while the core takes nothing.
    pub fn hand_over(&mut self) {
        // What could not leave is tried once more when the call returns, where it counts as a failure.
        let _ = self.leave();
    }

    /// Pushes what was asked.
    pub(super) fn leave(&mut self) -> orbit::Result<()> {
        if self.asks.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        self.asks.put(&mut bytes);
        let mut update = orbit::Update::new();
        update.data(&bytes);
        orbit::push(&update)?;
        self.asks.clear();
        Ok(())
    }

    /// Events that earlier lives of the module did not see, since it was installed.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

impl Wire for Kind {
    fn put(&self, out: &mut Vec<u8>) {
        (*self as u32).put(out);
    }
    fn read(bytes: &mut &[u8]) -> Option<Self> {
        Kind::from_number(u32::read(bytes)?)
    }
}

impl Wire for Filter {
    fn put(&self, out: &mut Vec<u8>) {
        let (who, pids) = match &self.who {
            Who::Everyone => (0u8, Vec::new()),
            Who::Guarded => (1, Vec::new()),
            Who::Pids(pids) => (2, pids.clone()),
        };
        who.put(out);
        pids.put(out);
        self.follow.put(out);
        self.cpus.put(out);
        self.keys.put(out);
        self.queue.put(out);
        for number in [self.min_ns, self.every, self.ticks, self.interval_ns] {
            number.put(out);
        }
    }
    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let (who, pids) = (u8::read(bytes)?, Vec::read(bytes)?);
        let who = match who {
            0 => Who::Everyone,
            1 => Who::Guarded,
            2 => Who::Pids(pids),
            _ => return None,
        };
        Some(Filter {
            who,
            follow: bool::read(bytes)?,
            cpus: Option::<Vec<u32>>::read(bytes)?,
            keys: Option::<Vec<u32>>::read(bytes)?,
            queue: u32::read(bytes)?,
            min_ns: u64::read(bytes)?,
            every: u64::read(bytes)?,
            ticks: u64::read(bytes)?,
            interval_ns: u64::read(bytes)?,
        })
    }
}

wire_enum! {
    /// What the core tells a module, one at a call.
    Told {
        0 Start { settings: Vec<u8>, missed: u64, }
        1 Replied { ticket: u64, reply: Result<Reply, String>, }
        2 Tick {}
        /// Events, as bytes one after the other.
        3 Happened { events: Vec<u8>, }
        4 Guarded { pids: Vec<u32>, }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_module_asks_survives_the_way() {
        let mut context = Context::default();
        context.subscr_event("P_SCHL", Kind::Ended, Filter::pids(&[1, 2]).cpus(&[0]).every(3));
        context.report("x");
        let mut bytes = Vec::new();
        context.asks.put(&mut bytes);
        assert_eq!(Vec::<Ask>::read(&mut &bytes[..]), Some(context.asks));
        for n in 0..bytes.len() {
            assert_eq!(Vec::<Ask>::read(&mut &bytes[..n]), None);
        }
    }
}
