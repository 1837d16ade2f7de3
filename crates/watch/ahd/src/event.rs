//! What a watcher reports.

use crate::json;
use orbit_inspect::Sure;
use orbit_inspect::python::PyFrame;
use orbit_inspect::stacks::Frame;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The two ways to hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It uses CPU and gets nowhere.
    Busy,
    /// It waits for what does not come.
    Blocked,
}

impl Kind {
    /// `busy` or `blocked`.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Busy => "busy",
            Kind::Blocked => "blocked",
        }
    }
}

/// What progress and check values count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// CPU time of the thread, nanoseconds.
    CpuNs,
    /// Time blocked, nanoseconds.
    WaitNs,
}

impl Unit {
    /// `cpu_ns` or `wait_ns`.
    pub fn word(self) -> &'static str {
        match self {
            Unit::CpuNs => "cpu_ns",
            Unit::WaitNs => "wait_ns",
        }
    }
}

/// Something that happened to a watched process.
#[derive(Debug, Deserialize, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// A process is watched from now on.
    Joined {
        /// The process.
        pid: i32,
        /// Its name.
        comm: String,
    },
    /// A process has ended.
    Left {
        /// The process.
        pid: i32,
    },
    /// Threads hang.
    Hang(Box<Hang>),
    /// A hang that was reported is over.
    Recovered {
        /// Process.
        pid: i32,
        /// Thread.
        tid: i32,
        /// How it hung.
        kind: Kind,
        /// For how long it lasted after the report.
        #[serde(rename = "after_ms", with = "json::ms")]
        after: Duration,
    },
    /// The loop of a thread is known: from now on it is reported when it leaves that for too long.
    /// Of the first threads of a process only.
    Learnt {
        /// Process.
        pid: i32,
        /// Thread.
        tid: i32,
    },
    /// What the sections by name of a process cost it; once, at its end or the watcher's.
    Sections {
        /// The process.
        pid: i32,
        /// Each section.
        #[serde(rename = "sections")]
        list: Vec<SectionUse>,
    },
    /// Something cannot be watched; the text says what it needs.
    Trouble {
        /// The process.
        pid: i32,
        /// One sentence.
        text: String,
    },
}

/// What a section by name cost a process.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct SectionUse {
    /// Its name.
    pub section: String,
    /// The function, and the file it is in.
    pub function: String,
    /// The file, by the name the process knows it.
    pub file: String,
    /// Probes hit: entries and exits that were seen.
    pub hits: u64,
    /// What a hit cost, ns of CPU.
    pub ns_per_hit: f64,
    /// CPU time the process used meanwhile, ns.
    #[serde(rename = "cpu_ms", with = "json::ns_as_ms")]
    pub cpu_ns: u64,
    /// The hits' share of that time, 0 to 1.
    #[serde(rename = "share_percent", with = "json::percent")]
    pub share: f64,
    /// Times the probes were put in place.
    pub windows: u64,
}

/// One hang: which threads, in what, why.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Hang {
    /// Busy or blocked.
    pub kind: Kind,
    /// Process of the thread first named.
    pub pid: i32,
    /// That thread.
    pub tid: i32,
    /// Its name.
    pub comm: String,
    /// The section it is in, where sections are marked.
    pub section: Option<String>,
    /// CPU time since it last got on, when it was judged (busy); time waited, up to the report
    /// (blocked).
    pub progress: u64,
    /// What it usually is; nothing without a history.
    pub usual: Option<u64>,
    /// What it may be; 0 for a ring, which is a hang from its first moment.
    pub check_value: u64,
    /// What the three are counted in.
    pub unit: Unit,
    /// Wall time from when it last got on, as far as that was seen, to the finished report: it
    /// hangs for so long at least. Of threads that wait for each other, since the last of them came
    /// to rest.
    #[serde(rename = "since_ms", with = "json::ms")]
    pub since: Duration,
    /// Wall time from when it could first be known to hang, by its check value, to the finished
    /// report; never more than `since`.
    #[serde(rename = "latency_ms", with = "json::ms")]
    pub latency: Duration,
    /// One sentence: which thread waits for what, or spins where.
    pub why: String,
    /// How sure it is.
    pub sure: Sure,
    /// The threads involved with their stacks, the one first named in front.
    #[serde(rename = "stacks")]
    pub threads: Vec<Involved>,
    /// The waits of a ring, in order; empty if there is none.
    pub cycle: Vec<Edge>,
    /// What the program's own runtime says, in lines: goroutines by what they wait for, deadlocks
    /// and threads of a JVM, pools that cannot run a task.
    pub runtime: Vec<String>,
}

/// The two times of a hang, taken at one moment: that of the finished report.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// As [`Hang::since`].
    pub since: Duration,
    /// As [`Hang::latency`].
    pub latency: Duration,
}

impl Times {
    /// Of a thread that last got on at `began`; by what it had done at `known` it could be known to
    /// hang.
    pub fn of(began: Instant, known: Instant) -> Times {
        let now = Instant::now();
        let since = now.saturating_duration_since(began);
        Times { since, latency: now.saturating_duration_since(known).min(since) }
    }
}

/// A thread that is part of a hang.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Involved {
    /// Process.
    pub pid: i32,
    /// Thread.
    pub tid: i32,
    /// Its name.
    pub comm: String,
    /// The name that Python has for it, where there is a Python whose objects can be read.
    pub python_name: Option<String>,
    /// What it does or waits for, in words.
    pub does: String,
    /// Native frames, innermost first.
    #[serde(rename = "frames")]
    pub stack: Vec<Frame>,
    /// Python's own frames, innermost first, where there is a Python.
    pub python: Vec<PyFrame>,
    /// Why the stack is not whole, if so.
    pub note: Option<String>,
}

/// One wait in a ring.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Edge {
    /// Process.
    pub pid: i32,
    /// Thread that waits.
    pub tid: i32,
    /// For what, in words: `mutex 0x55d0c0de`.
    pub waits_for: String,
    /// Thread that holds it.
    pub held_by: i32,
    /// How sure that is.
    pub sure: Sure,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_known_before_it_began() {
        let now = Instant::now();
        let (ago, sooner) = (now - Duration::from_secs(2), now - Duration::from_secs(5));
        let t = Times::of(sooner, ago);
        assert!(
            t.since >= Duration::from_secs(5) && t.latency < t.since && t.latency >= Duration::from_secs(2),
            "{t:?}"
        );
        let t = Times::of(ago, sooner);
        assert_eq!(t.latency, t.since, "{t:?}");
    }
}
