//! P_DBR: hardware breakpoints and watchpoints in another process, by the processor's debug
//! registers (four a thread).
//!
//! A breakpoint is set in each thread that the process has at that moment. There is no fallback: a
//! software breakpoint would write into the program.

use super::{overflow, proc};
use orbit_linux::perf::{self, Counter};
use orbit_rmk::{
    Access, Command, Env, Event, Kind, Pin, PinError, PinKind, Probe, Registration, Reply, Subscription, lock, now,
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

pub(super) const KIND: PinKind = PinKind {
    name: "P_DBR",
    about: "hardware breakpoints: an event when an address is executed, written or read",
    facility: "debug registers by perf, four a thread",
    operations: &["BreakpointSet", "BreakpointClear"],
    events: &[Kind::Breakpoint],
    probe: &|_| match perf::probe_breakpoint().reason() {
        None => Probe::Full,
        Some(why) => Probe::Missing(why.into()),
    },
    load: &|env| Ok(Box::new(Dbr { env: env.clone(), set: HashMap::new(), listeners: Arc::default(), next: 1 })),
};

struct Dbr {
    env: Env,
    set: HashMap<u64, (u64, Vec<Registration>)>,
    listeners: Arc<Mutex<Vec<Arc<Subscription>>>>,
    next: u64,
}

impl Pin for Dbr {
    fn command(&mut self, user: u64, command: &Command) -> Result<Reply, PinError> {
        match command {
            Command::BreakpointSet { pid, address, length, access } => self.set(user, *pid, *address, *length, access),
            Command::BreakpointClear { id } => match self.set.get(id) {
                Some((owner, _)) if *owner == user => {
                    self.set.remove(id);
                    Ok(Reply::Done)
                }
                _ => Err(PinError::Refused(format!("this module set no breakpoint {id}"))),
            },
            _ => Err(PinError::NotMine),
        }
    }

    fn subscribe(&mut self, subscription: &Arc<Subscription>) -> Result<(), PinError> {
        lock(&self.listeners).push(subscription.clone());
        Ok(())
    }

    fn unsubscribe(&mut self, subscription: &Subscription) {
        lock(&self.listeners).retain(|sub| sub.id != subscription.id);
    }

    fn forget(&mut self, user: u64) {
        self.set.retain(|_, (owner, _)| *owner != user);
    }
}

impl Dbr {
    fn set(&mut self, user: u64, pid: u32, address: u64, length: u32, access: &Access) -> Result<Reply, PinError> {
        let access = match access {
            Access::Execute => perf::Access::Execute,
            Access::Write => perf::Access::Write,
            Access::ReadWrite => perf::Access::ReadWrite,
        };
        let kind = perf::Kind::Breakpoint { addr: address as usize, len: length as usize, access };
        let id = self.next;
        let mut threads = Vec::new();
        for tid in proc::threads(pid)? {
            let opened =
                Counter::open_thread(tid as i32, kind).and_then(|mut counter| counter.set_period(1).map(|()| counter));
            let counter = match opened {
                Ok(counter) => counter,
                // The thread ended meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                Err(error) => {
                    let what = format!(
                        "breakpoint at {address:#x}, {length} bytes, in thread {tid} of process {pid} (four a \
                         thread; aligned to their length)"
                    );
                    return Err(PinError::of(what, error));
                }
            };
            let listeners = self.listeners.clone();
            let source = overflow::source(counter, move |samples| {
                for sample in samples {
                    let mut event = Event::new(Kind::Breakpoint, now());
                    (event.pid, event.tid) = (sample.pid as u32, sample.tid as u32);
                    event.values = [id, address, sample.ip, 0];
                    for sub in lock(&listeners).iter().filter(|sub| sub.client == user) {
                        sub.offer(event);
                    }
                }
            });
            threads.push(
                self.env.dispatcher().add(source).map_err(|error| PinError::of("waiting for a breakpoint", error))?,
            );
        }
        if threads.is_empty() {
            return Err(PinError::Refused(format!("process {pid} ended")));
        }
        self.next += 1;
        self.set.insert(id, (user, threads));
        Ok(Reply::Id { id })
    }
}
