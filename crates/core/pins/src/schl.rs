//! P_SCHL: context switches and the life of processes, seen at the scheduler's tracepoints. What
//! modules do not subscribe to is only counted, per CPU.
//!
//! Fallback without kernel programs: the time slices and run times of the listed threads are
//! sampled from /proc; events carry [`Event::SAMPLED`], and only [`Kind::ContextSwitch`] is raised.

use super::proc;
use crate::kernel::{self, Attachment, Kernel};
use orbit_rmk::{
    Command, Env, Event, Kind, Pin, PinError, PinKind, Probe, Registration, Reply, Scope, Subscription, now, timer,
};
use std::{collections::HashMap, sync::Arc};

pub(super) const KIND: PinKind = PinKind {
    name: "P_SCHL",
    about: "context switches, and processes that start, execute and end",
    facility: "kernel programs at the scheduler's tracepoints",
    operations: &["CpuStates", "ThreadTimes"],
    events: &[Kind::ContextSwitch, Kind::Started, Kind::Executed, Kind::Ended],
    probe: &|env| match kernel::support(env) {
        Ok(()) => Probe::Full,
        Err(why) => {
            Probe::Fallback(format!("run times sampled from /proc, listed processes only; to see every switch: {why}"))
        }
    },
    load: &|env| match kernel::support(env) {
        Ok(()) => {
            let kernel = Kernel::of(env)?;
            let counting = kernel.attach("sched_switch")?;
            Ok(Box::new(Traced { kernel, _counting: counting, attached: HashMap::new() }))
        }
        Err(_) => Ok(Box::new(Sampled { env: env.clone(), samplers: HashMap::new() })),
    },
};

struct Traced {
    kernel: Arc<Kernel>,
    _counting: Attachment,
    attached: HashMap<u64, Vec<Attachment>>,
}

impl Pin for Traced {
    fn command(&mut self, _user: u64, command: &Command) -> Result<Reply, PinError> {
        match command {
            Command::CpuStates => Ok(Reply::Cpus { cpus: self.kernel.flow().cpu_states() }),
            Command::ThreadTimes { pid } => Ok(Reply::Threads { threads: proc::thread_times(*pid)? }),
            _ => Err(PinError::NotMine),
        }
    }

    fn subscribe(&mut self, subscription: &Arc<Subscription>) -> Result<(), PinError> {
        let program = match subscription.kind {
            Kind::ContextSwitch => "sched_switch",
            Kind::Started => "process_fork",
            Kind::Executed => "process_exec",
            Kind::Ended => "process_exit",
            _ => return Err(PinError::NotMine),
        };
        let attached = self.kernel.attach_for(&subscription.filter, &[program])?;
        self.kernel.flow().activate(subscription, 0)?;
        self.attached.insert(subscription.id, attached);
        Ok(())
    }

    fn unsubscribe(&mut self, subscription: &Subscription) {
        self.kernel.flow().deactivate(subscription);
        self.attached.remove(&subscription.id);
    }

    fn forget(&mut self, _user: u64) {}
}

struct Sampled {
    env: Env,
    samplers: HashMap<u64, Registration>,
}

impl Pin for Sampled {
    fn command(&mut self, _user: u64, command: &Command) -> Result<Reply, PinError> {
        match command {
            Command::ThreadTimes { pid } => Ok(Reply::Threads { threads: proc::thread_times(*pid)? }),
            Command::CpuStates => Err(PinError::Refused(format!(
                "switches of a CPU cannot be counted here: {}",
                kernel::support(&self.env).err().unwrap_or_default()
            ))),
            _ => Err(PinError::NotMine),
        }
    }

    fn subscribe(&mut self, subscription: &Arc<Subscription>) -> Result<(), PinError> {
        if subscription.kind != Kind::ContextSwitch || subscription.filter.scope == Scope::Everyone {
            let why = kernel::support(&self.env).err().unwrap_or_default();
            return Err(PinError::Refused(format!(
                "without kernel programs only the switches of listed processes are sampled: {why}"
            )));
        }
        let sub = subscription.clone();
        let mut last: HashMap<u32, (u64, u64)> = HashMap::new();
        let sample = move |_passed: u64| {
            let mut seen = HashMap::with_capacity(last.len());
            for pid in sub.pids() {
                for thread in proc::thread_times(pid).unwrap_or_default() {
                    seen.insert(thread.tid, (thread.slices, thread.ran_ns));
                    let Some((slices, ran)) = last.get(&thread.tid).copied() else { continue };
                    let ran_now = thread.ran_ns.saturating_sub(ran);
                    if thread.slices == slices || ran_now < sub.filter.min_ns {
                        continue;
                    }
                    let mut event = Event::new(Kind::ContextSwitch, now());
                    (event.code, event.pid, event.tid) = (event.code | Event::SAMPLED, pid, thread.tid);
                    event.values = [thread.slices, 0, 0, ran_now];
                    sub.offer(event);
                }
            }
            last = seen;
        };
        let timer = timer::every(self.env.dispatcher(), subscription.filter.interval_ns, sample)
            .map_err(|error| PinError::of("setting a timer", error))?;
        self.samplers.insert(subscription.id, timer);
        Ok(())
    }

    fn unsubscribe(&mut self, subscription: &Subscription) {
        self.samplers.remove(&subscription.id);
    }

    fn forget(&mut self, _user: u64) {}
}
