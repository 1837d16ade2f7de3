//! The core, between modules and pins (the paper's section 3.3): it loads a pin for its first user
//! and unloads it with the last, keeps the subscriptions, delivers events, and knows which programs
//! are guarded.
//!
//! Locks, in the order in which they are taken: a pin, the core's state, the dispatcher's sources,
//! a queue. The dispatcher's thread takes only the last two, so a pin may wait for it while it is
//! unloaded. A pin may wait for long, for a program or the system; so no thread waits for a pin
//! while it holds the state, and only users of that pin wait with it.

mod client;
mod dispatcher;
mod env;
mod host;
mod installed;
mod life;
mod module;
mod state;
mod subscription;
mod task;
pub mod timer;

pub use client::Client;
pub use dispatcher::{Dispatcher, Registration, Source};
pub use env::{Env, Shared};
pub use host::ModuleOptions;
pub use installed::{Installed, ModuleStatus, Report};
pub use module::{Context, Module};
pub use subscription::{Counted, KernelSide, Subscription, lock};

use crate::{
    command::{Command, Reply},
    error::{Error, PinError, Result},
    event::Kind,
    filter::{Counts, Filter},
    pin::{PinKind, Probe},
};
use orbit_linux::stat::Stat;
use state::{Loaded, Member, State};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use subscription::Queue;

/// How long a module waits for a pin whose last user gave it back, and which still is unloaded.
const MAX_WAIT_FOR_UNLOAD: Duration = Duration::from_secs(5);
/// Subscriptions that a module may have at a time, and events that may wait for all of them
/// together.
const MAX_SUBSCRIPTIONS: usize = 256;
const MAX_WAITING_EVENTS: u64 = 1 << 20;

pub(crate) struct Inner {
    state: Mutex<State>,
    /// A pair left `State::released`.
    forgotten: Condvar,
    next: AtomicU64,
    /// How often the guarded programs, of all or of one module, changed, and one.
    guards: AtomicU64,
    env: Env,
}

/// How a core is made; see [`Core::builder`].
pub struct CoreBuilder {
    kernel_programs: bool,
    pins: Vec<PinKind>,
    without: Vec<&'static str>,
}

impl CoreBuilder {
    /// False: use no kernel programs, only what needs no privilege. Pins then fall back or are
    /// missing, as on a system that forbids them.
    pub fn kernel_programs(self, allowed: bool) -> CoreBuilder {
        CoreBuilder { kernel_programs: allowed, ..self }
    }

    /// Adds pins that modules may use; of those of one name the last counts.
    pub fn pins(mut self, pins: impl IntoIterator<Item = PinKind>) -> CoreBuilder {
        self.pins.extend(pins);
        self
    }

    /// Leaves a pin out, for a core that must not be able to do what it does.
    pub fn without_pin(mut self, pin: &'static str) -> CoreBuilder {
        self.without.push(pin);
        self
    }

    /// Makes the core: one thread, asleep; no pin loaded.
    pub fn build(self) -> Result<Core> {
        let env = Env::new(self.kernel_programs)?;
        let mut kinds: BTreeMap<_, _> = self.pins.into_iter().map(|kind| (kind.name, kind)).collect();
        kinds.retain(|name, _| !self.without.contains(name));
        let state = State { kinds, ..State::default() };
        let (next, guards) = (AtomicU64::new(1), AtomicU64::new(1));
        Ok(Core { inner: Arc::new(Inner { state: Mutex::new(state), forgotten: Condvar::new(), next, guards, env }) })
    }
}

/// How a pin stands.
#[derive(Clone, Debug)]
pub struct PinStatus {
    /// Its name.
    pub name: &'static str,
    /// One sentence: what it gives.
    pub about: &'static str,
    /// By what it works where it works entirely.
    pub facility: &'static str,
    /// Names of its operations ([`Command`]).
    pub operations: &'static [&'static str],
    /// Events that it raises where it works entirely.
    pub events: &'static [Kind],
    /// Whether it can work here.
    pub probe: Probe,
    /// Whether it is loaded.
    pub loaded: bool,
    /// Names of the modules that use it.
    pub users: Vec<String>,
    /// What became of the events of the subscriptions that it has now, together.
    pub counts: Counts,
}

/// See the module's head. A handle: clones are the same core, which ends with the last handle and
/// the last [`Client`].
#[derive(Clone)]
pub struct Core {
    inner: Arc<Inner>,
}

impl Core {
    /// A core without pins, until some are registered; the crate `orbit-pins` makes one with its
    /// twelve.
    pub fn new() -> Result<Core> {
        Core::builder().build()
    }

    /// The choices of a core, without pins so far.
    pub fn builder() -> CoreBuilder {
        CoreBuilder { kernel_programs: true, pins: Vec::new(), without: Vec::new() }
    }

    /// Adds a pin, or replaces one that is not loaded; modules may use it from now on.
    pub fn register_pin(&self, kind: PinKind) -> Result<()> {
        let mut state = lock(&self.inner.state);
        if state.loaded.contains_key(kind.name) {
            let why = format!("pin {} is loaded: release it everywhere first", kind.name);
            return Err(Error::Module { module: "core".into(), why });
        }
        state.kinds.insert(kind.name, kind);
        Ok(())
    }

    /// Admits a module of this name (for messages; names need not differ).
    pub fn client(&self, name: &str) -> Client {
        self.client_after(0, name)
    }

    /// The same, for the life of a module after that of the client `before`; 0: its first.
    fn client_after(&self, before: u64, name: &str) -> Client {
        let id = self.inner.next.fetch_add(1, Ordering::Relaxed);
        let queue: Arc<Queue> = Arc::default();
        let member = Member { name: name.into(), before, guarded: BTreeMap::new(), queue: queue.clone() };
        lock(&self.inner.state).members.insert(id, member);
        Client { core: self.inner.clone(), id, name: name.into(), queue, subscriptions: Mutex::default() }
    }

    /// Guards a program for every module: filters made with [`Filter::guarded`] let its events pass
    /// from now on, and those of the processes it makes. Fails if there is no such process, or
    /// `/proc` does not show it.
    pub fn guard(&self, pid: u32) -> Result<()> {
        self.inner.guard(None, pid)
    }

    /// Guards it no more. Processes that it made stay guarded until they end or are unguarded
    /// themselves.
    pub fn unguard(&self, pid: u32) {
        self.inner.unguard(None, pid);
    }

    /// The programs guarded for every module that still run.
    pub fn guarded(&self) -> Vec<u32> {
        let mut state = lock(&self.inner.state);
        state.guarded.retain(|pid, born| still_runs(*pid, *born));
        state.guarded.keys().copied().collect()
    }

    /// How each pin stands.
    pub fn pins(&self) -> Vec<PinStatus> {
        let state = lock(&self.inner.state);
        let status = |kind: &PinKind| {
            let loaded = state.loaded.get(kind.name);
            let name_of = |user: &u64| state.members.get(user).map(|member| member.name.clone());
            PinStatus {
                name: kind.name,
                about: kind.about,
                facility: kind.facility,
                operations: kind.operations,
                events: kind.events,
                probe: (kind.probe)(&self.inner.env),
                loaded: loaded.is_some(),
                users: loaded.map(|loaded| loaded.users.iter().filter_map(name_of).collect()).unwrap_or_default(),
                counts: state.counts_of(kind.name),
            }
        };
        state.kinds.values().map(status).collect()
    }

    /// Names of the kernel programs that are attached now; empty when no pin needs one.
    pub fn kernel_programs(&self) -> Vec<&'static str> {
        self.inner.env.attached()
    }

    /// Marks a process as the core's own (its modules, its user interface): subscriptions to
    /// everyone do not see it.
    pub fn mark_own(&self, pid: u32, own: bool) {
        self.inner.env.mark_own(pid, own);
    }
}

/// When a process was started, in ticks since boot: distinguishes it from a later one of the same
/// pid.
fn start_time(pid: u32) -> io::Result<u64> {
    let stat = Stat::of(pid as i32).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::from_raw_os_error(libc::ESRCH),
        _ => error,
    })?;
    Ok(stat.started_ticks)
}

/// Whether the process that was started then is still there; also where that cannot be read now, as
/// for want of a descriptor.
fn still_runs(pid: u32, born: u64) -> bool {
    match start_time(pid) {
        Ok(now) => now == born,
        Err(error) => error.raw_os_error() != Some(libc::ESRCH),
    }
}

impl Inner {
    fn use_pin(&self, user: u64, module: &str, pin: &str) -> Result<()> {
        let state = lock(&self.state);
        // A first user finds the old pin gone, and one that comes back is not forgotten afterwards.
        let old = |state: &mut State| {
            let loaded = state.loaded.contains_key(pin);
            state.released.iter().any(|(of, by)| *of == pin && (!loaded || *by == user))
        };
        let waited = self.forgotten.wait_timeout_while(state, MAX_WAIT_FOR_UNLOAD, old);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        let missing = |why: String| Error::PinMissing { pin: pin.into(), module: module.into(), why };
        let Some(kind) = state.kinds.get(pin).cloned() else {
            let known: Vec<_> = state.kinds.keys().copied().collect();
            return Err(missing(format!("there is no such pin; this core has {}", known.join(", "))));
        };
        if waited.timed_out() {
            return Err(missing(format!(
                "it is still busy for a module that gave it back {MAX_WAIT_FOR_UNLOAD:?} ago: try again"
            )));
        }
        if let Some(loaded) = state.loaded.get_mut(kind.name) {
            loaded.users.insert(user);
            return Ok(());
        }
        if let Probe::Missing(why) = (kind.probe)(&self.env) {
            return Err(missing(why));
        }
        let loaded = (kind.load)(&self.env).map_err(|error| missing(error.to_string()))?;
        state.loaded.insert(kind.name, Loaded { pin: Arc::new(Mutex::new(loaded)), users: BTreeSet::from([user]) });
        Ok(())
    }

    /// Gives the numbers of the subscriptions that ended.
    fn release_pin(&self, user: u64, module: &str, pin: &str) -> Result<Vec<u64>> {
        let mut state = lock(&self.state);
        let not_used = || Error::PinNotUsed { pin: pin.into(), module: module.into() };
        let kind = state.kinds.get(pin).map(|kind| kind.name).ok_or_else(not_used)?;
        let loaded = state.loaded.get_mut(pin).filter(|loaded| loaded.users.contains(&user)).ok_or_else(not_used)?;
        loaded.users.remove(&user);
        let (shared, unused) = (loaded.pin.clone(), loaded.users.is_empty());
        let ended: Vec<u64> = state
            .subscriptions
            .iter()
            .filter(|(_, (of, sub))| *of == pin && sub.client == user)
            .map(|(id, _)| *id)
            .collect();
        let gone: Vec<_> = ended.iter().filter_map(|id| state.subscriptions.remove(id)).collect();
        let last = unused.then(|| state.loaded.remove(pin)).flatten();
        state.released.insert((kind, user));
        drop(state);
        {
            let mut pin = lock(&shared);
            for (_, sub) in &gone {
                pin.unsubscribe(sub);
                sub.purge();
            }
            pin.forget(user);
        }
        drop((shared, last));
        lock(&self.state).released.remove(&(kind, user));
        self.forgotten.notify_all();
        Ok(ended)
    }

    fn issue_cmd(&self, user: u64, module: &str, pin: &str, command: &Command) -> Result<Reply> {
        let shared = lock(&self.state).pin_of(user, module, pin)?;
        let mut shared = lock(&shared);
        // The module may have released the pin while it waited for another: what it made now would
        // never be removed.
        lock(&self.state).pin_of(user, module, pin)?;
        shared.command(user, command).map_err(|source| Error::Command {
            pin: pin.into(),
            module: module.into(),
            source,
        })
    }

    fn subscribe(
        &self,
        user: u64,
        module: &str,
        queue: &Arc<Queue>,
        pin: &str,
        kind: Kind,
        filter: Filter,
    ) -> Result<Arc<Subscription>> {
        let no_event = |why: String| Error::NoSuchEvent { pin: pin.into(), module: module.into(), kind, why };
        let mut state = lock(&self.state);
        let shared = state.pin_of(user, module, pin)?;
        let Some((name, events)) = state.kinds.get(pin).map(|known| (known.name, known.events)) else {
            return Err(no_event("the pin was taken away".into()));
        };
        if !events.contains(&kind) {
            return Err(no_event(format!("it raises {events:?}")));
        }
        if let Some(why) = state.no_room(user, &filter) {
            return Err(Error::Command { pin: pin.into(), module: module.into(), source: PinError::Refused(why) });
        }
        let guarded = state.guarded_for(user);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let before = state.members.get(&user).map_or(0, |member| member.before);
        let subscription = Arc::new(Subscription::new(id, (user, before), kind, filter, queue.clone(), &guarded));
        // Before the pin has it, so that what is guarded meanwhile is listed for it too.
        state.subscriptions.insert(id, (name, subscription.clone()));
        drop(state);
        let mut shared = lock(&shared);
        if !lock(&self.state).subscriptions.contains_key(&id) {
            // The module gave the pin back while another had it wait.
            return Err(Error::PinNotUsed { pin: pin.into(), module: module.into() });
        }
        let begun = shared.subscribe(&subscription).map_err(|error| match error {
            PinError::NotMine => no_event("here it cannot".into()),
            PinError::Refused(why) => no_event(why),
            source => Error::Command { pin: pin.into(), module: module.into(), source },
        });
        if begun.is_err() {
            lock(&self.state).subscriptions.remove(&id);
        }
        begun.map(|()| subscription)
    }

    fn unsubscribe(&self, subscription: &Arc<Subscription>) {
        let mut state = lock(&self.state);
        let Some((pin, _)) = state.subscriptions.remove(&subscription.id) else { return };
        let shared = state.loaded.get(pin).map(|loaded| loaded.pin.clone());
        drop(state);
        if let Some(shared) = shared {
            lock(&shared).unsubscribe(subscription);
        }
        subscription.purge();
    }

    fn leave(&self, user: u64, module: &str) {
        let used: Vec<&str> = lock(&self.state)
            .loaded
            .iter()
            .filter(|(_, loaded)| loaded.users.contains(&user))
            .map(|(name, _)| *name)
            .collect();
        for pin in used {
            // It was found among the users just now, and only its own client takes it away.
            let _ = self.release_pin(user, module, pin);
        }
        lock(&self.state).members.remove(&user);
    }

    fn guard(&self, user: Option<u64>, pid: u32) -> Result<()> {
        let born =
            start_time(pid).map_err(|source| Error::System { what: format!("guarding process {pid}"), source })?;
        let mut state = lock(&self.state);
        match user {
            None => state.guarded.insert(pid, born),
            Some(user) => state.members.get_mut(&user).and_then(|member| member.guarded.insert(pid, born)),
        };
        let listed = state.list(user, pid);
        self.guards.fetch_add(1, Ordering::Relaxed);
        state.nudge(user);
        drop(state);
        listed.map_err(|error| {
            self.unguard(user, pid);
            Error::System { what: format!("guarding process {pid}"), source: io::Error::other(error.to_string()) }
        })
    }

    fn unguard(&self, user: Option<u64>, pid: u32) {
        let mut state = lock(&self.state);
        match user {
            None => state.guarded.remove(&pid),
            Some(user) => state.members.get_mut(&user).and_then(|member| member.guarded.remove(&pid)),
        };
        state.unlist(user, pid);
        self.guards.fetch_add(1, Ordering::Relaxed);
        state.nudge(user);
    }
}
