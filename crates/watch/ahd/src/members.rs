//! Which processes are watched.
//!
//! Owns: [`Members`]: processes that were named, and those that these make. Promises: one that
//! ended is reported once; nothing is written to a process. Refuses: to judge.

use crate::event::Event;
use orbit_linux::procfs;
use std::collections::BTreeMap;
use std::io;

/// Scans between two searches for children.
const CHILDREN_EVERY: u64 = 3;
/// Threads of a process, beside its first one, that are asked for children in one search; each in
/// its turn.
const PARENTS: usize = 8;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// With the thread that was asked for children last.
    processes: BTreeMap<i32, i32>,
    scans: u64,
    pub(crate) events: Vec<Event>,
}

impl Members {
    /// Watches a process from now on; `false` if it is watched already.
    pub(crate) fn add(&mut self, pid: i32) -> io::Result<bool> {
        if self.processes.contains_key(&pid) {
            return Ok(false);
        }
        let comm = procfs::text(format!("/proc/{pid}/comm"))?;
        // One that has ended and was not waited for has no memory: there is nothing to watch.
        let stat = procfs::text(format!("/proc/{pid}/stat"))?;
        if stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])) && threads(pid).len() < 2 {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        self.processes.insert(pid, 0);
        self.events.push(Event::Joined { pid, comm: comm.trim_end().to_owned() });
        Ok(true)
    }

    /// Watches a process no more; `false` if it was not watched.
    pub(crate) fn remove(&mut self, pid: i32) -> bool {
        self.processes.remove(&pid).is_some()
    }

    /// A process has ended.
    pub(crate) fn ended(&mut self, pid: i32) {
        if self.remove(pid) {
            self.events.push(Event::Left { pid });
        }
    }

    /// The watched processes, sorted.
    pub(crate) fn pids(&self) -> Vec<i32> {
        self.processes.keys().copied().collect()
    }

    /// Watches the children of watched processes too; searches in some scans only.
    pub(crate) fn adopt(&mut self) {
        self.scans += 1;
        if self.scans % CHILDREN_EVERY != 1 {
            return;
        }
        let mut found = Vec::new();
        for (&pid, last) in &mut self.processes {
            let tids = threads(pid);
            let from = tids.partition_point(|tid| tid <= last);
            let turn: Vec<i32> = tids[from..].iter().chain(&tids[..from]).copied().take(PARENTS).collect();
            *last = turn.last().copied().unwrap_or(0);
            for tid in std::iter::once(pid).chain(turn.into_iter().filter(|tid| *tid != pid)) {
                let text = procfs::text(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
                found.extend(text.split_whitespace().filter_map(|child| child.parse::<i32>().ok()));
            }
        }
        for pid in found {
            // A child may have ended by now.
            let _ = self.add(pid);
        }
    }
}

/// Its threads, sorted.
fn threads(pid: i32) -> Vec<i32> {
    let mut tids = procfs::ids(format!("/proc/{pid}/task"));
    tids.sort_unstable();
    tids
}
