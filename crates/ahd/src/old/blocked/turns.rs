//! Whose wait is judged when, and what that may cost.
//!
//! Owns: the order in which waits that are due are judged, the call each thread sleeps in, who holds what. Promises: waits that are no hang cost
//! a small part of the time, however many there are and whatever one costs; what one needs of all threads or all processes is read
//! again only as often as its price allows. A hang is told by what was read in the look that tells it.

use super::Verdict;
use crate::Ahd;
use crate::event::{Event, Kind};
use crate::old::proc::{self, Call, Dir};
use crate::old::queues::Waiter;
use crate::old::standstill::waits_for_process;
use crate::old::thread::{Process, Thread};
use crate::old::watch::cpu_time;
use orbit_inspect::waits::{Ends, FutexWait};
use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// A wait that was excused is judged again after this time.
const AGAIN: Duration = Duration::from_secs(1);
/// Waits that are no hang judged in one tick at most; fewer if that takes more than this part of the time.
const JUDGED_A_TICK: usize = 16;
const JUDGE_SHARE: u32 = 200;
/// Of the limit: no wait is kept waiting for longer because others were dear.
const KEPT_WAITING: u32 = 20;
/// What is read of all threads, or of all processes, is read again after so many times what that took,
const READ_SHARE: u32 = 100;
/// and after this time at the latest.
const READ_SLOWEST: Duration = Duration::from_secs(10);
/// Hangs told together: few, for those that were judged first must still be there.
const TOGETHER: usize = 16;

impl Ahd {
    /// Judges the waits of threads that have been still for long enough: in turns one that came to rest last and one that rests
    /// longest. `passed`: time since the last look.
    pub(crate) fn judge_waits(&mut self, passed: Duration, hand: &mut dyn FnMut(Event)) {
        let slices = |tid: i32| match self.processes.values().find_map(|p| p.threads.get(&tid)) {
            Some(t) => Some(t.sched.slices),
            None => proc::sched(&std::fs::File::open(format!("/proc/{tid}/schedstat")).ok()?).map(|s| s.slices),
        };
        self.shares.keep_up(slices);
        let mut due = self.due_waits();
        let start = Instant::now();
        if due.is_empty() || start < self.judge_from {
            return;
        }
        let kept = self.kept_ends.take().filter(|(read, ends)| start < *read + price_of(ends.price()));
        let (mut read, ends) = kept.unwrap_or_else(|| (start, Ends::default()));
        self.ends = Some(ends);
        let mut cases = Vec::new();
        let (mut judged, mut in_vain, mut vain) = (0, 0, Duration::ZERO);
        while let Some((pid, tid, still)) = if judged % 2 == 0 { due.pop_front() } else { due.pop_back() } {
            let enough = in_vain >= JUDGED_A_TICK || judged > 1 && vain > passed / JUDGE_SHARE;
            if enough || judged > 0 && self.spent() {
                break;
            }
            judged += 1;
            let (tid, still) = self.survivor(pid, tid).unwrap_or((tid, still));
            // It may have been told just now, with another.
            if self.thread(pid, tid).is_none_or(|t| t.told.is_some() || t.involved.is_some()) {
                continue;
            }
            let cpu = cpu_time();
            let mut verdict = self.judge(pid, tid, still);
            if verdict.is_some() && read < start && self.ends.as_ref().is_some_and(|e| !e.price().is_zero()) {
                // By what may have changed since.
                (read, self.ends) = (Instant::now(), Some(Ends::default()));
                verdict = self.judge(pid, tid, still);
            }
            if let Some(v) = verdict {
                cases.push(self.case(pid, v));
                if cases.len() == TOGETHER {
                    self.tell_all(std::mem::take(&mut cases), hand);
                }
                continue;
            }
            in_vain += 1;
            vain += cpu_time().saturating_sub(cpu);
            let limit = self.config.limit;
            if let Some(t) = self.thread_mut(pid, tid) {
                t.judge = t.judge_soon.take().unwrap_or(again(still, limit));
            }
        }
        self.tell_all(cases, hand);
        self.kept_ends = self.ends.take().map(|ends| (read, ends));
        self.judge_from = start + (vain * JUDGE_SHARE).min(self.config.limit / KEPT_WAITING);
    }

    /// Waits whose turn it is, the shortest first. Those that are no hang by the call alone, as far as that is known, are passed over.
    fn due_waits(&mut self) -> VecDeque<(i32, i32, Duration)> {
        let (hopeless, limit) = (self.config.hopeless(), self.config.limit);
        let mut due = Vec::new();
        let told = self.told_blocked();
        for p in self.processes.values_mut() {
            let fewer = p.threads.len() < std::mem::replace(&mut p.had, p.threads.len());
            // Whoever has ended may have been the last one to wake the others.
            if fewer && let Some(t) = p.threads.values_mut().filter(|t| t.told.is_none()).min_by_key(|t| t.still) {
                t.judge = t.judge.min(t.still + hopeless);
            }
            let single = p.threads.len() == 1;
            let all_rest = p.threads.values().all(|t| t.still >= hopeless);
            for t in p.threads.values_mut() {
                t.involved = t.involved.filter(|by| told.contains(by));
                if t.told.is_some() || t.involved.is_some() || t.still < hopeless || t.still < t.judge {
                    continue;
                }
                // Where all wait for each other it is no matter that each usually does.
                let for_all = |call: &Call| all_rest && call.nr == libc::SYS_futex && call.args[3] == 0;
                let wont = |c: &Call| t.points.usual(c) && !(single && may_be_of_pipe(c.nr)) && !for_all(c);
                let no_hang = |call: Call| (wont(&call) || !may_hang(call.nr)) && !waits_for_process(call.nr);
                if t.known_call().flatten().is_some_and(no_hang) {
                    t.judge = again(t.still, limit);
                } else {
                    due.push((p.pid, t.tid, t.still));
                }
            }
        }
        due.sort_by_key(|&(.., still)| still);
        due.into()
    }

    fn judge(&mut self, pid: i32, tid: i32, still: Duration) -> Option<Verdict> {
        let late = still >= self.config.limit;
        // It may have got on since the look began, or whoever it waited for while that one was looked for: then it only lacks a CPU by now.
        let verdict = self.verdict(pid, tid, late).filter(|_| self.rests(pid, tid).is_some());
        // Whoever waits for a thread of a hang that was told waits in the same hang.
        let of_told = |&(p, t): &(i32, i32)| self.thread(p, t).is_some_and(|t| t.in_ring || t.involved.is_some());
        verdict.filter(|v| !v.cycle.is_empty() || !v.others.iter().any(of_told))
    }

    /// The verdict that nobody is left to wake any thread of the process, if that is so. Where somebody is plain to see who may do so, or was not
    /// long ago, no thread is asked.
    pub(super) fn all_wait(&mut self, pid: i32, tid: i32) -> Option<Verdict> {
        let hopeless = self.config.hopeless();
        let p = self.processes.get_mut(&pid)?;
        let dir = &p.dir;
        let may_wake = |t: &mut Thread| {
            t.still < hopeless || t.in_ring || t.asleep_in(dir).is_some_and(|call| !may_be_for_others(&call, dir))
        };
        // As long as it stays where it is nobody else need be asked.
        if p.waker.and_then(|tid| p.threads.get_mut(&tid)).is_some_and(may_wake) {
            return None;
        }
        p.waker = p.threads.values_mut().find_map(|t| may_wake(t).then_some(t.tid));
        let start = Instant::now();
        if p.waker.is_some() || start < p.ask_all_from {
            return None;
        }
        let verdict = self.each_waits(pid, tid);
        if let (None, Some(p)) = (&verdict, self.processes.get_mut(&pid)) {
            p.ask_all_from = Instant::now() + price_of(start.elapsed());
        }
        verdict
    }

    /// Threads that were told to be blocked and still are.
    fn told_blocked(&self) -> BTreeSet<i32> {
        let threads = self.processes.values().flat_map(|p| p.threads.values());
        threads.filter(|t| matches!(t.told, Some((Kind::Blocked, _)))).map(|t| t.tid).collect()
    }
}

impl Process {
    /// Threads that sleep at this lock, sorted by id, with what they had run by this look: as long as each of them is there unchanged,
    /// nobody was woken there.
    pub(super) fn asleep_at(&mut self, wait: &FutexWait) -> Vec<Waiter> {
        let dir = &self.dir;
        let here = |call: &Call| call.nr == libc::SYS_futex && call.args[0].abs_diff(wait.call.addr) <= wait.span();
        let waiter = |t: &mut Thread| Some((t.tid, t.had(), t.asleep_in(dir).filter(here)?.args[0]));
        self.threads.values_mut().filter_map(waiter).collect()
    }
}

/// When a wait that is no hang is judged again: now and then up to the limit, and at the limit; then less and less often.
fn again(still: Duration, limit: Duration) -> Duration {
    if still < limit { limit.min(still * 2) } else { still + AGAIN.max(still / 4) }
}

/// Time until something is read again that took so long.
pub(crate) fn price_of(took: Duration) -> Duration {
    (took * READ_SHARE).min(READ_SLOWEST)
}

/// Whether a wait in this call may be told outside of sections: one for a futex, a pipe or a lock on a file.
fn may_hang(nr: i64) -> bool {
    may_be_of_pipe(nr) || matches!(nr, libc::SYS_futex | libc::SYS_flock | libc::SYS_fcntl)
}

/// Whether this call waits for a pipe if its first argument is one.
pub(super) fn may_be_of_pipe(nr: i64) -> bool {
    matches!(nr, libc::SYS_read | libc::SYS_readv | libc::SYS_write | libc::SYS_writev | libc::SYS_sendfile)
}

/// Whether the call waits for a socket or a child: that may last for any time, and to ask who holds the other side is dear. Only a set of
/// processes that stands still shows a hang there.
pub(super) fn for_a_process(call: &Call, dir: &Dir) -> bool {
    match may_be_of_pipe(call.nr) {
        true => dir.fd(call.args[0]).is_some_and(|link| link.starts_with("socket:")),
        false => waits_for_process(call.nr),
    }
}

/// Whether the call may be a wait, without a time limit, for another thread of the same process.
fn may_be_for_others(call: &Call, dir: &Dir) -> bool {
    match call.nr {
        libc::SYS_futex => call.args[3] == 0,
        nr => may_be_of_pipe(nr) && dir.fd(call.args[0]).is_none_or(|link| link.starts_with("pipe:")),
    }
}
