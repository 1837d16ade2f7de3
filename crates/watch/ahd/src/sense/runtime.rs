//! The locks that a runtime keeps by itself, read from its memory: Java's monitors and locks,
//! Python's `RLock`s and its locks held by `with`, those of goroutines.
//!
//! They are read only while a thread of the process has slept at a word for [`RESTS`], and again
//! only once another one does: a ring closes with a thread that goes to sleep. Goroutines sleep on
//! no thread: theirs are read while somebody sleeps at a semaphore. Readings are spaced out by what
//! they cost.

use crate::facts::{Locked, Record, Runtime};
use orbit_inspect::goroutines::locks as goroutines;
use orbit_inspect::java::{self, Java};
use orbit_inspect::python::{self, Python};
use std::collections::BTreeMap;

/// Sleep of a thread before its runtime is asked about it, s. HotSpot wakes a thread that waits
/// for a monitor each second, to check again.
pub(super) const RESTS: f64 = 0.25;
/// Time between two readings, s, how often that exceeds what one costs, and the longest, s.
const EVERY: f64 = 0.16;
const SHARE: f64 = 100.0;
const SLOWEST: f64 = 5.0;
/// The same of goroutines, s.
const EVERY_OF_GO: f64 = 0.5;
/// Searches for a runtime in a process, and time between two, s.
const SEARCHES: u32 = 4;
const SEARCH_EVERY: f64 = 5.0;

/// A thread that sleeps at a word: which, since when, and the word's address if it waits there for
/// any time.
pub(super) type Rests = (i32, f64, Option<u64>);
/// Thread, address of the lock, holder.
pub(super) type Edge = (i32, u64, i32);

#[derive(Debug)]
enum Kind {
    Java(Java),
    Python(Python),
    Go(goroutines::Locks),
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Locks {
    kind: Option<Kind>,
    searches: u32,
    from: f64,
    rested: Vec<(i32, f64)>,
    /// Whether the last reading found any.
    found: bool,
}

impl Locks {
    /// Whether it is time to read them, or to search for a runtime.
    pub(super) fn is_due(&self, t: f64) -> bool {
        t >= self.from && (self.kind.is_some() || self.searches < SEARCHES)
    }

    /// Reads them, once they are due; nothing where that is no news.
    pub(super) fn read(&mut self, pid: i32, t: f64, resting: &[Rests]) -> Option<Record> {
        if let Some(Kind::Go(go)) = &mut self.kind {
            let mut all = Vec::new();
            let cost = super::timed(|| all = of_go(go));
            self.from = t + EVERY_OF_GO.max(cost * SHARE).min(SLOWEST);
            let is_news = std::mem::replace(&mut self.found, !all.is_empty()) || !all.is_empty();
            return is_news.then_some(Record::Goroutines { t, p: pid, e: all });
        }
        let now: Vec<(i32, f64)> = resting.iter().map(|(tid, since, _)| (*tid, *since)).collect();
        if now.is_empty() || now == self.rested {
            return None;
        }
        if self.kind.is_none() {
            self.searches += 1;
            self.from = t + SEARCH_EVERY;
            let java = || java::find(pid).map(Kind::Java);
            let go = || goroutines::find(pid).map(Kind::Go);
            // An interpreter that is not known says so when its stacks are asked for.
            self.kind = python::find(pid).ok().flatten().map(Kind::Python).or_else(java).or_else(go);
        }
        let (mut by, mut edges) = (Runtime::Java, Vec::new());
        let kind = self.kind.as_ref()?;
        let cost = super::timed(|| match kind {
            Kind::Java(java) => {
                let parked: Vec<i32> = resting.iter().filter_map(|(tid, _, word)| word.map(|_| *tid)).collect();
                edges = java.entering(&parked).into_iter().map(|e| (e.waiter, e.monitor, e.holder)).collect();
            }
            Kind::Python(python) => {
                (by, edges) = (Runtime::Python, of_python(python, resting));
            }
            Kind::Go(_) => {}
        });
        self.rested = now;
        self.from = t + EVERY.max(cost * SHARE).min(SLOWEST);
        let is_news = self.found || !edges.is_empty();
        self.found = !edges.is_empty();
        is_news.then_some(Record::Held { t, p: pid, by, e: edges })
    }
}

/// The goroutines that wait for locks. While nobody sleeps at a semaphore, none are read.
fn of_go(go: &mut goroutines::Locks) -> Vec<Locked> {
    let all = if go.are_waited_for() { go.waiters() } else { Vec::new() };
    let one = |l: goroutines::Locked| Locked {
        g: l.goroutine,
        at: l.lock,
        rw: l.is_rw,
        n: l.turn,
        by: l.near,
        o: l.by_others,
    };
    all.into_iter().map(one).collect()
}

/// The threads that sleep at the word of a lock that a thread is inside of, or that names its
/// owner. A lock that seems to be held by two changed hands meanwhile.
fn of_python(python: &Python, resting: &[Rests]) -> Vec<Edge> {
    let mut holders: BTreeMap<u64, Option<i32>> = BTreeMap::new();
    let words: Vec<(i32, u64)> = resting.iter().filter_map(|(tid, _, word)| Some((*tid, (*word)?))).collect();
    for held in python.held_locks().into_iter().chain(python.owners(&words)) {
        let known = holders.entry(held.word).or_insert(Some(held.holder));
        if *known != Some(held.holder) {
            *known = None;
        }
    }
    let edge = |(tid, _, word): &Rests| Some((*tid, (*word)?, holders.get(&(*word)?).copied().flatten()?));
    resting.iter().filter_map(edge).collect()
}
