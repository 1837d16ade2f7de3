//! P_APIC: where a counter's overflow is delivered: to a kernel program on the CPU itself (ticks,
//! and the watch over silent CPUs), as an event, or as a signal to a process. With a performance
//! unit an overflow is a non-maskable interrupt; clocks overflow by the CPU's timer.
//!
//! Fallback without kernel programs: armed overflows only, woken by a descriptor; no ticks, no
//! watch over CPUs.

use super::{
    overflow,
    traced::{self, Traced},
};
use orbit_rmk::{
    Command, Delivery, Env, Event, Kind, Pin, PinError, PinKind, Registration, Reply, Subscription, lock, now,
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

pub(super) const KIND: PinKind = PinKind {
    name: "P_APIC",
    about: "overflows of counters: as ticks and stall watch in the kernel, as events, as signals",
    facility: "perf overflow: kernel program, descriptor or signal",
    operations: &["OverflowArm", "OverflowDisarm"],
    events: &[Kind::CpuTick, Kind::CpuStalled, Kind::Overflow],
    probe: &traced::probe,
    load: &|env| {
        Ok(Box::new(Apic {
            env: env.clone(),
            traced: Traced::new(env),
            listeners: Arc::default(),
            armed: HashMap::new(),
            next: 1,
        }))
    },
};

type Listeners = Arc<Mutex<Vec<Arc<Subscription>>>>;

struct Apic {
    env: Env,
    traced: Traced,
    listeners: Listeners,
    armed: HashMap<u64, (u64, Registration)>,
    next: u64,
}

impl Pin for Apic {
    fn command(&mut self, user: u64, command: &Command) -> Result<Reply, PinError> {
        match command {
            Command::OverflowArm { target, measure, period, delivery } => {
                let (counter, unit) = overflow::open(target, measure, *period)?;
                let (id, listeners, delivery, mut total) = (self.next, self.listeners.clone(), delivery.clone(), 0);
                if let Delivery::Signal { pid, signal } = delivery {
                    overflow::send_signal(pid, 0)?;
                    if signal > 64 {
                        return Err(PinError::Refused(format!("signal {signal} is none: 1 to 64")));
                    }
                }
                let source = overflow::source(counter, move |samples| {
                    total += samples.len() as u64;
                    if let Delivery::Signal { pid, signal } = delivery {
                        // A process that is gone gets no signal; the event still counts.
                        let _ = overflow::send_signal(pid, signal);
                    }
                    for sub in lock(&listeners).iter().filter(|sub| sub.client == user) {
                        let mut event = Event::new(Kind::Overflow, now());
                        if let Some(last) = samples.last() {
                            (event.pid, event.tid) = (last.pid as u32, last.tid as u32);
                        }
                        event.values = [id, samples.len() as u64, total, 0];
                        sub.offer(event);
                    }
                });
                let registration = self
                    .env
                    .dispatcher()
                    .add(source)
                    .map_err(|error| PinError::of("waiting for an overflow", error))?;
                self.next += 1;
                self.armed.insert(id, (user, registration));
                Ok(Reply::Counter { id, value: 0, unit })
            }
            Command::OverflowDisarm { id } => match self.armed.get(id) {
                Some((owner, _)) if *owner == user => {
                    self.armed.remove(id);
                    Ok(Reply::Done)
                }
                _ => Err(PinError::Refused(format!("this module armed no overflow {id}"))),
            },
            _ => Err(PinError::NotMine),
        }
    }

    fn subscribe(&mut self, subscription: &Arc<Subscription>) -> Result<(), PinError> {
        match subscription.kind {
            // A stall is silence of the scheduler, so its tracepoint must be heard.
            Kind::CpuTick | Kind::CpuStalled => self.traced.subscribe(subscription, &["sched_switch", "cpu_tick"], 0),
            _ => {
                lock(&self.listeners).push(subscription.clone());
                Ok(())
            }
        }
    }

    fn unsubscribe(&mut self, subscription: &Subscription) {
        self.traced.unsubscribe(subscription);
        lock(&self.listeners).retain(|sub| sub.id != subscription.id);
    }

    fn forget(&mut self, user: u64) {
        self.armed.retain(|_, (owner, _)| *owner != user);
    }
}
