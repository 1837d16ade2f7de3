//! The programs of one core that have checkpoints or whose fatal signals are held: what its pins
//! P_MEM and P_SIG share.
//!
//! A program is entered for the first module that asks, and left with the last one that used it for
//! that. Invariant: while a thread is held, `held` has its ticket; it is given out once. Whoever
//! lets the thread run holds the lock of `held` meanwhile, so that a next crash is a new one.

use orbit_keep::engine::{self, Crash, Crashes, Engine, Options};
use orbit_linux::{eventfd, poll};
use orbit_rmk::{Event, Kind, PinError, Shared, Subscription, lock, now};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Tickets of held threads begin here: those of intercepted signals are counted from 1.
pub const FIRST_TICKET: u64 = 1 << 62;
/// How long a held thread waits for a decision.
const DECIDE_LIMIT: Duration = Duration::from_secs(5);
/// How often it is checked whether that has passed.
const STEP: Duration = Duration::from_millis(250);
/// Memory for pages of the checkpoints of one program.
const MEMORY: u64 = 4 << 30;
/// Until a module says otherwise.
const OPTIONS: Options = Options { generations: 4, interval: Duration::from_secs(1), memory: MEMORY };

/// For which pin, and which module.
pub type User = (&'static str, u64);

/// See the module's head. One a core.
#[derive(Default)]
pub struct Programs {
    all: Mutex<HashMap<u32, Program>>,
    listeners: Arc<Mutex<Vec<Arc<Subscription>>>>,
    next: Arc<AtomicU64>,
}

impl Shared for Programs {}

struct Program {
    users: BTreeSet<User>,
    engine: Option<Engine>,
    has_options: bool,
    held: Arc<Mutex<Option<Held>>>,
    /// Signalled, with `ends` set, when the watcher is to end.
    end: Arc<OwnedFd>,
    ends: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
}

struct Held {
    ticket: u64,
    until: Instant,
}

impl Programs {
    /// Uses a program, which is entered if it is not yet. Does `what` with its engine.
    pub fn enter<T>(
        &self,
        pid: u32,
        user: User,
        what: impl FnOnce(&mut Engine, &mut bool) -> Result<T, PinError>,
    ) -> Result<T, PinError> {
        // By any of its threads' ids too: those the kernel takes for the process.
        if fs::exists(format!("/proc/self/task/{pid}")).unwrap_or(true) {
            return Err(PinError::Refused(format!("process {pid} is the core's own: it cannot stop itself")));
        }
        let mut all = lock(&self.all);
        all.retain(|_, program| !program.has_exited());
        let program = match all.entry(pid) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(Program::enter(pid, Arc::clone(&self.listeners), Arc::clone(&self.next))?),
        };
        program.users.insert(user);
        let left = || PinError::Refused(format!("process {pid} has exited"));
        what(program.engine.as_mut().ok_or_else(left)?, &mut program.has_options)
    }

    /// Does `what` with the engine of a program that is used already.
    pub fn with<T>(&self, pid: u32, what: impl FnOnce(&mut Engine) -> Result<T, PinError>) -> Result<T, PinError> {
        let mut all = lock(&self.all);
        let missing = || PinError::Refused(format!("process {pid} has no checkpoint: CheckpointTake takes one"));
        let program = all.get_mut(&pid).ok_or_else(missing)?;
        let mut held = lock(&program.held);
        let done = what(program.engine.as_mut().ok_or_else(missing)?);
        if program.engine.as_ref().is_some_and(|engine| engine.crash().is_none()) {
            *held = None;
        }
        done
    }

    /// Lets the thread of this ticket die of its signal.
    pub fn give_up(&self, ticket: u64) -> Result<(), PinError> {
        for program in lock(&self.all).values_mut() {
            let held = lock(&program.held);
            if held.as_ref().is_some_and(|held| held.ticket == ticket)
                && let Some(engine) = &program.engine
            {
                engine.give_up();
                return Ok(());
            }
        }
        Err(PinError::Refused(format!("ticket {ticket}: no thread is held for it any more")))
    }

    /// Sends the events of held threads there.
    pub fn listen(&self, subscription: &Arc<Subscription>) {
        lock(&self.listeners).push(Arc::clone(subscription));
    }

    /// No more.
    pub fn stop_listening(&self, subscription: &Subscription) {
        lock(&self.listeners).retain(|other| other.id != subscription.id);
    }

    /// A module uses a pin no more: programs that nobody uses are left.
    pub fn forget(&self, user: User) {
        lock(&self.all).retain(|_, program| {
            program.users.remove(&user);
            !program.users.is_empty()
        });
    }
}

impl Program {
    fn enter(
        pid: u32,
        listeners: Arc<Mutex<Vec<Arc<Subscription>>>>,
        next: Arc<AtomicU64>,
    ) -> Result<Program, PinError> {
        let failed =
            |what: &str, why: &dyn std::fmt::Display| PinError::Refused(format!("process {pid}: {what}: {why}"));
        let (engine, crashes) =
            engine::attach(pid as i32, OPTIONS).map_err(|error| failed("it cannot be entered", &error))?;
        let end = Arc::new(eventfd::create().map_err(|error| failed("a descriptor", &error))?);
        let (ends, held) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        let watcher = Watcher {
            pid,
            crashes,
            held: Arc::clone(&held),
            end: Arc::clone(&end),
            ends: Arc::clone(&ends),
            listeners,
            next,
        };
        let thread = std::thread::Builder::new().name(format!("rmk-held/{pid}")).spawn(move || watcher.run());
        let thread = thread.map_err(|error| failed("a thread that waits for it", &error))?;
        let (users, engine) = (BTreeSet::new(), Some(engine));
        Ok(Program { users, engine, has_options: false, held, end, ends, watcher: Some(thread) })
    }

    fn has_exited(&self) -> bool {
        self.engine.as_ref().is_none_or(Engine::has_exited)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.take()
            && !engine.has_exited()
        {
            // It may exit at this moment, or have become another program by exec, which does not
            // have the handlers.
            let _ = engine.leave();
        }
        self.ends.store(true, SeqCst);
        eventfd::signal(self.end.as_fd());
        if let Some(watcher) = self.watcher.take() {
            // A panic there has been reported by the thread itself.
            let _ = watcher.join();
        }
    }
}

/// Waits for threads of one program that are held, and raises their events.
struct Watcher {
    pid: u32,
    crashes: Crashes,
    held: Arc<Mutex<Option<Held>>>,
    end: Arc<OwnedFd>,
    ends: Arc<AtomicBool>,
    listeners: Arc<Mutex<Vec<Arc<Subscription>>>>,
    next: Arc<AtomicU64>,
}

impl Watcher {
    fn run(self) {
        while !self.ends.load(SeqCst) {
            let mut fds = [self.crashes.as_fd().as_raw_fd(), self.end.as_raw_fd()].map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            });
            if poll::poll(&mut fds, Some(STEP)).is_err() {
                std::thread::sleep(STEP);
            }
            self.crashes.drain();
            let mut held = lock(&self.held);
            match (self.crashes.current(), held.as_ref()) {
                (Some(crash), None) => *held = self.raise(crash),
                (Some(_), Some(one)) if Instant::now() > one.until => self.crashes.give_up(),
                (None, Some(_)) => *held = None,
                _ => {}
            }
        }
    }

    /// Raises the event; where nobody gets it, nobody could decide.
    fn raise(&self, crash: Crash) -> Option<Held> {
        let ticket = FIRST_TICKET + self.next.fetch_add(1, SeqCst);
        let mut event = Event::new(Kind::SignalFatal, now());
        (event.pid, event.tid) = (self.pid, crash.tid as u32);
        event.values = [ticket, crash.signal as u64, crash.address, crash.ip];
        let listeners = lock(&self.listeners);
        let heard = listeners.iter().filter(|subscription| subscription.offer(event)).count();
        if heard == 0 {
            self.crashes.give_up();
            return None;
        }
        Some(Held { ticket, until: Instant::now() + DECIDE_LIMIT })
    }
}
