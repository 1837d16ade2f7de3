//! Whether somebody gets on, or will by itself, among those on whom a wait may depend: the processes of a family, or the other threads of a process.

use super::chain::{timed, waits_for_work};
use crate::Ahd;
use crate::old::proc::Dir;
use orbit_inspect::waits::Wait;
use std::time::Duration;

/// Threads of a family looked at; a larger one is said to get on.
const MOST: usize = 256;
/// The thread by which jemalloc gives memory back, after seconds of sleep: it wakes nobody.
const ALLOCATOR: &str = "jemalloc_bg_thd";
/// Two threads that come to rest within this time do so at the same moment, as far as looks show.
const TOGETHER: Duration = Duration::from_secs(1);

impl Ahd {
    /// Whether one of these processes, or of those that they made, gets on: it has run within the limit, the machine, a tracer or a stop holds it up,
    /// or its wait ends by itself or is one for work.
    pub(super) fn gets_on(&mut self, pids: &[i32]) -> bool {
        let (mut family, mut threads) = (pids.to_vec(), 0);
        let mut at = 0;
        while let Some(&pid) = family.get(at) {
            at += 1;
            // One that has ended does nothing.
            let Ok((dir, tids)) = Dir::open(pid).and_then(|d| d.tids().map(|t| (d, t))) else { continue };
            for tid in tids {
                threads += 1;
                if threads > MOST || self.thread_gets_on(pid, tid, &dir) {
                    return true;
                }
                let made = dir.text(format_args!("task/{tid}/children")).unwrap_or_default();
                family.extend(made.split_ascii_whitespace().filter_map(|child| child.parse::<i32>().ok()));
            }
        }
        false
    }

    fn thread_gets_on(&mut self, pid: i32, tid: i32, dir: &Dir) -> bool {
        match dir.status(tid).map(|s| s.state) {
            Some(b'S') => {}
            Some(b'Z' | b'X') | None => return false,
            Some(_) => return true,
        }
        if self.thread(pid, tid).is_some_and(|t| t.still < self.config.limit) {
            return true;
        }
        self.wait_of(pid, tid).is_some_and(|wait| match wait {
            Wait::Running
            | Wait::Stopped
            | Wait::Traced { .. }
            | Wait::Disk { .. }
            | Wait::Fault { .. }
            | Wait::Hidden(_) => true,
            wait => ends_by_itself(&wait) || waits_for_work(&wait),
        })
    }

    /// Whether another thread of the process sleeps for a limited time, and has since this one came to rest: it may be who is to wake it.
    pub(super) fn another_will_wake(&mut self, pid: i32, tid: i32) -> bool {
        let Some(p) = self.processes.get(&pid) else { return false };
        let Some(still) = p.threads.get(&tid).map(|t| t.still) else { return false };
        let rests = p.threads.values().filter(|t| t.tid != tid && t.still + TOGETHER >= still).take(MOST);
        let wakes = |t: &i32| p.dir.text(format_args!("task/{t}/comm")).is_ok_and(|comm| comm.trim_end() != ALLOCATOR);
        let rests: Vec<i32> = rests.map(|t| t.tid).filter(wakes).collect();
        rests.into_iter().any(|t| self.wait_of(pid, t).is_some_and(|wait| ends_by_itself(&wait)))
    }
}

/// Whether time ends a wait.
fn ends_by_itself(wait: &Wait) -> bool {
    matches!(wait, Wait::Sleep | Wait::Poll { timed: true, .. } | Wait::Epoll { timed: true, .. }) || timed(wait)
}
