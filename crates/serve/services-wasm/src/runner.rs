//! The agent thread of wasm services: takes their events in the order of their times, one run after
//! the other.

use crate::engine::{Handler, Outcome};
use crate::guest::WasmSpec;
use orbit_linux::{eventfd, sched};
use orbit_services::source::Sink;
use orbit_services::{Account, Budget, Error, Event, Kind, Pending, Question, Result, budget, sys};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Posted events that wait for one service, at most; more are dropped and counted.
const QUEUE: usize = 64;
/// Events: their kinds in `orbit_service.h`.
const TIMER: u32 = 1;
const POSTED: u32 = 2;
const QUESTION: u32 = 7;
/// The thread wakes up after this, whatever it knows of: nanoseconds.
const LONGEST_SLEEP_NS: u64 = 1_000_000_000;

/// A loaded service. A number is not given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u64);

/// What a service is like now.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its number.
    pub id: Id,
    /// Its name.
    pub name: String,
    /// The process it belongs to.
    pub owner: i32,
    /// Its budget.
    pub budget: Budget,
    /// True if it was aborted too often and is not run any more.
    pub is_revoked: bool,
    /// What it used.
    pub account: Account,
    /// Events dropped since its queue was full.
    pub lost: u64,
    /// Bytes of memory that its module may have.
    pub memory: usize,
    /// What it had set and could not be put back when it was revoked.
    pub unrestored: Vec<String>,
}

/// A service and its events.
struct Slot {
    service: Box<dyn Handler>,
    spec: WasmSpec,
    /// Monotonic nanoseconds.
    due: Option<u64>,
    /// Kind and value.
    posted: VecDeque<(u32, u64)>,
    lost: u64,
    lost_since: u32,
    ticks: Ticks,
    window_began: u64,
    spent_ns: u64,
    is_revoked: bool,
    unrestored: Vec<String>,
    /// Eventfds of those that follow it.
    followers: Vec<Weak<OwnedFd>>,
    /// Those that wait for an answer know by this that it is gone.
    is_loaded: Arc<()>,
}

/// What became of the ticks that were due: each began a run, was merged or was missed.
#[derive(Clone, Copy, Default)]
struct Ticks {
    due: u64,
    merged: u64,
    missed: u64,
    /// Merged or missed since the last run that a tick began.
    lost: u64,
}

struct State {
    slots: BTreeMap<Id, Slot>,
    next: u64,
    stop: bool,
}

/// The thread and what it runs. Dropping it stops the thread; it does not put back what services
/// set: see [`Runner::unload`].
pub struct Runner {
    shared: Arc<(Mutex<State>, Condvar)>,
    thread: Option<JoinHandle<()>>,
    limit: f64,
    priority: i32,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("services", &self.list().len()).finish_non_exhaustive()
    }
}

impl Runner {
    /// Starts the thread on a processor, at this real-time priority where it is allowed one (0: an
    /// ordinary thread). `limit`: share of a CPU that all services together may reserve; `aborts`:
    /// after which one is revoked.
    ///
    /// # Errors
    /// `System` when no thread can be made.
    pub fn start(cpu: usize, priority: i32, limit: f64, aborts: u64) -> Result<Runner> {
        let state = State { slots: BTreeMap::new(), next: 1, stop: false };
        let shared = Arc::new((Mutex::new(state), Condvar::new()));
        let (theirs, taken_priority) = (shared.clone(), Arc::new(Mutex::new(0)));
        let (answer, ready) = (taken_priority.clone(), Arc::new(std::sync::Barrier::new(2)));
        let theirs_ready = ready.clone();
        let thread = std::thread::Builder::new().name("orbit-wasm".into()).spawn(move || {
            // A processor that went away since is no reason not to run.
            let _ = sched::set_affinity(0, &[cpu]);
            let is_real_time = priority > 0 && sys::set_priority(0, priority) == 0;
            *lock(&answer) = if is_real_time { priority } else { 0 };
            theirs_ready.wait();
            serve(&theirs, aborts);
        });
        let thread = thread.map_err(|error| Error::system("starting the thread of wasm services", &error))?;
        ready.wait();
        let priority = *lock(&taken_priority);
        Ok(Runner { shared, thread: Some(thread), limit, priority })
    }

    /// The thread's real-time priority; 0: it is an ordinary thread, since the host may not have
    /// one.
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// Lets events start a service.
    ///
    /// # Errors
    /// `Full` when its budget does not fit beside those admitted.
    pub fn add(&self, spec: WasmSpec, service: impl Into<Box<dyn Handler>>) -> Result<Id> {
        let mut state = lock(&self.shared.0);
        let admitted = state.slots.values().filter(|slot| !slot.is_revoked).map(|slot| slot.spec.budget);
        budget::admit(admitted, spec.budget, self.limit)?;
        let id = Id(state.next);
        state.next += 1;
        let due = spec.period.map(|period| sys::now() + period.as_nanos() as u64);
        let slot = Slot {
            service: service.into(),
            spec,
            due,
            posted: VecDeque::new(),
            lost: 0,
            lost_since: 0,
            ticks: Ticks::default(),
            window_began: 0,
            spent_ns: 0,
            is_revoked: false,
            unrestored: Vec::new(),
            followers: Vec::new(),
            is_loaded: Arc::new(()),
        };
        state.slots.insert(id, slot);
        drop(state);
        self.shared.1.notify_one();
        Ok(id)
    }

    /// Posts an event. Beyond 64 waiting events it is dropped and counted.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn post(&self, id: Id, value: u64) -> Result<()> {
        if post(&self.shared, id, POSTED, value) { Ok(()) } else { Err(gone(id)) }
    }

    /// Asks a service: an event starts its handler, which answers. See [`Pending::wait`].
    ///
    /// # Errors
    /// `NotFound`, also of one that was revoked; `Full` while as many questions wait as there are
    /// places.
    pub fn ask(&self, id: Id, question: &Question) -> Result<Pending> {
        let asked = {
            let state = lock(&self.shared.0);
            let slot = state.slots.get(&id).filter(|slot| !slot.is_revoked).ok_or_else(|| gone(id))?;
            Pending::new(slot.service.questions(), Arc::downgrade(&slot.is_loaded), question)
        };
        let full = || Error::new(Kind::Full, format!("too many questions wait for wasm service {}", id.0));
        let pending = asked.ok_or_else(full)?;
        if post(&self.shared, id, QUESTION, pending.number()) { Ok(pending) } else { Err(gone(id)) }
    }

    /// An eventfd to which each run of a service adds 1, for [`orbit_services::Opened::service`].
    ///
    /// # Errors
    /// `NotFound`; `System`.
    pub fn follow(&self, id: Id) -> Result<Arc<OwnedFd>> {
        let runs = eventfd::create().map_err(|error| Error::system("following a service", &error))?;
        let runs = Arc::new(runs);
        let mut state = lock(&self.shared.0);
        let slot = state.slots.get_mut(&id).ok_or_else(|| gone(id))?;
        slot.followers.push(Arc::downgrade(&runs));
        Ok(runs)
    }

    /// What posts events of a source to a service, as long as both are there.
    pub fn sink(&self, id: Id) -> Sink {
        let shared = self.shared.clone();
        Box::new(move |kind, value| {
            post(&shared, id, kind, value);
        })
    }

    /// Takes a service off, and puts back what it set.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn unload(&self, id: Id) -> Result<Box<dyn Handler>> {
        let slot = lock(&self.shared.0).slots.remove(&id).ok_or_else(|| gone(id))?;
        // Whoever releases the handles tries again, and says what is wrong.
        failures(&*slot.service);
        Ok(slot.service)
    }

    /// All services.
    pub fn list(&self) -> Vec<Status> {
        let state = lock(&self.shared.0);
        let status = |(id, slot): (&Id, &Slot)| Status {
            id: *id,
            name: slot.spec.name.clone(),
            owner: slot.spec.owner,
            budget: slot.spec.budget,
            is_revoked: slot.is_revoked,
            account: Account {
                ticks_due: slot.ticks.due,
                ticks_merged: slot.ticks.merged,
                ticks_missed: slot.ticks.missed,
                ..slot.service.account()
            },
            lost: slot.lost,
            memory: slot.spec.memory,
            unrestored: slot.unrestored.clone(),
        };
        state.slots.iter().map(status).collect()
    }

    /// One service.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn status(&self, id: Id) -> Result<Status> {
        self.list().into_iter().find(|status| status.id == id).ok_or_else(|| gone(id))
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        lock(&self.shared.0).stop = true;
        self.shared.1.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of it has been reported.
            let _ = thread.join();
        }
    }
}

/// Puts back what a service set. Answers what could not be.
fn failures(service: &dyn Handler) -> Vec<String> {
    service.grants().iter().filter_map(|granted| granted.restore().err()).map(|error| error.to_string()).collect()
}

fn gone(id: Id) -> Error {
    Error::new(Kind::NotFound, format!("wasm service {} is not loaded", id.0))
}

/// Posts an event. False when the service is gone.
fn post(shared: &(Mutex<State>, Condvar), id: Id, kind: u32, value: u64) -> bool {
    let mut state = lock(&shared.0);
    let Some(slot) = state.slots.get_mut(&id) else { return false };
    if slot.posted.len() < QUEUE {
        slot.posted.push_back((kind, value));
    } else {
        slot.lost += 1;
        slot.lost_since = slot.lost_since.saturating_add(1);
    }
    drop(state);
    shared.1.notify_one();
    true
}

/// A service that panicked the thread is a bug that must not take the host along.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread's loop.
fn serve((state, changed): &(Mutex<State>, Condvar), aborts: u64) {
    let mut guard = lock(state);
    while !guard.stop {
        let mut next = sys::now() + LONGEST_SLEEP_NS;
        let mut is_waiting = false;
        for slot in guard.slots.values_mut().filter(|slot| !slot.is_revoked) {
            if let Some(event) = take(slot, sys::now()) {
                run(slot, &event, aborts);
            }
            is_waiting |= !slot.is_revoked && !slot.posted.is_empty();
            next = slot.due.map_or(next, |due| next.min(due));
        }
        if !is_waiting {
            let wait = Duration::from_nanos(next.saturating_sub(sys::now()));
            guard = changed.wait_timeout(guard, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The next event of a slot, if one is due: posted ones first, in their order.
fn take(slot: &mut Slot, now: u64) -> Option<Event> {
    if let Some((kind, value)) = slot.posted.pop_front() {
        let lost = std::mem::take(&mut slot.lost_since);
        return Some(Event { kind, lost, due_ns: now, now_ns: now, value });
    }
    let (due, period) = slot.due.zip(slot.spec.period).filter(|(due, _)| *due <= now)?;
    let period = (period.as_nanos() as u64).max(1);
    let merged = (now - due) / period;
    slot.due = Some(due + (merged + 1) * period);
    slot.ticks.due += merged + 1;
    slot.ticks.merged += merged;
    let lost = std::mem::take(&mut slot.ticks.lost) + merged;
    Some(Event { kind: TIMER, lost: u32::try_from(lost).unwrap_or(u32::MAX), due_ns: due, now_ns: now, value: 0 })
}

/// Runs a service within its reservation.
fn run(slot: &mut Slot, event: &Event, aborts: u64) {
    let budget = slot.spec.budget;
    if event.now_ns.saturating_sub(slot.window_began) >= budget.window().as_nanos() as u64 {
        (slot.window_began, slot.spent_ns) = (event.now_ns, 0);
    }
    if slot.spent_ns >= budget.cpu().as_nanos() as u64 {
        slot.service.count_unpaid();
        if event.kind == TIMER {
            slot.ticks.missed += 1;
            slot.ticks.lost += u64::from(event.lost) + 1;
        }
        return;
    }
    let before = slot.service.account().cpu_ns;
    let outcome = slot.service.run(event);
    let account = slot.service.account();
    slot.spent_ns += account.cpu_ns - before;
    slot.followers.retain(|follower| match follower.upgrade() {
        Some(runs) => {
            eventfd::signal(runs.as_fd());
            true
        }
        None => false,
    });
    if outcome != Outcome::Done && account.is_abusive(aborts) {
        slot.is_revoked = true;
        // Nobody waits for its answers any longer.
        slot.is_loaded = Arc::new(());
        slot.unrestored = failures(&*slot.service);
    }
}
