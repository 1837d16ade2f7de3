//! What is told of a blocked hang, once it is one: its threads, their stacks, its times.
//!
//! Owns: that each of its threads is told once. Promises: stacks are taken of many at a time, after all that was to be known of the waits; the
//! threads run for that moment, and it does not count as getting on.

use super::Verdict;
use crate::Ahd;
use crate::event::{Event, Hang, Kind};
use crate::old::describe::words;
use std::time::{Duration, Instant};

/// Hangs whose stacks are taken together, which costs little more than those of one.
pub(crate) const TOLD_TOGETHER: usize = 128;
/// Threads whose stacks go into a report.
const MAX_STACKS: usize = 32;

/// A blocked hang that is to be told: all but its stacks and its times, which are taken when it leaves.
pub(crate) struct Case {
    pub(crate) hang: Hang,
    /// The threads whose stacks are told, with what they do.
    pub(crate) who: Vec<(i32, i32, String)>,
    /// When the last of them came to rest.
    pub(crate) rest: Instant,
}

impl Ahd {
    /// Notes the call that a thread is told to be blocked in: as long as it sleeps there it has not got on.
    pub(crate) fn remember_call(&mut self, pid: i32, tid: i32) {
        if let Some(p) = self.processes.get_mut(&pid)
            && let Some(t) = p.threads.get_mut(&tid)
        {
            t.told_in = p.dir.call(tid).unwrap_or_default();
            t.stirred = false;
        }
    }

    /// Notes that a thread of a ring that was told has ended.
    pub(crate) fn left_ring(&mut self, pid: i32) {
        let threads = self.processes.get(&pid).into_iter().flat_map(|p| p.threads.values());
        self.broken.extend(threads.filter(|t| t.in_ring).filter_map(|t| t.involved));
    }

    /// Lets those go who are left of such rings: from now on each waits for something else, which is judged as any wait.
    pub(crate) fn break_rings(&mut self, now: Instant) {
        let broken = std::mem::take(&mut self.broken);
        if broken.is_empty() {
            return;
        }
        let threads = self.processes.values_mut().flat_map(|p| p.threads.values_mut());
        for t in threads.filter(|t| t.in_ring && t.involved.is_some_and(|by| broken.contains(&by))) {
            (t.told, t.involved, t.in_ring) = (None, None, false);
            (t.still, t.rest, t.judge) = (Duration::ZERO, now, Duration::ZERO);
        }
        self.ring_due = true;
    }

    /// A hang from now on; tells nothing yet.
    pub(super) fn case(&mut self, pid: i32, v: Verdict) -> Case {
        let (tid, now) = (v.of, Instant::now());
        let mut who = vec![(pid, tid)];
        who.extend(v.others);
        let together = if v.joint { &who[..] } else { &who[..1] };
        let rest = together.iter().filter_map(|&(p, t)| Some(self.thread(p, t)?.rest)).max().unwrap_or(now);
        // Before stacks are taken: that makes them run.
        for &(p, t) in &who {
            self.remember_call(p, t);
            if let Some(t) = self.thread_mut(p, t) {
                t.involved = Some(tid);
            }
        }
        let members = v.cycle.iter().map(|e| (e.pid, e.tid));
        for (p, t) in members.chain([(pid, tid)]) {
            if let Some(t) = self.thread_mut(p, t) {
                t.told = Some((Kind::Blocked, now));
                t.in_ring = !v.cycle.is_empty();
            }
        }
        who.truncate(MAX_STACKS);
        let who = who
            .into_iter()
            .map(|(p, t)| (p, t, self.wait_of(p, t).as_ref().map_or_else(|| "has ended".into(), words)))
            .collect();
        Case { hang: Hang::blocked((pid, tid), v.allowed, v.why, v.sure, v.cycle), who, rest }
    }

    /// Takes the stacks of all and tells one after the other.
    pub(crate) fn tell_all(&mut self, mut cases: Vec<Case>, hand: &mut dyn FnMut(Event)) {
        let counts: Vec<usize> = cases.iter().map(|c| c.who.len()).collect();
        let who: Vec<_> = cases.iter_mut().flat_map(|c| std::mem::take(&mut c.who)).collect();
        self.will_stop(&who);
        let mut threads = self.stacks.involve(who, false).into_iter();
        for (Case { mut hang, rest, .. }, count) in cases.into_iter().zip(counts) {
            hang.threads = threads.by_ref().take(count).collect();
            hang.waited(rest);
            self.report(hang);
            self.hand_over(hand);
        }
    }
}
