//! P_PMC: counters of a thread or a CPU, each module its own: open, start, stop, read, write, and
//! an event when one reaches its mark.
//!
//! Fallback: where the processor offers no counter (most virtual machines), instructions become
//! nanoseconds of CPU time; every reply says which of the two its value is.

use super::overflow;
use orbit_linux::perf::{self, Counter, Place, Plain};
use orbit_rmk::{
    Command, Env, Event, Kind, Measure, Pin, PinError, PinKind, Probe, Registration, Reply, Source, Subscription,
    Target, Unit, lock, now,
};
use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::{Arc, Mutex},
};

pub(super) const KIND: PinKind = PinKind {
    name: "P_PMC",
    about: "performance counters of threads and CPUs, and an event when one reaches its mark",
    facility: "perf events, per thread or CPU",
    operations: &["CounterOpen", "CounterStart", "CounterStop", "CounterRead", "CounterWrite", "CounterClose"],
    events: &[Kind::CounterReached],
    probe: &|_| match (perf::probe_instructions().reason(), perf::probe().reason()) {
        (None, _) => Probe::Full,
        (Some(why), None) => Probe::Fallback(format!("nanoseconds of CPU time in place of instructions: {why}")),
        (Some(_), Some(why)) => Probe::Missing(why.into()),
    },
    load: &|env| Ok(Box::new(Pmc { env: env.clone(), counters: HashMap::new(), listeners: Arc::default(), next: 1 })),
};

/// Counters that a module may have open at a time: each is a descriptor of the core's process, or
/// memory of the kernel beside.
const MAX_COUNTERS: usize = 256;

type Listeners = Arc<Mutex<Vec<Arc<Subscription>>>>;

struct Pmc {
    env: Env,
    counters: HashMap<u64, Held>,
    listeners: Listeners,
    next: u64,
}

struct Held {
    user: u64,
    unit: Unit,
    how: How,
    /// What `CounterWrite` set, less what was counted then.
    offset: u64,
}

enum How {
    Plain(Plain),
    Sampling(Arc<Mutex<Counter>>, #[expect(dead_code, reason = "keeps the source registered")] Registration),
}

impl Held {
    fn raw(&self) -> u64 {
        match &self.how {
            How::Sampling(counter, _) => lock(counter).read(),
            How::Plain(counter) => counter.read(),
        }
    }

    fn run(&self, on: bool) -> Result<(), PinError> {
        let done = match &self.how {
            How::Sampling(counter, _) if on => lock(counter).enable(),
            How::Sampling(counter, _) => lock(counter).disable(),
            How::Plain(counter) => counter.set_running(on),
        };
        done.map_err(|error| PinError::of("starting or stopping a counter", error))
    }
}

impl Pin for Pmc {
    fn command(&mut self, user: u64, command: &Command) -> Result<Reply, PinError> {
        let id = match command {
            Command::CounterOpen { target, measure, reach } => return self.open(user, target, measure, *reach),
            Command::CounterStart { id } | Command::CounterStop { id } | Command::CounterRead { id } => *id,
            Command::CounterWrite { id, .. } | Command::CounterClose { id } => *id,
            _ => return Err(PinError::NotMine),
        };
        let held = self.counters.get_mut(&id).filter(|held| held.user == user);
        let held = held.ok_or_else(|| PinError::Refused(format!("this module opened no counter {id}")))?;
        match command {
            Command::CounterStart { .. } => held.run(true)?,
            Command::CounterStop { .. } => held.run(false)?,
            Command::CounterWrite { value, .. } => held.offset = value.wrapping_sub(held.raw()),
            Command::CounterClose { .. } => {
                self.counters.remove(&id);
            }
            _ => {
                let value = held.raw().wrapping_add(held.offset);
                return Ok(Reply::Counter { id, value, unit: held.unit.clone() });
            }
        }
        Ok(Reply::Done)
    }

    fn subscribe(&mut self, subscription: &Arc<Subscription>) -> Result<(), PinError> {
        lock(&self.listeners).push(subscription.clone());
        Ok(())
    }

    fn unsubscribe(&mut self, subscription: &Subscription) {
        lock(&self.listeners).retain(|sub| sub.id != subscription.id);
    }

    fn forget(&mut self, user: u64) {
        self.counters.retain(|_, held| held.user != user);
    }
}

impl Pmc {
    fn open(&mut self, user: u64, target: &Target, measure: &Measure, reach: u64) -> Result<Reply, PinError> {
        if self.counters.values().filter(|held| held.user == user).count() >= MAX_COUNTERS {
            return Err(PinError::Refused(format!(
                "it has {MAX_COUNTERS} counters open, as many as it may: close one"
            )));
        }
        let id = self.next;
        let (how, unit) = if reach == 0 {
            let (fd, unit) = open_plain(target, measure)?;
            (How::Plain(fd), unit)
        } else {
            let (counter, unit) = overflow::open(target, measure, reach)?;
            let stopped = counter.disable().and_then(|()| counter.reset());
            stopped.map_err(|error| PinError::of("stopping a counter", error))?;
            let counter = Arc::new(Mutex::new(counter));
            let source = Reached {
                fd: lock(&counter).as_fd().as_raw_fd(),
                counter: counter.clone(),
                user,
                id,
                reach,
                times: 0,
                listeners: self.listeners.clone(),
            };
            let added = self.env.dispatcher().add(Box::new(source));
            (How::Sampling(counter, added.map_err(|error| PinError::of("waiting for a counter", error))?), unit)
        };
        self.next += 1;
        self.counters.insert(id, Held { user, unit: unit.clone(), how, offset: 0 });
        Ok(Reply::Counter { id, value: 0, unit })
    }
}

/// Raises [`Kind::CounterReached`] to the counter's owner.
struct Reached {
    fd: RawFd,
    counter: Arc<Mutex<Counter>>,
    user: u64,
    id: u64,
    reach: u64,
    times: u64,
    listeners: Listeners,
}

impl Source for Reached {
    fn fd(&self) -> RawFd {
        self.fd
    }

    fn ready(&mut self) {
        loop {
            let Some(sample) = lock(&self.counter).next_sample() else { return };
            self.times += 1;
            let mut event = Event::new(Kind::CounterReached, now());
            (event.pid, event.tid) = (sample.pid as u32, sample.tid as u32);
            event.values = [self.id, self.times * self.reach, 0, 0];
            for sub in lock(&self.listeners).iter().filter(|sub| sub.client == self.user) {
                sub.offer(event);
            }
        }
    }
}

/// Opens a stopped counter that leaves no samples: any measure that the system has.
fn open_plain(target: &Target, measure: &Measure) -> Result<(Plain, Unit), PinError> {
    // Type and number, from <linux/perf_event.h>: 0 hardware, 1 software, 3 cache (data TLB, read,
    // miss).
    const DTLB_READ_MISS: u64 = 3 | 1 << 16;
    let clock = (1, u64::from(matches!(target, Target::Thread { .. })));
    let (kind, config) = match measure {
        Measure::Instructions => (0, 1),
        Measure::Cycles => (0, 0),
        Measure::CacheReferences => (0, 2),
        Measure::CacheMisses => (0, 3),
        Measure::TlbMisses => (3, DTLB_READ_MISS),
        Measure::CpuTime => clock,
        Measure::PageFaults => (1, 2),
        Measure::Switches => (1, 3),
    };
    let unit = |time: bool| if time { Unit::Nanoseconds } else { Unit::Count };
    match event_open(target, kind, config) {
        Ok(fd) => Ok((fd, unit(matches!(measure, Measure::CpuTime)))),
        Err(_) if matches!(measure, Measure::Instructions) => event_open(target, clock.0, clock.1)
            .map(|fd| (fd, unit(true)))
            .map_err(|error| PinError::of(format!("a counter of CPU time at {target:?}"), error)),
        Err(error) => Err(PinError::of(
            format!("a counter of {measure:?} at {target:?} (Instructions and CpuTime are always there)"),
            error,
        )),
    }
}

fn event_open(target: &Target, kind: u32, config: u64) -> io::Result<Plain> {
    let place = match *target {
        Target::Thread { tid } => Place::Thread(tid as i32),
        Target::Cpu { cpu } => Place::Cpu(cpu as i32),
    };
    Plain::open(place, kind, config)
}
