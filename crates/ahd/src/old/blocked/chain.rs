//! From a thread that waits for a lock, over its holder and whomever that one waits for, to the last: who holds them all up.
//!
//! Owns: the way along the holders, and when one is excused. Promises: a ring is found whatever it goes through; a chain is as sure as its least sure
//! wait. Refuses: to tell of a last holder that the machine, a tracer or a stop holds up, or that has not had its share of CPU, and of locks that go from hand to hand.

use super::{SETTLES, Verdict};
use crate::Ahd;
use crate::event::Edge;
use crate::old::describe::words;
use crate::old::holders::Lock;
use crate::old::learn::takes_work;
use crate::old::proc;
use crate::old::sections::HeldUp;
use orbit_inspect::Sure;
use orbit_inspect::waits::{FutexKind, Owner, Wait};
use std::time::Instant;

/// Threads followed from a waiter to the last holder.
const MAX_CHAIN: usize = 64;
/// In the place of a holder that is not to be seen.
const UNKNOWN: (i32, i32) = (0, 0);

/// Which chains of holders are told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// Those that come back to where they began.
    Rings,
    /// Also those that lasted for the limit, unless the last holder waits for work, as it may do for as long as there is none, and the thread
    /// that waits for it has no main loop from which it is away.
    AtTheLimit,
    /// Also that: a section is not to be entered for so long.
    InSection,
}

impl Ahd {
    /// From a waiter over the holders to the last one: a hang unless that one is held up by the machine, or waits for
    /// work. `sure`: of the first wait.
    pub(super) fn chain(
        &mut self,
        pid: i32,
        tid: i32,
        wait: &Wait,
        owner: (i32, i32),
        sure: Sure,
        told: Told,
    ) -> Option<Verdict> {
        let (op, ot) = owner;
        let mut why = format!("thread {tid} {}", words(wait));
        let mut others: Vec<(i32, i32)> = Vec::new();
        let (mut hp, mut ht) = (op, ot);
        let edge = |pid: i32, tid: i32, wait: &Wait, held_by: i32, sure: Sure| Edge {
            pid,
            tid,
            waits_for: words(wait),
            held_by,
            sure,
        };
        let mut cycle = vec![edge(pid, tid, wait, ot, sure)];
        // A chain is as sure as the least sure wait along it. One with a time limit ends by itself: no ring goes through it, and it is the
        // last that counts.
        let mut least = if timed(wait) { sure.min(Sure::Likely) } else { sure };
        // A lock on a file is a process': which of its threads would give it back is known only where there is one.
        let alone = |pid: i32| proc::Dir::open(pid).and_then(|d| d.tids()).is_ok_and(|t| t.len() == 1);
        let mut shared: Vec<i32> =
            if matches!(wait, Wait::FileLock { .. }) && !alone(op) { vec![op] } else { Vec::new() };
        let mut moves = self.changed_hands(pid, tid, wait);
        // Who waits for the last holder.
        let mut behind = (pid, tid);
        let last = loop {
            if (hp, ht) == (pid, tid) && shared.is_empty() && !timed(wait) {
                let allowed = self.config.hopeless();
                why = in_a_ring(cycle.len(), tid, &why);
                return Some(Verdict { why, of: tid, sure: least, others, cycle, allowed, joint: true });
            }
            if (hp, ht) == (pid, tid) || others.contains(&(hp, ht)) || others.len() >= MAX_CHAIN {
                break None;
            }
            others.push((hp, ht));
            let Some(held) = self.wait_of(hp, ht) else {
                break None;
            };
            moves |= self.changed_hands(hp, ht, &held);
            why += &format!("; thread {ht} {}", words(&held));
            let sure = certainty(&held);
            least = least.min(sure);
            match &held {
                held if timed(held) => break Some(held.clone()),
                Wait::Futex(f) => match f.kind {
                    FutexKind::Mutex { owner: Owner::Thread { pid: p, tid: t } }
                    | FutexKind::RwLock { writer: Owner::Thread { pid: p, tid: t } } => {
                        cycle.push(edge(hp, ht, &held, t, sure));
                        behind = (hp, ht);
                        (hp, ht) = (p, t);
                    }
                    _ => break Some(held),
                },
                Wait::FileLock { owner: Some(o), .. } => {
                    cycle.push(edge(hp, ht, &held, *o, sure));
                    if !alone(*o) {
                        shared.push(*o);
                    }
                    behind = (hp, ht);
                    (hp, ht) = (*o, *o);
                }
                _ => break Some(held),
            }
        };
        if told == Told::Rings || told == Told::AtTheLimit && moves && last != Some(Wait::Ended) {
            return None;
        }
        let for_work = last.as_ref().is_some_and(waits_for_work) || self.serves(hp, ht);
        if told == Told::AtTheLimit && for_work && !self.is_away(pid, tid) {
            return None;
        }
        // Any thread of theirs may be who has the lock.
        if told == Told::AtTheLimit && shared.iter().any(|&holder| self.gets_on(&[holder])) {
            return None;
        }
        // One that lives may give it back yet.
        let sure = if last == Some(Wait::Ended) && shared.is_empty() { least } else { least.min(Sure::Likely) };
        let excused = match last {
            Some(Wait::Stopped | Wait::Traced { .. } | Wait::Disk { .. } | Wait::Fault { .. } | Wait::Hidden(_)) => {
                true
            }
            // It runs: a hang only once it had the limit's worth of CPU meanwhile.
            Some(Wait::Running) => !self.had_its_share(behind, (hp, ht)),
            // How long a job takes that another process was made for is not for this one to know.
            Some(Wait::Child { pids }) if told == Told::AtTheLimit => self.gets_on(&pids),
            Some(Wait::Child { pids: peers } | Wait::Pipe { peers, .. } | Wait::Socket { peers, .. }) => {
                self.at_work((hp, ht), &peers)
            }
            _ => false,
        };
        let allowed = self.config.limit;
        (!excused).then_some(Verdict { why, of: tid, sure, others, cycle: Vec::new(), allowed, joint: false })
    }

    /// Notes who holds the lock that a thread of a watched process waits for; whether it was seen to change hands in that wait, and not for the limit since.
    pub(super) fn changed_hands(&mut self, pid: i32, tid: i32, wait: &Wait) -> bool {
        let (lock, holder) = match wait {
            Wait::Futex(f) => match f.kind {
                FutexKind::Mutex { owner: Owner::Thread { pid, tid } }
                | FutexKind::RwLock { writer: Owner::Thread { pid, tid } } => (Lock::Word(f.call.addr), (pid, tid)),
                _ => return false,
            },
            Wait::FileLock { owner, path } => (Lock::File(path.clone()), owner.map_or(UNKNOWN, |o| (o, o))),
            _ => return false,
        };
        let limit = self.config.limit;
        let Some(p) = self.processes.get_mut(&pid) else { return false };
        let Some(still) = p.threads.get(&tid).map(|t| t.still) else { return false };
        p.holders.held(lock, holder, still, Instant::now()) < still.min(limit)
    }

    /// Whether it was not to be seen either, in looks so far before this one, who holds the lock that a thread waits for.
    pub(super) fn stays_unknown(&mut self, pid: i32, tid: i32, path: &str) -> bool {
        let (lock, now) = (Lock::File(path.to_owned()), Instant::now());
        let Some((p, limit)) = self.processes.get_mut(&pid).map(|p| (p, self.config.limit)) else { return false };
        let Some(t) = p.threads.get_mut(&tid) else { return false };
        if p.holders.held(lock.clone(), UNKNOWN, t.still, now) < t.still.min(limit) {
            return false;
        }
        let settled = p.holders.seen(&lock, now) >= SETTLES;
        if !settled {
            t.judge_soon = Some(t.still + SETTLES);
        }
        settled
    }

    /// Whether this thread has a main loop and waits where it hardly ever does: it is held up, whatever the lock is usually held for.
    fn is_away(&self, pid: i32, tid: i32) -> bool {
        let call = self.processes.get(&pid).and_then(|p| p.dir.call(tid).ok().flatten());
        call.is_some_and(|call| self.thread(pid, tid).is_some_and(|t| t.points.away(&call)))
    }

    /// Whether this thread takes its work by a loop, and has run within the limit: then it may hold a lock for as long as it
    /// lives. If it does not get back to its loop it is a hang of its own.
    fn serves(&self, pid: i32, tid: i32) -> bool {
        self.thread(pid, tid)
            .is_some_and(|t| t.still < self.config.limit && t.points.events().is_some_and(|(nr, _)| takes_work(nr)))
    }

    /// Whether one of these processes works, or is held up by the machine, a tracer or a stop, while this thread waits for them.
    pub(crate) fn at_work(&mut self, waiter: (i32, i32), peers: &[i32]) -> bool {
        peers.iter().filter(|&&peer| peer != waiter.0).any(|&peer| {
            let Ok((dir, tids)) = proc::Dir::open(peer).and_then(|d| d.tids().map(|t| (d, t))) else {
                return false;
            };
            tids.iter().take(MAX_CHAIN).any(|&t| match dir.status(t).map(|s| s.state) {
                Some(b'D' | b'T' | b't') => true,
                Some(b'R') => !self.had_its_share(waiter, (peer, t)),
                _ => false,
            })
        })
    }

    /// The same for a section, which is not to wait for so long whoever holds the lock. `does`: what all the others do.
    pub(crate) fn held_by(
        &mut self,
        (pid, tid): (i32, i32),
        wait: &Wait,
        owner: (i32, i32),
        sure: Sure,
        does: &str,
    ) -> Option<HeldUp> {
        let Verdict { why, sure, others, cycle, .. } = self.chain(pid, tid, wait, owner, sure, Told::InSection)?;
        let others = others.into_iter().map(|(p, t)| (p, t, does.to_owned())).collect();
        Some(HeldUp { why, sure, others, cycle })
    }

    /// Whether a holder has used CPU time as long as the limit since it was first asked about in this wait for it.
    fn had_its_share(&mut self, waiter: (i32, i32), holder: (i32, i32)) -> bool {
        let sched = |(pid, tid): (i32, i32)| {
            let file = std::fs::File::open(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
            Some((tid, proc::sched(&file)?))
        };
        let (Some(waiter), Some(holder)) = (sched(waiter), sched(holder)) else {
            return false;
        };
        self.shares.got(waiter, holder) >= self.config.limit.as_nanos() as u64
    }
}

/// The sentence of a ring.
pub(super) fn in_a_ring(members: usize, first: i32, waits: &dyn std::fmt::Display) -> String {
    match members {
        1 => format!("thread {first} waits for itself: {waits}"),
        n => format!("{n} threads wait for each other in a ring: {waits}"),
    }
}

/// Whether a wait for a lock ends by itself.
pub(super) fn timed(wait: &Wait) -> bool {
    matches!(wait, Wait::Futex(f) if f.call.timed)
}

/// How sure it is who holds up a thread in this wait.
fn certainty(wait: &Wait) -> Sure {
    match wait {
        Wait::Futex(f) => match f.kind {
            FutexKind::Mutex { owner: Owner::Unknown } | FutexKind::RwLock { writer: Owner::Unknown } => {
                f.sure.min(Sure::Likely)
            }
            _ => f.sure,
        },
        Wait::FileLock { owner: None, .. } => Sure::Likely,
        _ => Sure::Certain,
    }
}

/// Whether work is waited for: connections, events or signals, which may stay away for any time. A poll of nothing with a time limit is a
/// sleep.
pub(super) fn waits_for_work(wait: &Wait) -> bool {
    match wait {
        Wait::Epoll { .. } | Wait::Signal => true,
        Wait::Poll { fds, timed } => *fds > 0 || !timed,
        Wait::Socket { call, .. } => matches!(*call, "accept" | "accept4"),
        Wait::Other(call) => takes_work(call.nr),
        _ => false,
    }
}
