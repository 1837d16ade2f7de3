//! Closed set: sleeping threads, each of which only others of them could wake. Nobody outside can
//! end it, so it lasts for ever.
//!
//! Certain where all waits are for locks and the ends of threads, whose memory, or that of the
//! runtime, names the holder; a ring of locks needs no time to be sure, only two scans between
//! which nobody ran, whoever else waits for its threads. Else likely, after [`Limits::still`]
//! seconds: a signal's handler that the process has could still end all other waits, so those count
//! only where it catches none but those of runtimes. A guess, and likely once it lasts, where a
//! lock's owner waits for it itself or has ended while other threads of the process could unlock
//! it: old programs use such a lock as a gate.

use super::{Key, Verdict, Why};
use crate::facts::{Facts, Id, Process, Thread, Unsure};
use crate::history::History;
use crate::limits::Limits;
use crate::wakers::{How, Wakers, wakers};
use orbit_inspect::Sure;
use std::collections::{BTreeMap, BTreeSet};

/// Signals that runtimes and C libraries catch for themselves: HUP, QUIT of no program's own use
/// are not among them.
const RUNTIME_SIGNALS: u64 = 0x7fff_ffff_0000_0000
    | bit(libc::SIGPIPE)
    | bit(libc::SIGCHLD)
    | bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGILL)
    | bit(libc::SIGTRAP);

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// A thread that sleeps, and the threads that could wake it.
struct Sleeper<'a> {
    thread: &'a Thread,
    threads: Vec<Id>,
    processes: Vec<i32>,
    how: How,
}

type Sleepers<'a> = BTreeMap<Id, Sleeper<'a>>;

/// See the module's head.
pub fn closed_set(facts: &Facts, _: &History, limits: &Limits) -> Vec<Verdict> {
    let still = limits.still;
    let of = |(id, thread): (&Id, _)| {
        let thread: &Thread = thread;
        if !thread.sleeps() || thread.wait.is_none() {
            return None;
        }
        match wakers(facts, thread) {
            Wakers::World => None,
            Wakers::Only { threads, processes, how } => Some((*id, Sleeper { thread, threads, processes, how })),
        }
    };
    let sleepers: Sleepers = facts.threads.iter().filter_map(of).collect();
    let mut verdicts = Vec::new();
    let mut done = BTreeSet::new();
    let rested = |s: &Sleeper| s.thread.idle_for(facts.now, still);
    let mut judge = |sure: Sure, at_once: bool, belongs: &dyn Fn(&Sleeper) -> bool| {
        let ids = sleepers.iter().filter(|(_, s)| belongs(s)).map(|(id, _)| *id).collect();
        for component in components(facts, &sleepers, &closure(facts, &sleepers, ids)) {
            let by_ends = component.iter().any(|id| sleepers[id].how.is_by_ends());
            let is_known = component.is_disjoint(&done)
                && is_seen_asleep_at_once(facts, &sleepers, &component, last_change(facts, &sleepers, &component))
                && !(by_ends && facts.ends_read < last_rest(&sleepers, &component));
            let is_open = is_known && may_be_unlocked(facts, &sleepers, &component);
            if !is_known || is_open && sure == Sure::Certain {
                continue;
            }
            let lasts = facts.now - last_rest(&sleepers, &component) > limits.likely_times * limits.limit;
            let sure = if is_open && !lasts { Sure::Guess } else { sure };
            verdicts.push(verdict(&sleepers, &component, sure, if at_once { 0.0 } else { still }));
            done.extend(component);
        }
    };
    judge(Sure::Certain, true, &|s| matches!(s.how, How::Lock { lives: true, .. } | How::Held { .. }));
    judge(Sure::Certain, false, &|s| s.how.is_exact() && rested(s));
    judge(Sure::Likely, false, &|s| rested(s));
    verdicts
}

/// The largest part of `ids` in which each one's possible wakers are in it.
fn closure(facts: &Facts, sleepers: &Sleepers, mut ids: BTreeSet<Id>) -> BTreeSet<Id> {
    let mut in_process: BTreeMap<i32, usize> = BTreeMap::new();
    for id in &ids {
        *in_process.entry(id.pid).or_default() += 1;
    }
    loop {
        let before = ids.len();
        let mut out = Vec::new();
        for id in &ids {
            let sleeper = &sleepers[id];
            let all_of = |pid: &i32| {
                let others = usize::from(*pid == id.pid);
                let count = facts.processes.get(pid).map_or(usize::MAX, |p| p.threads.len());
                in_process.get(pid).copied().unwrap_or(0).saturating_sub(others) >= count.saturating_sub(others)
            };
            if !sleeper.threads.iter().all(|t| ids.contains(t)) || !sleeper.processes.iter().all(all_of) {
                out.push(*id);
            }
        }
        if out.is_empty() {
            out = woken_by_handlers(facts, sleepers, &ids);
        }
        for id in &out {
            ids.remove(id);
            if let Some(n) = in_process.get_mut(&id.pid) {
                *n -= 1;
            }
        }
        if ids.len() == before {
            return ids;
        }
    }
}

/// Threads of processes that catch signals, which wait for what a handler could do: it runs in any
/// of the process' threads, also in one that waits for a lock or the end of a thread.
fn woken_by_handlers(facts: &Facts, sleepers: &Sleepers, ids: &BTreeSet<Id>) -> Vec<Id> {
    // A handler may write, or have the call return; the holder of a lock and the end of a thread it
    // does not change.
    let by_handler = |id: &Id| !sleepers[id].how.is_exact() && !matches!(sleepers[id].how, How::FileLock(_));
    let pids: BTreeSet<i32> = ids.iter().map(|id| id.pid).collect();
    let interrupt = |p: &Process| if p.is_python { bit(libc::SIGINT) } else { 0 };
    let catches = |pid: &i32| {
        facts
            .processes
            .get(pid)
            .is_some_and(|p| p.caught & !(RUNTIME_SIGNALS | interrupt(p)) != 0 || p.unsure.contains(&Unsure::Timer))
    };
    let catching: BTreeSet<i32> = pids.into_iter().filter(catches).collect();
    ids.iter().filter(|id| catching.contains(&id.pid) && by_handler(id)).copied().collect()
}

/// The parts of a closed set that have nothing to do with each other.
fn components(facts: &Facts, sleepers: &Sleepers, closed: &BTreeSet<Id>) -> Vec<BTreeSet<Id>> {
    let mut group: BTreeMap<Id, Id> = closed.iter().map(|id| (*id, *id)).collect();
    fn root(group: &mut BTreeMap<Id, Id>, id: Id) -> Id {
        let mut at = id;
        while group[&at] != at {
            let up = group[&group[&at]];
            group.insert(at, up);
            at = up;
        }
        at
    }
    for id in closed {
        let s = &sleepers[id];
        let whole = s.processes.iter().filter_map(|pid| facts.processes.get(pid).map(|p| (pid, p)));
        let others = whole.flat_map(|(pid, p)| p.threads.iter().map(|tid| Id { pid: *pid, tid: *tid }));
        for other in s.threads.iter().copied().chain(others) {
            if group.contains_key(&other) {
                let (a, b) = (root(&mut group, *id), root(&mut group, other));
                group.insert(a.max(b), a.min(b));
            }
        }
    }
    let mut parts: BTreeMap<Id, BTreeSet<Id>> = BTreeMap::new();
    for id in closed {
        parts.entry(root(&mut group, *id)).or_default().insert(*id);
    }
    parts.into_values().collect()
}

/// Whether a lock of the set may be unlocked by a thread that is not its owner: one of the process
/// that is not asleep for what only sleepers could end.
fn may_be_unlocked(facts: &Facts, sleepers: &Sleepers, set: &BTreeSet<Id>) -> bool {
    let is_open = |id: &&Id| sleepers[*id].how.is_open();
    let open: BTreeSet<i32> = set.iter().filter(is_open).map(|id| id.pid).collect();
    if open.is_empty() {
        return false;
    }
    let closed = closure(facts, sleepers, sleepers.keys().copied().collect());
    let all = facts.threads.keys().filter(|id| open.contains(&id.pid)).copied().collect::<BTreeSet<Id>>();
    !all.is_subset(&closed) || !is_seen_asleep_at_once(facts, sleepers, &all, last_change(facts, sleepers, &all))
}

/// Whether all waits were read after `last`, when something last changed: at that moment all slept,
/// so nobody was left to end it. A thread that was woken and has no CPU yet seems asleep until it
/// is read again. What a runtime's memory says counts only once a later scan saw the thread asleep
/// still.
fn is_seen_asleep_at_once(facts: &Facts, sleepers: &Sleepers, set: &BTreeSet<Id>, last: f64) -> bool {
    set.iter().all(|id| {
        let sleeper = &sleepers[id];
        let held = facts.processes.get(&id.pid).and_then(|process| process.held.as_ref());
        match sleeper.how {
            How::Held { .. } => held.is_some_and(|held| held.t >= last),
            _ => sleeper.thread.wait.as_ref().is_some_and(|wait| wait.t > last),
        }
    })
}

/// When the last of them came to rest.
fn last_rest(sleepers: &Sleepers, set: &BTreeSet<Id>) -> f64 {
    set.iter().map(|id| sleepers[id].thread.since).fold(f64::MIN, f64::max)
}

/// The same, or when a thread of their processes ended: a process that exits loses one after the
/// other.
fn last_change(facts: &Facts, sleepers: &Sleepers, set: &BTreeSet<Id>) -> f64 {
    let ended = |id: &Id| facts.processes.get(&id.pid).map_or(0.0, |p| p.thread_ended);
    set.iter().map(ended).fold(last_rest(sleepers, set), f64::max)
}

fn verdict(sleepers: &Sleepers, set: &BTreeSet<Id>, sure: Sure, allowed: f64) -> Verdict {
    let mut threads: Vec<Id> = set.iter().copied().collect();
    // Whoever holds a lock that others wait for comes first, one that waits for itself before all.
    let holds = |id: &Id| {
        let waits_for = |s: &&Sleeper| s.how.is_exact() && s.threads.contains(id);
        let waiters = set.iter().map(|other| &sleepers[other]).filter(waits_for).count();
        let itself = sleepers[id].threads.contains(id);
        (!itself, std::cmp::Reverse(waiters))
    };
    threads.sort_by_cached_key(|id| (holds(id), *id));
    let since = last_rest(sleepers, set);
    let why = Why::ClosedSet(threads.iter().map(|id| (*id, sleepers[id].how)).collect());
    let key = set.first().copied().unwrap_or(Id { pid: 0, tid: 0 });
    Verdict { key: Key::Closed(key), sure, threads, since, allowed, why }
}
