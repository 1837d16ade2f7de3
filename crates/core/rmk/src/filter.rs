//! Which events a subscription receives: [`Filter`]. It is evaluated where the event is made, in
//! the kernel for most pins, and each subscription has its own, so that modules on one pin do not
//! see each other's choices.

use std::time::Duration;

/// Whose events pass.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Scope {
    /// Every process but the core's own.
    Everyone,
    /// The programs guarded for this module (`Core::guard`, `Client::guard`), as they come and go.
    Guarded,
    /// These processes.
    Pids(Vec<u32>),
}

/// Conditions that an event must meet, and how much of what passes is sent.
///
/// ```
/// use orbit_rmk::Filter;
/// use std::time::Duration;
/// let slow_reads = Filter::guarded().keys(&[0]).min_duration(Duration::from_millis(50));
/// let every_hundredth = Filter::everyone().every(100);
/// # let _ = (slow_reads, every_hundredth);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Filter {
    /// Whose events.
    pub scope: Scope,
    /// Also those of processes that a listed process makes from now on.
    pub follow: bool,
    /// CPUs; `None`: all.
    pub cpus: Option<Vec<u32>>,
    /// The kind's keys (system call numbers, signals, interrupts), 0 to 511; `None`: all.
    pub keys: Option<Vec<u32>>,
    /// Shortest duration in nanoseconds, for kinds that have one.
    pub min_ns: u64,
    /// Send every n-th event that passes, counted on each CPU; 1: all of them; 0: none, only count.
    pub every: u64,
    /// Events that may wait for the module at a time; more are lost, and counted as lost.
    pub queue: u32,
    /// [`crate::Kind::CpuStalled`]: ticks without a context switch (see `P_APIC` for a tick's
    /// length).
    pub ticks: u64,
    /// [`crate::Kind::Period`]: nanoseconds from one event to the next. Sampled kinds: nanoseconds
    /// between samples.
    pub interval_ns: u64,
}

impl Filter {
    /// Processes that it may name.
    pub const MAX_PIDS: usize = 16384;
    /// CPUs that it may name, and number from which on a CPU cannot be named.
    pub const MAX_CPUS: usize = 256;
    /// Keys that it may name.
    pub const MAX_KEYS: usize = 512;

    /// Events of the guarded programs and the processes they make.
    pub fn guarded() -> Filter {
        Filter {
            scope: Scope::Guarded,
            follow: true,
            cpus: None,
            keys: None,
            min_ns: 0,
            every: 1,
            queue: 8192,
            ticks: 15,
            interval_ns: 100_000_000,
        }
    }

    /// Events of every process but the core's own.
    pub fn everyone() -> Filter {
        Filter { scope: Scope::Everyone, ..Filter::guarded() }
    }

    /// Events of these processes and those they make from now on.
    pub fn pids(pids: &[u32]) -> Filter {
        Filter { scope: Scope::Pids(pids.to_vec()), ..Filter::guarded() }
    }

    /// No longer those of processes that the listed ones make.
    pub fn without_children(self) -> Filter {
        Filter { follow: false, ..self }
    }

    /// Only on these CPUs.
    pub fn cpus(self, cpus: &[u32]) -> Filter {
        Filter { cpus: Some(cpus.to_vec()), ..self }
    }

    /// Only with these keys.
    pub fn keys(self, keys: &[u32]) -> Filter {
        Filter { keys: Some(keys.to_vec()), ..self }
    }

    /// Only what took at least so long.
    pub fn min_duration(self, least: Duration) -> Filter {
        Filter { min_ns: least.as_nanos() as u64, ..self }
    }

    /// Send every n-th that passes (counted on each CPU).
    pub fn every(self, n: u64) -> Filter {
        Filter { every: n, ..self }
    }

    /// Send nothing; count what passes (`Client::counts`).
    pub fn count_only(self) -> Filter {
        self.every(0)
    }

    /// How many events may wait for the module.
    pub fn queue(self, events: u32) -> Filter {
        Filter { queue: events, ..self }
    }

    /// Ticks without a context switch that make a CPU stalled.
    pub fn ticks(self, ticks: u64) -> Filter {
        Filter { ticks, ..self }
    }

    /// What it has too many of to be kept, if it has: which, how many, and the limit.
    pub(crate) fn too_long(&self) -> Option<String> {
        let pids = if let Scope::Pids(pids) = &self.scope { pids.len() } else { 0 };
        let count = |some: &Option<Vec<u32>>| some.as_ref().map_or(0, Vec::len);
        [
            ("processes", pids, Filter::MAX_PIDS),
            ("CPUs", count(&self.cpus), Filter::MAX_CPUS),
            ("keys", count(&self.keys), Filter::MAX_KEYS),
        ]
        .into_iter()
        .find(|(_, n, most)| n > most)
        .map(|(what, n, most)| {
            format!("its filter names {n} {what}, {most} at most: name fewer, or all by naming none")
        })
    }

    /// Interval of [`crate::Kind::Period`], or between samples.
    pub fn interval(self, interval: Duration) -> Filter {
        Filter { interval_ns: interval.as_nanos() as u64, ..self }
    }
}

/// What became of a subscription's events. `passed >= due`, and `due == delivered + waiting + lost`
/// once nothing is on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events that met the filter's conditions.
    pub passed: u64,
    /// Those of them that were to be sent (see [`Filter::every`]).
    pub due: u64,
    /// Those that the module took.
    pub delivered: u64,
    /// Those that wait for the module.
    pub waiting: u64,
    /// Those that found the queue full.
    pub lost: u64,
    /// Processes that listed ones made and that could not be listed in their turn (room for
    /// 16,384): their events are not among these.
    pub unlisted: u64,
}
