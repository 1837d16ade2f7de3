//! The core's side of a module: installs it in an orbit of its own, hands it events, carries out
//! its requests. When it crashes, loops or leaks, reports that and loads it again. The program that
//! installed it has an [`Installed`].
//!
//! A module's life is one [`Client`]. When a life ends the client stays until another has started,
//! however often that fails: its subscriptions continue counting, nothing reads them, and what they
//! counted is the number of missed events. A subscription to the kernel's events counts until the
//! new life makes the same, and again if that life does not get through its start. Pins stay
//! loaded, and other modules notice nothing. The programs guarded for it go over to the next life
//! too.
//!
//! Invariant: of the events that pass a module's subscriptions, whole calls of them are `handled`,
//! and the rest is `missed`, `lost` or waits; those of the call in which it failed are missed: how
//! far it came is not known.

use super::{
    Core,
    installed::{Installed, Report, Shared},
    life::{CALL_BYTES, Life, Room, encoded, requests_of},
    module::{Message, Module},
    subscription::lock,
    task::{self, NOT_STARTED},
};
use crate::{
    error::{Error, Result},
    event::Event,
};
use orbit::{Limits, Orbit, Outcome, Restart};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How a module is installed.
#[derive(Clone, Debug)]
pub struct ModuleOptions {
    /// Handed to [`Module::create`].
    pub settings: Vec<u8>,
    /// Longest time for one call (a batch of events); a module that takes longer is taken to loop.
    pub deadline: Duration,
    /// Bytes of memory that it may use, where the system can limit that.
    pub memory: u64,
    /// Pause before it is loaded again after its second failure in a row; doubles with each further
    /// one, up to 5 s.
    pub pause: Duration,
    /// Failures in a row after which it stays unloaded; 0: never.
    pub give_up: u32,
}

impl Default for ModuleOptions {
    fn default() -> ModuleOptions {
        ModuleOptions {
            settings: Vec::new(),
            deadline: Duration::from_secs(2),
            memory: 64 << 20,
            pause: Duration::from_millis(50),
            give_up: 0,
        }
    }
}

const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A module that works so long has no failures "in a row" any more.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);

impl Core {
    /// Installs a module: makes its process, starts it, and carries out the requests of
    /// [`Module::start`]. Returns when all that is done. A program with threads had better call
    /// [`orbit::init`] before it makes them.
    ///
    /// # Errors
    /// [`Error::PinMissing`] for a pin of [`Module::PINS`]; a request of its start that failed; how
    /// its start failed.
    pub fn install<M: Module>(&self, options: ModuleOptions) -> Result<Installed> {
        let wrong = |why: String| Error::Module { module: M::NAME.into(), why };
        let shared = Arc::new(Shared::new(M::NAME)?);
        let first = self.life::<M>(&shared, 0)?;
        let orbit = Orbit::builder(M::NAME)
            .entry(task::run::<M>)
            .init(task::begin::<M>)
            .limits(Limits::new().memory(options.memory))
            .restart(Restart::Always)
            .deadline(options.deadline)
            .may_alter(false)
            .build()
            .map_err(|error| wrong(format!("its process could not be made: {error}")))?;
        let orbit = Arc::new(orbit);
        let mut host = Host {
            core: self.clone(),
            shared: shared.clone(),
            orbit: orbit.clone(),
            options,
            life: first,
            period: M::PERIOD,
            missed: 0,
            lost: 0,
            make: Core::life::<M>,
            own: 0,
        };
        if let Some(refused) = host.start(0).map_err(&wrong)?.into_iter().next() {
            return Err(refused);
        }
        let thread = std::thread::Builder::new()
            .name(format!("rmk:{}", M::NAME))
            .spawn(move || host.run())
            .map_err(|error| wrong(format!("its thread could not be made: {error}")))?;
        Ok(Installed { shared, orbit, thread: Some(thread) })
    }

    /// A client that uses the module's pins and sees the programs guarded for it, after the one of
    /// the life before; 0: none.
    fn life<M: Module>(&self, shared: &Shared, before: u64) -> Result<Life> {
        let client = Arc::new(self.client_after(before, M::NAME));
        for pin in M::PINS {
            client.use_pin(pin)?;
        }
        let mut known = lock(&shared.state);
        // A guarded program that ended is no longer there to guard.
        known.guarded.retain(|pid| client.guard(*pid).is_ok());
        known.clients.push(client.clone());
        Ok(Life::new(client))
    }
}

struct Host {
    core: Core,
    shared: Arc<Shared>,
    orbit: Arc<Orbit>,
    options: ModuleOptions,
    life: Life,
    period: Option<Duration>,
    /// Of earlier lives: events missed, and events that found the queue full while the module was
    /// up.
    missed: u64,
    lost: u64,
    make: fn(&Core, &Shared, u64) -> Result<Life>,
    own: u32,
}

impl Drop for Host {
    fn drop(&mut self) {
        self.core.mark_own(self.own, false);
    }
}

impl Host {
    fn run(mut self) {
        let mut next_tick = self.period.map(|period| Instant::now() + period);
        let (mut row, mut since) = (0, Instant::now());
        let mut events = Vec::new();
        while !lock(&self.shared.state).stop {
            if let Err(how) = self.turn(&mut events, &mut next_tick) {
                row = if since.elapsed() > HEALTHY_AFTER { 1 } else { row + 1 };
                if !self.reload(how, row) {
                    break;
                }
                since = Instant::now();
                next_tick = self.period.map(|period| Instant::now() + period);
            }
        }
        let mut known = lock(&self.shared.state);
        (known.status.up, known.status.pid) = (false, 0);
        let gone = std::mem::take(&mut known.clients);
        drop(known);
        drop(gone);
        // An orbit that is down already counts as terminated.
        let _ = self.orbit.destroy();
    }

    /// Hands the module what there is; the error says how it failed.
    fn turn(&mut self, events: &mut Vec<Event>, next_tick: &mut Option<Instant>) -> std::result::Result<(), String> {
        let idle = Duration::from_secs(1);
        let wait = match *next_tick {
            _ if self.life.waiting() > 0 => Duration::ZERO,
            Some(at) => at.saturating_duration_since(Instant::now()).min(idle),
            None => idle,
        };
        for refused in self.send_guarded()? {
            self.shared.report(Report::Refused(refused.to_string()));
        }
        // One that ends between two calls fails none, and the next process in its place knows
        // nothing.
        if self.orbit.pid() != self.own as i32 {
            return Err("its process ended between two calls".into());
        }
        events.clear();
        self.life.client.wait(CALL_BYTES / Event::BYTES - 1, wait, events);
        if !events.is_empty() {
            let mut bytes = Vec::with_capacity(events.len() * Event::BYTES);
            for event in events.iter_mut() {
                event.subscription = self.life.ids.get(&event.subscription).copied().unwrap_or(0);
                bytes.extend(event.to_bytes());
            }
            lock(&self.shared.state).status.handled += events.len() as u64;
            if let Err(how) = self.send(&Message::Happened { events: bytes }) {
                lock(&self.shared.state).status.handled -= events.len() as u64;
                self.missed += events.len() as u64;
                return Err(how);
            }
        }
        // Replies to what it asks meanwhile come after the next events: a module that always asks
        // sees those all the same.
        for _ in 0..self.life.waiting() {
            let Some(reply) = self.life.next_reply() else { break };
            self.send_encoded(&reply)?;
        }
        if let (Some(at), Some(period)) = (*next_tick, self.period)
            && at <= Instant::now()
        {
            *next_tick = Some((at + period).max(Instant::now()));
            self.send(&Message::Tick)?;
        }
        let lost = self.lost + self.life.sum(|counts| counts.lost);
        lock(&self.shared.state).status.lost = lost;
        Ok(())
    }

    /// Sends the module the guarded programs, if they changed; returns the requests that failed.
    fn send_guarded(&mut self) -> std::result::Result<Vec<Error>, String> {
        const MAX_PIDS: usize = (CALL_BYTES - 64) / size_of::<u32>();
        let Some(mut pids) = self.life.client.newly_guarded(&mut self.life.guards) else { return Ok(Vec::new()) };
        let beyond = pids.len().saturating_sub(MAX_PIDS);
        pids.truncate(MAX_PIDS);
        let mut refused = self.call(&encoded(&Message::Guarded { pids }))?;
        if beyond > 0 {
            let why = format!("it sees {MAX_PIDS} guarded programs at most: {beyond} were left out");
            refused.push(Error::Module { module: self.life.client.name().into(), why });
        }
        Ok(refused)
    }

    /// Makes one call of the orbit and carries out the module's requests.
    fn send(&mut self, message: &Message) -> std::result::Result<(), String> {
        self.send_encoded(&encoded(message))
    }

    /// The same, for a message that is encoded already.
    fn send_encoded(&mut self, args: &[u8]) -> std::result::Result<(), String> {
        for refused in self.call(args)? {
            self.shared.report(Report::Refused(refused.to_string()));
        }
        Ok(())
    }

    /// The same; returns the requests that failed and have no ticket.
    fn call(&mut self, args: &[u8]) -> std::result::Result<Vec<Error>, String> {
        let future = self.orbit.call_async(&[], args).map_err(|error| error.to_string())?;
        let (mut refused, mut room) = (Vec::new(), Room::default());
        // Ends with the call; updates come in the order in which they were pushed.
        while let Some(update) = future.pull().map_err(|error| error.to_string())? {
            for request in requests_of(update.first_data().unwrap_or_default(), &mut room)? {
                refused.extend(self.life.carry_out(request, &self.shared).err());
                self.life.within()?;
            }
        }
        match future.wait().map_err(|error| error.to_string())? {
            Outcome::Returned(0) => Ok(refused),
            Outcome::Returned(NOT_STARTED) => Err("its process ended between two calls".into()),
            Outcome::Returned(code) => Err(format!("it did not understand the core ({code})")),
            outcome => Err(outcome.to_string()),
        }
    }

    /// Starts the module after so many missed events; returns its requests that failed.
    fn start(&mut self, missed: u64) -> std::result::Result<Vec<Error>, String> {
        self.orbit.wait_ready(Duration::from_secs(30)).map_err(|error| error.to_string())?;
        let pid = self.orbit.pid();
        self.core.mark_own(self.own, false);
        self.own = pid as u32;
        self.core.mark_own(self.own, true);
        let message = Message::Start { settings: self.options.settings.clone(), missed };
        let mut refused = self.call(&encoded(&message))?;
        refused.extend(self.send_guarded()?);
        let mut known = lock(&self.shared.state);
        (known.status.pid, known.status.up) = (pid, true);
        Ok(refused)
    }

    /// After a failure: reports it, pauses, starts a new life; false: the module is to stay
    /// unloaded.
    fn reload(&mut self, mut how: String, mut row: u32) -> bool {
        let lost = self.life.sum(|counts| counts.lost);
        self.lost += lost;
        // What the ended life's subscriptions counted and it did not see, from now on without what
        // they lost before.
        let unseen = |life: &Life| life.sum(|counts| counts.due.saturating_sub(counts.delivered)).saturating_sub(lost);
        loop {
            let missed = self.missed + unseen(&self.life);
            {
                let mut known = lock(&self.shared.state);
                (known.status.up, known.status.pid) = (false, 0);
                (known.status.missed, known.status.lost) = (missed, self.lost);
                known.status.failures += 1;
            }
            self.shared.report(Report::Failed(how));
            if self.options.give_up != 0 && row >= self.options.give_up {
                self.shared.report(Report::GaveUp);
                return false;
            }
            let pause = if row < 2 {
                Duration::ZERO
            } else {
                (self.options.pause * 2u32.saturating_pow(row - 2)).min(LONGEST_PAUSE)
            };
            if self.shared.pause(pause) {
                return false;
            }
            let made = (self.make)(&self.core, &self.shared, self.life.client.id);
            let started = made.map_err(|error| error.to_string()).and_then(|life| {
                let mut other = std::mem::replace(&mut self.life, life);
                let started = self.start(self.missed + unseen(&other));
                if started.is_ok() {
                    // Only now, so that every event up to here was counted by the old life or will
                    // be seen by the new one: as soon as that subscribes to the same, the old one
                    // counts no more.
                    self.missed += unseen(&other);
                } else {
                    // The old one continues to count.
                    std::mem::swap(&mut self.life, &mut other);
                }
                let kept = vec![self.life.client.clone()];
                let clients = std::mem::replace(&mut lock(&self.shared.state).clients, kept);
                // Not under the lock: pins are released.
                drop((clients, other));
                started
            });
            match started {
                Ok(refused) => {
                    lock(&self.shared.state).status.missed = self.missed;
                    for error in refused {
                        self.shared.report(Report::Refused(error.to_string()));
                    }
                    self.shared.report(Report::Reloaded { missed: self.missed });
                    return true;
                }
                Err(again) => (how, row) = (again, row + 1),
            }
        }
    }
}
