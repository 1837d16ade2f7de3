//! What a host is made with, what it is asked to load, and what it says of that.

use crate::account::Account;
use crate::budget::Budget;
use crate::error::{Error, Kind, Result};
use crate::manager::GrantRequest;
use orbit_sandbox_lib::abi;
use orbit_sandbox_lib::agent::MAX_BUDGET_NS;
use std::time::Duration;

/// What a host is made with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Processors that have an agent and ticks.
    pub cpus: Vec<usize>,
    /// Real-time priority of agents; 0: ordinary processes.
    pub agent_priority: i32,
    /// Time that members have to take an event before an agent does.
    pub grace: Duration,
    /// Share of one CPU that all services together may reserve.
    pub limit: f64,
    /// Aborts after which a service is revoked.
    pub aborts: u64,
    /// The signal of upcalls, and that of budgets: two signals that no member uses. Real-time ones
    /// (34 to 64), or [`Options::STACK_FAULT`], which upcalls without rights need.
    pub signals: (i32, i32),
}

impl Default for Options {
    fn default() -> Options {
        Options {
            cpus: vec![0],
            agent_priority: 99,
            grace: Duration::from_micros(300),
            limit: 0.5,
            aborts: 3,
            signals: (Options::STACK_FAULT, 61),
        }
    }
}

impl Options {
    /// `SIGSTKFLT`: nothing on x86-64 sends it; as a classic signal it is not queued twice.
    pub const STACK_FAULT: i32 = 16;

    /// Signals of a host whose upcalls come by clocks, which do not know whether a program has
    /// replaced the handler since it joined: `SIGURG` is one that programs ignore by default, and
    /// that Go's runtime takes for one of its own. A program's own handler gets the clocks' too,
    /// since the kernel makes one signal of two that are pending.
    pub const WITHOUT_RIGHTS: (i32, i32) = (abi::URGENT, 61);
}

/// What starts upcalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upcalls {
    /// A program in the kernel.
    Kernel,
    /// Clocks of the members' own threads.
    Clocks,
    /// Nothing: agents take every event.
    None,
}

/// The side that runs a service's handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// Whichever member is current; an agent if none is.
    Upcall,
    /// An agent.
    Agent,
    /// A thread of its own, in a process of its own, where the handler may wait.
    Thread,
}

/// A service to load.
#[derive(Clone, Debug)]
pub struct Spec {
    /// For messages.
    pub name: String,
    /// The process it belongs to: it ends with that.
    pub owner: i32,
    /// CPU time of a run and of a window.
    pub budget: Budget,
    /// Time between two timer events; zero: none.
    pub period: Duration,
    /// The side that runs it.
    pub dispatch: Dispatch,
    /// An upcall raises the thread it interrupts to this real-time priority; `None`: it runs at the
    /// thread's own. A thread of the service's own has it all the time; `None`: it is an ordinary
    /// one.
    pub raise: Option<i32>,
    /// What its handler gets with each event; at most [`abi::ARGUMENTS`] bytes.
    pub arguments: Vec<u8>,
    /// The handles it gets, in this order.
    pub grants: Vec<GrantRequest>,
}

impl Spec {
    /// What is wrong with it, whatever else is loaded.
    pub(crate) fn check(&self, agents_are_real_time: bool) -> Result<()> {
        let name = &self.name;
        let is_real_time = if self.dispatch == Dispatch::Thread { self.raise.is_some() } else { agents_are_real_time };
        let max = Duration::from_nanos(MAX_BUDGET_NS);
        if is_real_time && self.budget.cpu() > max {
            let text = format!(
                "service {name:?}: a budget of {:?}: a native handler at a real-time priority has at most {max:?} a \
                 run, since nothing else of its CPU runs meanwhile: split the work, or load it as wasm",
                self.budget.cpu()
            );
            return Err(Error::new(Kind::Invalid, text));
        }
        if self.arguments.len() > abi::ARGUMENTS {
            let text =
                format!("service {name:?}: {} bytes of arguments, of at most {}", self.arguments.len(), abi::ARGUMENTS);
            return Err(Error::new(Kind::Invalid, text));
        }
        if !self.period.is_zero() && self.period < Duration::from_micros(100) {
            let text =
                format!("service {name:?}: a period of {:?}: the least is 100us, and 0s means no ticks", self.period);
            return Err(Error::new(Kind::Invalid, text));
        }
        if self.raise.is_some_and(|priority| !(1..=98).contains(&priority)) {
            let text = format!("service {name:?}: an upcall's priority is 1 to 98, below that of agents");
            return Err(Error::new(Kind::Invalid, text));
        }
        Ok(())
    }

    /// How its handler is run, in the region's words.
    pub(crate) fn flags(&self, has_descriptors: bool) -> u32 {
        match self.dispatch {
            Dispatch::Upcall if self.raise.is_some() => abi::PURE | abi::RAISE,
            Dispatch::Upcall => abi::PURE,
            Dispatch::Agent => 0,
            Dispatch::Thread if !has_descriptors => abi::THREAD,
            Dispatch::Thread => abi::THREAD | abi::GIVEN,
        }
    }
}

/// A loaded service. A number is not given again: the slot and how many services it had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServiceId {
    pub(crate) slot: usize,
    pub(crate) generation: u64,
}

impl std::fmt::Display for ServiceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "n{}.{}", self.slot, self.generation)
    }
}

/// What a service is like now.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// The process it belongs to.
    pub owner: i32,
    /// Its budget.
    pub budget: Budget,
    /// Whether it was revoked.
    pub is_revoked: bool,
    /// What it used.
    pub account: Account,
    /// Nanoseconds from due to handler, the latest runs.
    pub delays_ns: Vec<u32>,
    /// CPU nanoseconds of the latest runs.
    pub costs_ns: Vec<u32>,
}

/// A thing that happened to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happened {
    /// Its owner ended: it was unloaded and what it had set was put back.
    OwnerEnded {
        /// The service.
        id: ServiceId,
        /// Its name.
        name: String,
        /// The owner.
        owner: i32,
    },
    /// It was aborted too often and is not run any more; what it had set was put back.
    Revoked {
        /// The service.
        id: ServiceId,
        /// Its name.
        name: String,
        /// Runs aborted.
        aborts: u64,
    },
    /// An agent died and was started again.
    AgentDied {
        /// Its processor.
        cpu: usize,
    },
    /// Something that a service set could not be put back.
    NotRestored {
        /// The attribute, its target, the value, and why.
        what: String,
    },
    /// The thread of a service died and was started again.
    ThreadDied {
        /// The service.
        name: String,
    },
}
