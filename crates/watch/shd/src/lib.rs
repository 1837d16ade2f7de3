//! System hang detection: finds a CPU on which the kernel no longer schedules (the RMK paper,
//! section 4), on an unchanged kernel. See `docs/watch-system.md` for the principle, its limits and
//! figures.
//!
//! [`Shd::start`] loads the kernel half, starts a watcher thread on every CPU and calls a handler
//! with each [`Event`]. Needs root (or CAP_BPF, CAP_PERFMON and CAP_SYS_NICE) and a kernel with
//! BTF.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]

mod kernel;
pub mod module;
mod output;
mod sysrq;
mod table;
mod watch;
mod watcher;

pub use sysrq::{Action, Sysrq};
pub use watch::{json, watch};

use kernel::Kernel;
use std::{fmt, sync::atomic::Ordering, time::Duration};
use table::MAX_CPUS;
use watcher::Watchers;

/// How to judge. The defaults find a hang in about a quarter of a second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Time between two ticks of a CPU, and between two wake-ups of its watcher; 1 ms to 1 s.
    pub period: Duration,
    /// A CPU is never called hung sooner; at least 3 periods.
    pub check_least: Duration,
    /// A CPU is called hung at the latest after this, however long its recent times between
    /// switches were.
    pub check_most: Duration,
    /// Real-time priority (SCHED_FIFO) of the watchers, 1 to 99; 0: none, for a machine that is
    /// never busy in the kernel.
    pub priority: i32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            period: Duration::from_millis(20),
            check_least: Duration::from_millis(160),
            check_most: Duration::from_millis(500),
            priority: 90,
        }
    }
}

impl Options {
    fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str, is: Duration, limit: &str| {
            Err(Error(format!("{what} is {} ms: it must be {limit}", is.as_millis())))
        };
        if !(Duration::from_millis(1)..=Duration::from_secs(1)).contains(&self.period) {
            return wrong("Options::period", self.period, "1 to 1000 ms");
        }
        if self.check_least < self.period * 3 {
            return wrong("Options::check_least", self.check_least, "at least three periods");
        }
        if !(self.check_least..=Duration::from_secs(3600)).contains(&self.check_most) {
            return wrong("Options::check_most", self.check_most, "from check_least to an hour");
        }
        if !(0..=99).contains(&self.priority) {
            return Err(Error(format!("Options::priority is {}: it must be 0 to 99", self.priority)));
        }
        Ok(())
    }
}

/// In what state the CPU hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// It takes interrupts, but does not schedule: a loop or a lock with preemption off.
    InterruptsOn,
    /// It takes no interrupts, but executes instructions (its performance counter says so).
    InterruptsOff,
    /// It executes nothing (its performance counter is silent).
    Halted,
    /// It takes no interrupts; without a performance counter the two cannot be distinguished.
    InterruptsOffOrHalted,
}

impl How {
    /// The word for it in messages and JSON.
    pub fn name(self) -> &'static str {
        match self {
            How::InterruptsOn => "interrupts-on",
            How::InterruptsOff => "interrupts-off",
            How::Halted => "halted",
            How::InterruptsOffOrHalted => "interrupts-off-or-halted",
        }
    }
}

/// What happened. Times are of the monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A CPU hangs.
    Hung {
        /// The CPU.
        cpu: usize,
        /// In what state it is.
        how: How,
        /// The CPU that found it; the same CPU, if its own interrupts did.
        by: usize,
        /// When it last switched.
        since: Duration,
        /// When it was found.
        judged: Duration,
        /// The check value: it made no progress for so long, by the finder's ticks.
        check: Duration,
    },
    /// A CPU that was called hung schedules again.
    Recovered {
        /// The CPU.
        cpu: usize,
        /// When it had last switched before it hung.
        since: Duration,
        /// How long it did not schedule.
        lasted: Duration,
    },
    /// A CPU was taken away (hotplug) and is no longer watched.
    Left {
        /// The CPU.
        cpu: usize,
    },
}

/// What is known of a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuState {
    /// Its number.
    pub cpu: usize,
    /// Context switches since the start.
    pub switches: u64,
    /// Timer interrupts since the start.
    pub ticks: u64,
    /// Its check value now.
    pub check: Duration,
}

/// Why system hang detection could not begin: what was tried, and the system's reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(String);

impl Error {
    fn of(what: &str, error: &dyn std::error::Error) -> Error {
        let mut text = format!("{what}: {error}");
        let mut source = error.source();
        while let Some(inner) = source {
            text += &format!(": {inner}");
            source = inner.source();
        }
        Error(text)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// System hang detection at work; dropping it ends it.
pub struct Shd {
    kernel: Kernel,
    watchers: Watchers,
    period: Duration,
}

impl Shd {
    /// Starts to watch every CPU that is online.
    ///
    /// `handler` is called on a watcher thread, pinned to a living CPU, with real-time priority. It
    /// must not wait for locks, for memory, or for other threads: their holders may be on the hung
    /// CPU. It may be called by two threads at once.
    pub fn start(options: &Options, handler: impl Fn(&Event) + Send + Sync + 'static) -> Result<Shd, Error> {
        options.check()?;
        let cpus = online()?;
        let (kernel, table) = Kernel::start(options, &cpus)?;
        let watchers =
            Watchers::start(table, &cpus, options.period, options.priority, kernel.counter, Box::new(handler))?;
        Ok(Shd { kernel, watchers, period: options.period })
    }

    /// Whether every CPU has a performance counter that interrupts it even while its interrupts are
    /// off.
    pub fn has_counter(&self) -> bool {
        self.kernel.counter
    }

    /// The watched CPUs now.
    pub fn cpus(&self) -> Vec<CpuState> {
        let shared = &self.watchers.shared;
        let row = |&cpu: &usize| {
            let row = shared.table.cpu(cpu);
            CpuState {
                cpu,
                switches: row.switches.load(Ordering::Relaxed),
                ticks: row.ticks.load(Ordering::Relaxed),
                check: self.period * row.check.load(Ordering::Relaxed) as u32,
            }
        };
        shared.cpus.iter().map(row).collect()
    }
}

impl Drop for Shd {
    fn drop(&mut self) {
        // The kernel half is taken down piece by piece, over tenths of a second: a timer whose
        // counter of switches is gone already takes every CPU for hung.
        self.watchers.hush();
    }
}

/// CPUs that are online.
fn online() -> Result<Vec<usize>, Error> {
    const LIST: &str = "/sys/devices/system/cpu/online";
    let text = std::fs::read_to_string(LIST).map_err(|e| Error::of(&format!("reading {LIST}"), &e))?;
    let cpus = parse(text.trim()).ok_or_else(|| Error(format!("{LIST} says {text:?}, which is no list of CPUs")))?;
    match cpus.last() {
        Some(&last) if last < MAX_CPUS => Ok(cpus),
        _ => Err(Error(format!("CPU list {} goes beyond the {MAX_CPUS} CPUs there is room for", text.trim()))),
    }
}

/// A list such as `0-2,5`.
fn parse(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last > 1 << 16 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cpus_is_read() {
        assert_eq!(parse("0"), Some(vec![0]));
        assert_eq!(parse("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse("0-"), None);
        assert_eq!(parse(""), None);
        assert_eq!(parse("0-99999999"), None);
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        let good = Options::default();
        assert_eq!(good.check(), Ok(()));
        let ms = Duration::from_millis;
        for bad in [
            Options { period: ms(0), ..good.clone() },
            Options { check_least: ms(59), ..good.clone() },
            Options { check_most: ms(100), ..good.clone() },
            Options { priority: 100, ..good.clone() },
        ] {
            let said = bad.check().unwrap_err().to_string();
            assert!(said.contains("must be"), "{said}");
        }
    }
}
