//! P_PERI: periodic jobs. Each subscription has a timer of its own, at its own interval; the
//! heartbeat is shared.
//!
//! The heartbeat is what makes silence mean something: a thread of real-time priority on every CPU
//! that wakes each interval, so that a CPU which works at all makes context switches, and one that
//! makes none for some time is stuck.

use crate::flow::online_cpus;
use orbit_linux::sched;
use orbit_rmk::{
    Command, Env, Event, Kind, Pin, PinError, PinKind, Probe, Registration, Reply, Subscription, lock, now, timer,
};
use std::{
    collections::HashMap,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

pub(super) const KIND: PinKind = PinKind {
    name: "P_PERI",
    about: "periodic events, and a heartbeat thread on every CPU",
    facility: "timerfd; a thread of real-time priority on each CPU",
    operations: &["HeartbeatStart", "HeartbeatStop"],
    events: &[Kind::Period],
    probe: &|_| Probe::Full,
    load: &|env| {
        Ok(Box::new(Periodic { env: env.clone(), timers: HashMap::new(), asked: HashMap::new(), heart: None }))
    },
};

struct Periodic {
    env: Env,
    timers: HashMap<u64, Registration>,
    asked: HashMap<u64, u64>,
    heart: Option<Heart>,
}

impl Pin for Periodic {
    fn command(&mut self, user: u64, command: &Command) -> Result<Reply, PinError> {
        match command {
            Command::HeartbeatStart { interval_ns } => {
                if !(1_000_000..=10_000_000_000).contains(interval_ns) {
                    return Err(PinError::Refused(format!(
                        "heartbeat interval {interval_ns} ns is outside 1 ms to 10 s"
                    )));
                }
                self.asked.insert(user, *interval_ns);
            }
            Command::HeartbeatStop => {
                self.asked.remove(&user);
            }
            _ => return Err(PinError::NotMine),
        }
        self.beat()?;
        Ok(Reply::Done)
    }

    fn subscribe(&mut self, subscription: &Arc<Subscription>) -> Result<(), PinError> {
        let sub = subscription.clone();
        let mut total = 0;
        let tick = move |passed: u64| {
            total += passed;
            let mut event = Event::new(Kind::Period, now());
            event.values = [total, passed, 0, 0];
            sub.offer(event);
        };
        let timer = timer::every(self.env.dispatcher(), subscription.filter.interval_ns, tick)
            .map_err(|error| PinError::of("setting a timer", error))?;
        self.timers.insert(subscription.id, timer);
        Ok(())
    }

    fn unsubscribe(&mut self, subscription: &Subscription) {
        self.timers.remove(&subscription.id);
    }

    fn forget(&mut self, user: u64) {
        self.asked.remove(&user);
        // Stopping or slowing the heartbeat asks nothing of the system that it could reject.
        let _ = self.beat();
    }
}

impl Periodic {
    /// Brings the heartbeat to the shortest interval that a user asked for.
    fn beat(&mut self) -> Result<(), PinError> {
        let shortest = self.asked.values().min().copied();
        if self.heart.as_ref().map(|heart| heart.interval_ns) != shortest {
            self.heart = None;
            if let Some(interval_ns) = shortest {
                self.heart = Some(Heart::start(interval_ns)?);
            }
        }
        Ok(())
    }
}

/// The heartbeat's threads; they end when it is dropped.
struct Heart {
    interval_ns: u64,
    stop: Arc<(Mutex<bool>, Condvar)>,
    threads: Vec<JoinHandle<()>>,
}

impl Heart {
    fn start(interval_ns: u64) -> Result<Heart, PinError> {
        let mut heart = Heart { interval_ns, stop: Arc::default(), threads: Vec::new() };
        for cpu in online_cpus() {
            let stop = heart.stop.clone();
            let thread = std::thread::Builder::new()
                .name(format!("rmk-beat/{cpu}"))
                .spawn(move || beat(cpu, Duration::from_nanos(interval_ns), &stop))
                .map_err(|error| PinError::of("starting a heartbeat thread", error))?;
            heart.threads.push(thread);
        }
        Ok(heart)
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        *lock(&self.stop.0) = true;
        self.stop.1.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn beat(cpu: u32, interval: Duration, stop: &(Mutex<bool>, Condvar)) {
    // Where the system rejects real-time priority the thread beats with its ordinary one: later on
    // a busy CPU, never wrongly.
    let _ = sched::set_affinity(0, &[cpu as usize]);
    let _ = sched::set_fifo(0, 98);
    let mut stopped = lock(&stop.0);
    while !*stopped {
        stopped = stop.1.wait_timeout(stopped, interval).unwrap_or_else(PoisonError::into_inner).0;
    }
}
