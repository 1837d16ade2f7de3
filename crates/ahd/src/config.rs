//! What a watcher may be told.

use crate::Named;
use std::path::PathBuf;
use std::time::Duration;

/// How hangs are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Suspects are examined: stopped, followed, looked into.
    #[default]
    Examine,
    /// Facts read from outside are judged by rules; no thread is stopped to decide.
    Judge,
}

/// Settings of a watcher. [`Config::default`] is right for servers and interactive programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Time between two looks, 10 ms to 1 s.
    pub period: Duration,
    /// Least check value of a thread that waits for events: CPU time it may use without a wait, 50 ms to 1 h.
    pub floor: Duration,
    /// The same for a thread that waits for other threads (workers), whose jobs vary more.
    pub pool_floor: Duration,
    /// The check value is this times the largest mean of an exit's window, 1 to 1000.
    pub factor: f64,
    /// Executions remembered of each exit, 1 to 1000.
    pub window: usize,
    /// How long a thread may wait for a lock, or inside a section, without anybody getting on; 100 ms to 1 h.
    pub limit: Duration,
    /// Watch the processes that watched processes make.
    pub children: bool,
    /// Look for busy hangs.
    pub busy: bool,
    /// CPU time that a thread without a main loop may use without one wait before it is looked at for a loop, 500 ms to 24 h.
    /// `None`: never, for a program that computes may look just so.
    pub busy_limit: Option<Duration>,
    /// Look for blocked hangs.
    pub blocked: bool,
    /// Sections by name: functions of programs that were not changed for it.
    pub sections: Vec<Named>,
    /// What probes of all of them together may cost a process, in percent of the CPU time it uses; 0: no bound.
    pub section_cost: f64,
    /// How hangs outside of sections are found.
    pub method: Method,
    /// With [`Method::Judge`]: a file that all facts are written to, to be judged again by [`crate::replay`].
    pub record: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            period: Duration::from_millis(75),
            floor: Duration::from_millis(120),
            pool_floor: Duration::from_millis(400),
            factor: 4.0,
            window: 50,
            limit: Duration::from_secs(5),
            children: true,
            busy: true,
            busy_limit: None,
            blocked: true,
            sections: Vec::new(),
            section_cost: 2.0,
            method: Method::default(),
            record: None,
        }
    }
}

impl Config {
    /// Waits that nobody can ever end are told after this time: the limit, at most a second.
    pub(crate) fn hopeless(&self) -> Duration {
        self.limit.min(Duration::from_secs(1))
    }
}
