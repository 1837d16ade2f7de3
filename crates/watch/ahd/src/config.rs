//! Settings of a watcher.

use crate::limits::Limits;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a watcher. [`Config::default`] is right for servers, interactive and batch programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How long a thread may be away from its loop, a request wait for its answer, a lock be waited
    /// for, or a thread wait inside a section; 100 ms to 1 h.
    pub limit: Duration,
    /// Check values of sections are this times the largest mean of an exit's last 50 executions, 1
    /// to 1000,
    pub factor: f64,
    /// and so much CPU time at least, 50 ms to 1 h.
    pub floor: Duration,
    /// Watch the processes that watched processes make.
    pub children: bool,
    /// Report busy hangs.
    pub busy: bool,
    /// Report blocked hangs.
    pub blocked: bool,
    /// A file that all facts are written to, to be judged again by [`crate::replay`].
    pub record: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Config {
        let limits = Limits::default();
        Config {
            limit: Duration::from_secs_f64(limits.limit),
            factor: limits.factor,
            floor: Duration::from_nanos(limits.floor),
            children: true,
            busy: true,
            blocked: true,
            record: None,
        }
    }
}

impl Config {
    /// What the rules allow by these settings.
    pub fn limits(&self) -> Limits {
        let floor = u64::try_from(self.floor.as_nanos()).unwrap_or(u64::MAX);
        Limits { factor: self.factor, floor, ..Limits::with_limit(self.limit.as_secs_f64()) }
    }
}
