//! The core's side of a module: installs it in an orbit of its own, hands it events, does what it asks, and when it crashes,
//! loops or leaks, reports that and loads it again.
//!
//! A module's life is one [`Client`]. When a life ends the client stays until another has started, however often that fails: its
//! subscriptions go on counting, nothing reads them, and what they counted is the number of missed events. Pins therefore stay
//! loaded, and other modules notice nothing. The programs guarded for it go over to the next life too.
//!
//! Invariant: of the events that pass a module's subscriptions, whole calls of them are `handled`, and the rest is `missed`, `lost`
//! or waits; those of the call in which it failed are missed, since nobody knows how far it came.

use super::{
    Client, Core,
    module::{Ask, Module, Told},
    subscription::lock,
    task::{self, NOT_STARTED},
};
use crate::{
    error::{Error, Result},
    event::Event,
    filter::Counts,
    wire::Wire,
};
use orbit::{Limits, Orbit, Outcome, Restart};
use orbit_linux::eventfd;
use std::{
    collections::{HashMap, VecDeque},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::JoinHandle,
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
    /// Pause before it is loaded again after its second failure in a row; doubles with each further one, up to 5 s.
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

/// What a module, or the core about it, has to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Report {
    /// The module reported this.
    Said(String),
    /// The module failed and was unloaded: how, in words ([`orbit::Outcome`]'s).
    Failed(String),
    /// It was loaded again; events missed so far.
    Reloaded {
        /// As [`ModuleStatus::missed`].
        missed: u64,
    },
    /// It failed too often and stays unloaded.
    GaveUp,
    /// Something that it asked was refused, though it has no ticket for a reply.
    Refused(String),
    /// So many reports were thrown away in this place, because nobody read them in time.
    Dropped(u64),
}

/// How a module stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleStatus {
    /// Its name.
    pub name: String,
    /// Its process; 0 while it is down.
    pub pid: i32,
    /// True while it is loaded and started.
    pub up: bool,
    /// Events handed to it, without those of a call in which it failed.
    pub handled: u64,
    /// Events that came while it was down, and those of the calls in which it failed: up to 1,022 each time, of which it may have
    /// seen the first.
    pub missed: u64,
    /// Events that found its queue full while it was up, in all its lives.
    pub lost: u64,
    /// Times it failed.
    pub failures: u64,
    /// Reports that were thrown away because nobody read them.
    pub unread: u64,
}

struct Shared {
    state: Mutex<Known>,
    changed: Condvar,
    /// Signalled while reports wait.
    ready: OwnedFd,
}

#[derive(Default)]
struct Known {
    status: ModuleStatus,
    reports: VecDeque<Report>,
    /// Reports thrown away that the reader was not told of yet: older than all that wait.
    dropped: u64,
    /// That of the life that started last, and beside it, while another starts, that one's.
    clients: Vec<Arc<Client>>,
    guarded: Vec<u32>,
    stop: bool,
}

/// Reports kept for a reader that does not come; older ones go first.
const REPORTS: usize = 1024;
/// Bytes of one call: an orbit's limit, less the envelope.
const CALL_BYTES: usize = orbit::MAX_ARGS - 64;
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A module that works so long has no failures "in a row" any more.
const HEALTHY: Duration = Duration::from_secs(10);

impl Shared {
    fn report(&self, report: Report) {
        let mut known = lock(&self.state);
        if known.reports.len() == REPORTS {
            known.reports.pop_front();
            known.status.unread += 1;
            known.dropped += 1;
        }
        known.reports.push_back(report);
        eventfd::signal(self.ready.as_fd());
        self.changed.notify_all();
    }

    /// Waits, but not when the module is being removed; true: it is.
    fn pause(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        let mut known = lock(&self.state);
        while !known.stop {
            let Some(left) = until.checked_duration_since(Instant::now()) else { return false };
            known = self.changed.wait_timeout(known, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// An installed module. Dropping it removes the module.
pub struct Installed {
    shared: Arc<Shared>,
    orbit: Arc<Orbit>,
    thread: Option<JoinHandle<()>>,
}

impl Installed {
    /// How it stands.
    pub fn status(&self) -> ModuleStatus {
        lock(&self.shared.state).status.clone()
    }

    /// The next report, waiting up to `timeout` for one.
    pub fn report(&self, timeout: Duration) -> Option<Report> {
        let until = Instant::now() + timeout;
        let mut known = lock(&self.shared.state);
        loop {
            if known.dropped != 0 {
                return Some(Report::Dropped(std::mem::take(&mut known.dropped)));
            }
            if let Some(report) = known.reports.pop_front() {
                if known.reports.is_empty() {
                    eventfd::drain(self.shared.ready.as_fd());
                }
                return Some(report);
            }
            let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            known = self.shared.changed.wait_timeout(known, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Guards a program for this module only, through all its lives; see [`Core::guard`].
    pub fn guard(&self, pid: u32) -> Result<()> {
        let mut known = lock(&self.shared.state);
        for client in &known.clients {
            client.guard(pid)?;
        }
        known.guarded.push(pid);
        Ok(())
    }

    /// Guards it for this module no more.
    pub fn unguard(&self, pid: u32) {
        let mut known = lock(&self.shared.state);
        known.guarded.retain(|guarded| *guarded != pid);
        for client in &known.clients {
            client.unguard(pid);
        }
    }

    /// Removes the module: its process is killed, in the middle of a call too, and its pins are released. Waits for the process to
    /// be gone, never for the module; and for a command at a pin that it asked for, if the core is at one.
    pub fn remove(self) {}
}

impl AsFd for Installed {
    /// A descriptor to poll, never to read: readable while a report waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.ready.as_fd()
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let clients = {
            let mut known = lock(&self.shared.state);
            known.stop = true;
            known.clients.clone()
        };
        self.shared.changed.notify_all();
        for client in clients {
            client.wake();
        }
        // The thread may wait for a call that does not end, or for a start; both end with the orbit. One that is down already is as
        // gone as one that was just ended.
        let _ = self.orbit.destroy();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Core {
    /// Installs a module: makes its process, lets it start, and does what it asks in [`Module::start`]. Returns when all that is
    /// done. A program with threads had better call [`orbit::init`] before it makes them.
    ///
    /// # Errors
    /// [`Error::PinMissing`] for a pin of [`Module::PINS`]; whatever its start asked for and was refused; how its start failed.
    pub fn install<M: Module>(&self, options: ModuleOptions) -> Result<Installed> {
        let wrong = |why: String| Error::Module { module: M::NAME.into(), why };
        let ready = eventfd::create()
            .map_err(|source| Error::System { what: "a descriptor for a module's reports".into(), source })?;
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), ready });
        lock(&shared.state).status.name = M::NAME.into();
        let first = self.life::<M>(&shared)?;
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

    /// A client that uses the module's pins and sees the programs guarded for it.
    fn life<M: Module>(&self, shared: &Shared) -> Result<Life> {
        let client = Arc::new(self.client(M::NAME));
        for pin in M::PINS {
            client.use_pin(pin)?;
        }
        let mut known = lock(&shared.state);
        // A guarded program that ended is no longer there to guard.
        known.guarded.retain(|pid| client.guard(*pid).is_ok());
        known.clients.push(client.clone());
        Ok(Life { client, ids: HashMap::new(), handles: HashMap::new(), replies: VecDeque::new(), guards: 0 })
    }
}

/// What belongs to one life of a module.
struct Life {
    client: Arc<Client>,
    /// Subscription of the core -> the module's number for it, and back.
    ids: HashMap<u64, u64>,
    handles: HashMap<u64, u64>,
    replies: VecDeque<(u64, std::result::Result<crate::Reply, String>)>,
    /// What it was told last of the guarded programs; see [`Client::newly_guarded`].
    guards: u64,
}

struct Host {
    core: Core,
    shared: Arc<Shared>,
    orbit: Arc<Orbit>,
    options: ModuleOptions,
    life: Life,
    period: Option<Duration>,
    /// Of lives that ended: events missed, and events that found the queue full while the module was up.
    missed: u64,
    lost: u64,
    make: fn(&Core, &Shared) -> Result<Life>,
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
                row = if since.elapsed() > HEALTHY { 1 } else { row + 1 };
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
        // An orbit that is down already is as gone as one that was just ended.
        let _ = self.orbit.destroy();
    }

    /// Hands the module what there is; the error says how it failed.
    fn turn(&mut self, events: &mut Vec<Event>, next_tick: &mut Option<Instant>) -> std::result::Result<(), String> {
        let idle = Duration::from_secs(1);
        let wait = match *next_tick {
            _ if !self.life.replies.is_empty() => Duration::ZERO,
            Some(at) => at.saturating_duration_since(Instant::now()).min(idle),
            None => idle,
        };
        for refused in self.tell_guarded()? {
            self.shared.report(Report::Refused(refused.to_string()));
        }
        // One that ends between two calls fails none, and the next process in its place knows nothing.
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
            if let Err(how) = self.tell(&Told::Happened { events: bytes }) {
                lock(&self.shared.state).status.handled -= events.len() as u64;
                self.missed += events.len() as u64;
                return Err(how);
            }
        }
        while let Some((ticket, reply)) = self.life.replies.pop_front() {
            self.tell(&Told::Replied { ticket, reply })?;
        }
        if let (Some(at), Some(period)) = (*next_tick, self.period)
            && at <= Instant::now()
        {
            *next_tick = Some((at + period).max(Instant::now()));
            self.tell(&Told::Tick {})?;
        }
        let lost = self.lost + self.life.sum(|counts| counts.lost);
        lock(&self.shared.state).status.lost = lost;
        Ok(())
    }

    /// Tells the module which programs are guarded, if that changed; gives what was refused.
    fn tell_guarded(&mut self) -> std::result::Result<Vec<Error>, String> {
        const MOST: usize = (CALL_BYTES - 64) / size_of::<u32>();
        let Some(mut pids) = self.life.client.newly_guarded(&mut self.life.guards) else { return Ok(Vec::new()) };
        let beyond = pids.len().saturating_sub(MOST);
        pids.truncate(MOST);
        let mut refused = self.call(&Told::Guarded { pids })?;
        if beyond > 0 {
            let why = format!("it sees {MOST} guarded programs at most: {beyond} were left out");
            refused.push(Error::Module { module: self.life.client.name().into(), why });
        }
        Ok(refused)
    }

    /// Makes one call of the orbit and does what the module asks.
    fn tell(&mut self, told: &Told) -> std::result::Result<(), String> {
        for refused in self.call(told)? {
            self.shared.report(Report::Refused(refused.to_string()));
        }
        Ok(())
    }

    /// The same; gives what was refused and has no ticket.
    fn call(&mut self, told: &Told) -> std::result::Result<Vec<Error>, String> {
        let mut args = vec![0; 4];
        told.put(&mut args);
        if args.len() > CALL_BYTES
            && let Told::Replied { ticket, .. } = told
        {
            let why =
                format!("the reply has {} bytes, and a module takes {CALL_BYTES} at a time: ask for less", args.len());
            args.truncate(4);
            Told::Replied { ticket: *ticket, reply: Err(why) }.put(&mut args);
        }
        let length = (args.len() - 4) as u32;
        args[..4].copy_from_slice(&length.to_ne_bytes());
        let future = self.orbit.call_async(&[], &args).map_err(|error| error.to_string())?;
        let mut refused = Vec::new();
        // Ends with the call; updates come in the order in which they were pushed.
        while let Some(update) = future.pull().map_err(|error| error.to_string())? {
            let asks = update.first_data().and_then(|mut bytes| Vec::<Ask>::read(&mut bytes));
            let Some(asks) = asks else { return Err("it pushed something that is no request".into()) };
            for ask in asks {
                refused.extend(self.life.ask(ask, &self.shared).err());
            }
        }
        match future.wait().map_err(|error| error.to_string())? {
            Outcome::Returned(0) => Ok(refused),
            Outcome::Returned(NOT_STARTED) => Err("its process ended between two calls".into()),
            Outcome::Returned(code) => Err(format!("it did not understand the core ({code})")),
            outcome => Err(outcome.to_string()),
        }
    }

    /// Lets the module start, having missed so many events; gives what it asked and was refused.
    fn start(&mut self, missed: u64) -> std::result::Result<Vec<Error>, String> {
        self.orbit.wait_ready(Duration::from_secs(30)).map_err(|error| error.to_string())?;
        let pid = self.orbit.pid();
        self.core.mark_own(self.own, false);
        self.own = pid as u32;
        self.core.mark_own(self.own, true);
        let told = Told::Start { settings: self.options.settings.clone(), missed };
        let mut refused = self.call(&told)?;
        refused.extend(self.tell_guarded()?);
        let mut known = lock(&self.shared.state);
        (known.status.pid, known.status.up) = (pid, true);
        Ok(refused)
    }

    /// After a failure: reports it, pauses, starts a new life; false: the module is to stay unloaded.
    fn reload(&mut self, mut how: String, mut row: u32) -> bool {
        let lost = self.life.sum(|counts| counts.lost);
        self.lost += lost;
        // What the ended life's subscriptions counted and it did not see, from now on without what they lost before.
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
            let started = (self.make)(&self.core, &self.shared).map_err(|error| error.to_string()).and_then(|life| {
                let mut other = std::mem::replace(&mut self.life, life);
                let started = self.start(self.missed + unseen(&other));
                if started.is_ok() {
                    // Only now, so that every event up to here was counted by the old life or will be seen by the new one.
                    self.missed += unseen(&other);
                } else {
                    // The old one goes on counting.
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

impl Life {
    /// One of the counts of its subscriptions, added up.
    fn sum(&self, of: fn(&Counts) -> u64) -> u64 {
        self.client.subscriptions().iter().map(|(.., counts)| of(counts)).sum()
    }

    fn ask(&mut self, ask: Ask, shared: &Shared) -> Result<()> {
        match ask {
            Ask::Use { pin } => self.client.use_pin(&pin),
            Ask::Release { pin } => self.client.release_pin(&pin),
            Ask::Subscribe { handle, pin, kind, filter } => {
                let id = self.client.subscr_event(&pin, kind, filter)?;
                self.ids.insert(id, handle);
                self.handles.insert(handle, id);
                Ok(())
            }
            Ask::Unsubscribe { handle } => {
                let id = self.handles.remove(&handle).unwrap_or(0);
                self.ids.remove(&id);
                self.client.unsubscr_event(id)
            }
            Ask::Command { ticket, pin, command } => {
                let reply = self.client.issue_cmd(&pin, &command).map_err(|error| error.to_string());
                self.replies.push_back((ticket, reply));
                Ok(())
            }
            Ask::Report { text } => {
                shared.report(Report::Said(text));
                Ok(())
            }
            Ask::Fail { why } => Err(Error::Module { module: self.client.name().into(), why }),
        }
    }
}
