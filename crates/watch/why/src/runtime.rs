//! What the program's own runtime says: goroutines, the JVM's threads, tasks of asyncio, locks of
//! Java and Python with their holders, Python's global lock and the names of its threads.
//!
//! Locks are read from memory while the program runs: only what is said of threads that did not run
//! meanwhile is kept.

use orbit_inspect::goroutines::locks::{self as goroutines, Locked};
use orbit_inspect::java;
use orbit_inspect::python;
use orbit_inspect::runtimes;
use orbit_inspect::stacks::Unwinder;
use orbit_inspect::waits::{Wait, Watched};
use orbit_inspect::{Maps, globals};
use std::collections::BTreeMap;

/// Goroutines whose locks are shown.
const MAX_GOROUTINES: usize = 8;

/// A thread that waits for a lock of its runtime's, and the holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) waiter: i32,
    /// `Java monitor`, `Java lock` or `Python lock`.
    pub(crate) kind: &'static str,
    pub(crate) at: u64,
    pub(crate) holder: i32,
}

impl std::fmt::Display for Edge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Edge { kind, at, holder, .. } = self;
        match *holder == self.waiter {
            true => write!(f, "{kind} {at:#x}, which it holds itself"),
            false => write!(f, "{kind} {at:#x} held by thread {holder}"),
        }
    }
}

/// What is known by the runtime.
#[derive(Debug, Default)]
pub(crate) struct Runtime {
    /// Locks that threads wait for.
    pub(crate) edges: Vec<Edge>,
    /// The thread that has Python's global lock.
    pub(crate) gil: Option<i32>,
    /// Threads that wait for it.
    pub(crate) gil_waiters: Vec<i32>,
    /// What it says of its threads, in lines.
    pub(crate) says: Vec<String>,
    /// The names that Python's threads have.
    pub(crate) names: BTreeMap<i32, String>,
    /// What a JVM said when it was asked.
    pub(crate) jvm: Option<runtimes::Jvm>,
}

impl Runtime {
    /// Reads its locks, without asking it anything.
    pub(crate) fn of(pid: i32, waits: &[(i32, Wait)], watched: &mut Watched) -> Runtime {
        let tids: Vec<i32> = waits.iter().map(|(tid, _)| *tid).collect();
        let progress = |watched: &mut Watched| -> BTreeMap<i32, Option<(u64, u64)>> {
            tids.iter().map(|tid| (*tid, watched.progress(*tid))).collect()
        };
        let before = progress(watched);
        let (mut edges, mut gil, mut gil_waiters) = (Vec::new(), None, Vec::new());
        let mut names = BTreeMap::new();
        if let Ok(Some(python)) = python::find(pid) {
            gil = python.lock_holder();
            names = python.thread_names();
            let words = python.lock_words().unwrap_or_default();
            let waits_for_gil = |wait: &Wait| matches!(wait, Wait::Futex(futex) if words.contains(&futex.call.addr));
            gil_waiters.extend(waits.iter().filter(|(_, wait)| waits_for_gil(wait)).map(|(tid, _)| *tid));
            let word = |wait: &Wait| if let Wait::Futex(futex) = wait { Some(futex.call.addr) } else { None };
            let words: Vec<(i32, u64)> = waits.iter().filter_map(|(tid, wait)| Some((*tid, word(wait)?))).collect();
            let mut found = python.owners(&words);
            // A reentrant lock in a `with` is known by its owner.
            let is_owned = |at: u64| found.iter().any(|held| held.word == at);
            let others: Vec<_> = python.held_locks().into_iter().filter(|held| !is_owned(held.word)).collect();
            found.extend(others);
            for held in found {
                let waiters = waits.iter().filter(|(_, wait)| word(wait) == Some(held.word));
                edges.extend(waiters.map(|(waiter, _)| Edge {
                    waiter: *waiter,
                    kind: "Python lock",
                    at: held.word,
                    holder: held.holder,
                }));
            }
        } else if let Some(java) = java::find(pid) {
            let is_parked = |wait: &Wait| matches!(wait, Wait::Futex(futex) if !futex.call.timed);
            let parked: Vec<i32> = waits.iter().filter(|(_, wait)| is_parked(wait)).map(|(tid, _)| *tid).collect();
            edges.extend(java.entering(&parked).into_iter().map(|found| Edge {
                waiter: found.waiter,
                kind: if found.is_lock { "Java lock" } else { "Java monitor" },
                at: found.monitor,
                holder: found.holder,
            }));
        }
        let after = progress(watched);
        let still = |tid: &i32| before.get(tid).is_some_and(|was| was.is_some() && after.get(tid) == Some(was));
        edges.retain(|edge| still(&edge.waiter) && still(&edge.holder));
        Runtime { edges, gil, gil_waiters, names, ..Runtime::default() }
    }

    /// Asks it what its threads do; what could not be read is added to `lacks`.
    pub(crate) fn ask(&mut self, pid: i32, unwinder: &mut Unwinder, lacks: &mut Vec<String>) {
        if let Ok(Some(python)) = python::find(pid) {
            lacks.extend([python.reads_objects(), python.reads_locks()].into_iter().filter_map(Result::err));
            self.says = runtimes::of_python(pid);
            return;
        }
        self.says = runtimes::goroutines(pid, unwinder);
        self.says.extend(locks_of_goroutines(pid));
        if self.says.is_empty() {
            self.jvm = runtimes::java(pid).unwrap_or_else(|error| {
                lacks.push(error);
                None
            });
            self.says = self.jvm.as_ref().map_or_else(Vec::new, |jvm| jvm.lines(&[]));
        }
    }

    /// The lock of its runtime's that a thread waits for.
    pub(crate) fn edge(&self, tid: i32) -> Option<&Edge> {
        self.edges.iter().find(|edge| edge.waiter == tid)
    }

    /// What a thread waits for by its runtime, in words.
    pub(crate) fn wait_of(&self, tid: i32) -> Option<String> {
        if let Some(edge) = self.edge(tid) {
            return Some(edge.to_string());
        }
        let holder = || self.gil.map_or_else(String::new, |holder| format!(", held by thread {holder}"));
        self.gil_waiters.contains(&tid).then(|| format!("Python's global lock (GIL){}", holder()))
    }

    /// Threads that wait for each other, each ring from its lowest thread on.
    pub(crate) fn rings(&self) -> Vec<Vec<&Edge>> {
        let mut rings: Vec<Vec<&Edge>> = Vec::new();
        for first in &self.edges {
            let (mut ring, mut at) = (vec![first], first.holder);
            while at != first.waiter
                && ring.len() <= self.edges.len()
                && let Some(edge) = self.edge(at)
            {
                ring.push(edge);
                at = edge.holder;
            }
            let is_lowest = ring.iter().all(|edge| edge.waiter >= first.waiter);
            if at == first.waiter && is_lowest {
                rings.push(ring);
            }
        }
        rings
    }
}

/// The locks that goroutines wait for, a line each; nothing if it is no Go program.
fn locks_of_goroutines(pid: i32) -> Vec<String> {
    let Some(mut locks) = goroutines::find(pid).filter(|locks| locks.are_waited_for()) else { return Vec::new() };
    let Ok(maps) = Maps::of(pid) else { return Vec::new() };
    let waiters = locks.waiters();
    let name = |at: u64| match globals::at(pid, &maps, at) {
        Some((variable, 0)) => format!(" ({})", variable.name),
        _ => String::new(),
    };
    waiters.iter().take(MAX_GOROUTINES).map(|locked| of_goroutine(locked, &name(locked.lock))).collect()
}

/// A goroutine that waits for a lock. Such a lock keeps no owner: if only one goroutine has its
/// address on the stack, that is likely the holder.
fn of_goroutine(locked: &Locked, name: &str) -> String {
    let kind = if locked.is_rw { "sync.RWMutex" } else { "sync.Mutex" };
    let holder = match &locked.near[..] {
        [one] if !locked.by_others => format!(", which goroutine {one} seems to hold"),
        _ => String::new(),
    };
    format!("goroutine {} waits for {kind} {:#x}{name}{holder}", locked.goroutine, locked.lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_of_a_goroutines_lock_is_claimed_of_the_only_one_that_may_have_it() {
        let locked = |near: &[u64], by_others| {
            let locked = Locked { goroutine: 7, lock: 0x10, is_rw: false, turn: 0, near: near.to_vec(), by_others };
            of_goroutine(&locked, " (main.ledger)")
        };
        let waits = "goroutine 7 waits for sync.Mutex 0x10 (main.ledger)";
        assert_eq!(locked(&[8], false), format!("{waits}, which goroutine 8 seems to hold"));
        assert_eq!([locked(&[8, 9], false), locked(&[8], true), locked(&[], false)], [waits; 3]);
    }

    #[test]
    fn a_ring_is_found_once() {
        let edge = |waiter, holder| Edge { waiter, kind: "Java monitor", at: 0x10, holder };
        let edges = vec![edge(5, 3), edge(3, 7), edge(7, 3), edge(9, 9), edge(11, 12)];
        let runtime = Runtime { edges, ..Runtime::default() };
        let rings: Vec<Vec<i32>> =
            runtime.rings().iter().map(|ring| ring.iter().map(|edge| edge.waiter).collect()).collect();
        assert_eq!(rings, [vec![3, 7], vec![9]]);
    }
}
