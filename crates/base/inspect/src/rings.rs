//! Rings of threads that wait for each other: deadlocks.
//!
//! Owns: finding rings among mutexes, rwlocks and joins, of one process or several that share
//! locks. Promises: a ring is reported only if it stood still. Refuses: locks that keep no holder
//! (Rust's, Go's, Python's, readers of an rwlock), and waits with a time limit, which end by
//! themselves.
//!
//! Why two samples: reading one thread after the other is no picture of one moment, so a busy,
//! healthy program seems to have a ring in about one scan of a hundred. Therefore the members' CPU
//! time and switches are read, then every member's wait and every lock's holder again, then CPU
//! time and switches again. If the ring is the same and no member ran in between, then each member
//! was asleep on its lock during the whole second sample, and each holder, being asleep as well,
//! could not have released anything: the ring stood at one moment, and nobody in it can leave it. A
//! member that runs shows in the figures: CPU time is added when it leaves the CPU, which it must
//! do to be seen asleep, and switches are counted when it gets one.

use crate::waits::{FutexKind, FutexWait, Key, Owner, Waiting, Watched};
use crate::{Error, Sure};
use std::collections::{BTreeMap, BTreeSet};

/// A deadlock: each member waits for the next, the last one for the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// The threads, beginning with the lowest id. One member: the thread waits for itself.
    pub members: Vec<Member>,
    /// How sure the least sure of the members is.
    pub sure: Sure,
}

/// One thread in a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Process.
    pub pid: i32,
    /// Thread.
    pub tid: i32,
    /// Address of the lock in that process (of a mutex given up, of the word the thread is parked
    /// on).
    pub lock: u64,
    /// What names the lock for all processes that share it.
    pub key: Key,
    /// Kind of lock with its holder.
    pub kind: FutexKind,
    /// The thread that holds it (or is joined): the next member.
    pub waits_for: i32,
    /// How sure kind and holder are.
    pub sure: Sure,
}

impl std::fmt::Display for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, m) in self.members.iter().enumerate() {
            let sep = if i == 0 { "" } else { "; " };
            write!(f, "{sep}thread {} waits for ", m.tid)?;
            let what = match m.kind {
                FutexKind::Join(_) => {
                    write!(f, "the end of thread {}", m.waits_for)?;
                    continue;
                }
                FutexKind::RwLock { .. } => "rwlock",
                FutexKind::Mutex { .. } | FutexKind::GivenUp => "mutex",
                _ => "lock",
            };
            write!(f, "{what} {:#x}, held by thread {}", m.lock, m.waits_for)?;
        }
        write!(f, " ({})", self.sure)
    }
}

/// Searches a set of processes for rings again and again, with descriptors kept open. One thread at
/// a time.
#[derive(Debug)]
pub struct RingWatch {
    watched: Vec<Watched>,
    suspected: u64,
}

impl RingWatch {
    /// For these processes; one that is not there is left out. Fails if one of them cannot be
    /// inspected.
    pub fn new(pids: &[i32]) -> Result<RingWatch, Error> {
        let mut pids = pids.to_vec();
        pids.sort_unstable();
        pids.dedup();
        let (mut watched, mut threads) = (Vec::new(), 0);
        for pid in pids {
            match Watched::beside(pid, threads) {
                Err(Error::Gone { .. }) => {}
                of_one => {
                    let of_one = of_one?;
                    threads += of_one.tids().len();
                    watched.push(of_one);
                }
            }
        }
        Ok(RingWatch { watched, suspected: 0 })
    }

    /// Rings seen in a first sample since the start, whether or not the second one confirmed them.
    pub fn suspected(&self) -> u64 {
        self.suspected
    }

    /// All rings there are. Processes that have ended count no more. Costs about 4 us a thread; the
    /// processes are not stopped.
    pub fn scan(&mut self) -> Vec<Ring> {
        self.watched.retain_mut(Watched::keep_up);
        let first = rings(&self.edges(None));
        if first.is_empty() {
            return first;
        }
        self.suspected += first.len() as u64;
        let tids: BTreeSet<i32> = first.iter().flat_map(|r| r.members.iter().map(|m| m.tid)).collect();
        let before = self.progress(&tids);
        let second = rings(&self.edges(Some(&tids)));
        let after = self.progress(&tids);
        let still = |m: &Member| before.get(&m.tid).is_some_and(|p| p.is_some() && after.get(&m.tid) == Some(p));
        first.into_iter().filter(|r| second.contains(r) && r.members.iter().all(still)).collect()
    }

    fn progress(&mut self, tids: &BTreeSet<i32>) -> BTreeMap<i32, Option<(u64, u64)>> {
        let mut out = BTreeMap::new();
        for w in &mut self.watched {
            for tid in w.tids() {
                if tids.contains(&tid) {
                    out.insert(tid, w.progress(tid));
                }
            }
        }
        out
    }

    /// The waits of all threads, or of some.
    fn edges(&mut self, only: Option<&BTreeSet<i32>>) -> BTreeMap<i32, Member> {
        let mut out = BTreeMap::new();
        let (mut inheriting, mut given_up) = (BTreeSet::new(), Vec::new());
        for w in &mut self.watched {
            let pid = w.pid();
            let waits: Vec<(i32, Waiting)> = w.futex_calls(only).into_iter().filter(|(_, c)| !c.timed).collect();
            for (&(tid, _), f) in waits.iter().zip(w.futexes(&waits)) {
                if f.kind == FutexKind::GivenUp {
                    given_up.push((pid, tid, f));
                } else if let Some(m) = member(pid, tid, &f) {
                    out.insert(tid, m);
                    if f.call.pi() {
                        inheriting.insert(tid);
                    }
                }
            }
        }
        for (pid, tid, f) in given_up {
            close(&mut out, &inheriting, pid, tid, &f);
        }
        out
    }
}

/// The edge a futex wait makes, if its lock names a living holder.
fn member(pid: i32, tid: i32, f: &FutexWait) -> Option<Member> {
    let owner = match f.kind {
        FutexKind::Mutex { owner } | FutexKind::RwLock { writer: owner } | FutexKind::Join(owner) => owner,
        _ => return None,
    };
    let Owner::Thread { tid: waits_for, .. } = owner else {
        return None;
    };
    Some(Member { pid, tid, lock: f.lock, key: f.key, kind: f.kind, waits_for, sure: f.sure })
}

/// The edge of a thread whose wait the kernel rejected because it would have closed a ring: it
/// leads to one of the threads that wait for this thread, over however many others, for
/// priority-inheriting mutexes: the kernel knows no other holders. With one there is no choice; of
/// several the last of the chain is taken, and that is a guess at the members, not at whether
/// they are stuck. With none the holder has ended, or the thread wanted a mutex of its own.
fn close(edges: &mut BTreeMap<i32, Member>, inheriting: &BTreeSet<i32>, pid: i32, tid: i32, f: &FutexWait) {
    let mut chain = vec![tid];
    let waits_for = |m: &Member, last: Option<&i32>| inheriting.contains(&m.tid) && last == Some(&m.waits_for);
    while let Some(m) = edges.values().find(|m| waits_for(m, chain.last()) && !chain.contains(&m.tid)) {
        chain.push(m.tid);
    }
    if let [_, .., last] = chain[..] {
        let member = Member {
            pid,
            tid,
            lock: f.lock,
            key: f.key,
            kind: f.kind,
            waits_for: last,
            sure: if chain.len() == 2 { Sure::Likely } else { Sure::Guess },
        };
        edges.insert(tid, member);
    }
}

/// The rings in a graph where each thread waits for at most one other.
fn rings(edges: &BTreeMap<i32, Member>) -> Vec<Ring> {
    let mut done: BTreeSet<i32> = BTreeSet::new();
    let mut out = Vec::new();
    for &start in edges.keys() {
        let mut path: Vec<i32> = Vec::new();
        let mut at = start;
        while edges.contains_key(&at) && done.insert(at) {
            path.push(at);
            at = edges[&at].waits_for;
        }
        // The walk ended where it had been before: if that is on this walk, it is a ring.
        if let Some(i) = path.iter().position(|&t| t == at) {
            let mut ring: Vec<Member> = path[i..].iter().map(|t| edges[t].clone()).collect();
            let low = (0..ring.len()).min_by_key(|&i| ring[i].tid).unwrap_or(0);
            ring.rotate_left(low);
            let sure = ring.iter().map(|m| m.sure).min().unwrap_or(Sure::Guess);
            out.push(Ring { members: ring, sure });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(tid: i32, waits_for: i32) -> (i32, Member) {
        let owner = Owner::Thread { pid: 1, tid: waits_for };
        let lock = 8 * waits_for as u64;
        let m = Member {
            pid: 1,
            tid,
            lock,
            key: Key::Private { pid: 1, addr: lock },
            kind: FutexKind::Mutex { owner },
            waits_for,
            sure: Sure::Certain,
        };
        (tid, m)
    }

    #[test]
    fn one_that_has_ended_keeps_nobody_from_being_watched() {
        let mut child = std::process::Command::new("true").spawn().expect("a child");
        child.wait().expect("its end");
        let own = std::process::id() as i32;
        let watch = RingWatch::new(&[child.id() as i32, own]).expect("a watch");
        assert_eq!(watch.watched.iter().map(Watched::pid).collect::<Vec<_>>(), [own]);
    }

    #[test]
    fn tails_are_left_out_and_each_ring_is_found_once() {
        let g: BTreeMap<_, _> =
            [(1, 2), (2, 3), (3, 2), (4, 4), (5, 9), (6, 7), (7, 8), (8, 6)].map(|(a, b)| edge(a, b)).into();
        let found: Vec<Vec<i32>> = rings(&g).iter().map(|r| r.members.iter().map(|m| m.tid).collect()).collect();
        assert_eq!(found, [vec![2, 3], vec![4], vec![6, 7, 8]]);
    }
}
