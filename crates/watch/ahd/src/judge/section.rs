//! Section: one execution of a marked section uses more CPU than its check value, or the thread has
//! not run inside for the limit.
//!
//! This is the application hang detection of RMK (section 5): the check value is the factor times
//! the mean of the exit with the largest mean, at least the floor; it needs two scans, between
//! which the thread got on with [`MORE`] of CPU. Likely, since one execution may simply take longer
//! than all before. Of sections inside each other the innermost is named that used at least half of
//! what the outer one did. A wait is left out while whoever could end it is at work, or is kept
//! from its CPU.

use super::{Key, Verdict, Why};
use crate::facts::{Facts, Id, Thread};
use crate::history::{History, naps, serves};
use crate::limits::Limits;
use crate::section::{Inside, Marked};
use crate::wakers::{Wakers, chain_end, wakers};
use orbit_inspect::Sure;

/// The second scan must find so much more CPU time, ns.
const MORE: u64 = 20_000_000;

/// See the module's head.
pub fn section(facts: &Facts, history: &History, limits: &Limits) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for (&pid, learnt) in &history.processes {
        for (tid, section, inside) in learnt.marked.inside() {
            let id = Id { pid, tid };
            let Some(thread) = facts.threads.get(&id) else { continue };
            if thread.is_halted() || thread.sight.st == 'Z' {
                continue;
            }
            let busy = busy(&learnt.marked, tid, section, inside, facts.now, limits);
            let found = busy.or_else(|| blocked(&learnt.marked, facts, thread, section, inside, limits));
            verdicts.extend(found.map(|(since, allowed, why)| Verdict {
                key: Key::Section(id, section),
                sure: Sure::Likely,
                threads: vec![id],
                since,
                allowed,
                why,
            }));
        }
    }
    verdicts
}

type Found = (f64, f64, Why);

fn busy(marked: &Marked, tid: i32, section: usize, inside: Inside, now: f64, limits: &Limits) -> Option<Found> {
    let (name, executions) = marked.section(section)?;
    let limit = (limits.limit * 1e9) as u64;
    let check = executions.allowed(limits.factor, limits.floor, limit, now);
    let used = |run: u64, from: u64| run.saturating_sub(from);
    let (before, last) = inside.runs;
    if used(before, inside.from) < check || used(last, inside.from) < check + MORE {
        return None;
    }
    // What was used for the most part in one execution of a section further in is that one's.
    if marked.within(tid, section).any(|(_, inner)| used(last, inner.from) >= used(last, inside.from) / 2) {
        return None;
    }
    let used = used(last, inside.from);
    // The share of the time by which it had used what it may.
    let allowed = (now - inside.began) * check as f64 / used as f64;
    let why = Why::Section { name: name.to_owned(), used: Some(used), usual: executions.usual(), check };
    Some((inside.began, allowed, why))
}

fn blocked(
    marked: &Marked,
    facts: &Facts,
    thread: &Thread,
    section: usize,
    inside: Inside,
    limits: &Limits,
) -> Option<Found> {
    let (name, _) = marked.section(section)?;
    let since = inside.ran_at.max(thread.since);
    if facts.now - since < limits.limit || !thread.sleeps() || thread.wait.is_none() {
        return None;
    }
    // A wait is the innermost section's: those around it wait with it.
    if marked.within(thread.id.tid, section).next().is_some() || may_end_soon(facts, thread, limits) {
        return None;
    }
    let why = Why::Section { name: name.to_owned(), used: None, usual: None, check: (limits.limit * 1e9) as u64 };
    Some((since, limits.limit, why))
}

/// Whether a thread that could end the wait works for that, or would if the machine let
/// it.
pub fn may_end_soon(facts: &Facts, thread: &Thread, limits: &Limits) -> bool {
    if let Some(end) = chain_end(facts, thread)
        && end.id != thread.id
    {
        return end.is_halted() || !facts.had_time(thread, end, limits.limit);
    }
    others_work(facts, thread, limits)
}

/// Waits for processes that wait for processes are followed so far.
const DEPTH: u32 = 4;

/// Whether another process that could end the wait of a thread has run within the limit, sleeps by
/// the clock or waits for work; one that waits for such a process counts too, and so does a child
/// that is not seen.
pub fn others_work(facts: &Facts, thread: &Thread, limits: &Limits) -> bool {
    works(facts, thread, limits, DEPTH)
}

fn works(facts: &Facts, thread: &Thread, limits: &Limits, depth: u32) -> bool {
    let waits_for_child = matches!(thread.sight.nr, libc::SYS_wait4 | libc::SYS_waitid);
    let Wakers::Only { processes, .. } = wakers(facts, thread) else { return waits_for_child };
    let others: Vec<i32> = processes.into_iter().filter(|pid| *pid != thread.id.pid).collect();
    let of = |pid: i32| facts.threads.range(Id { pid, tid: i32::MIN }..=Id { pid, tid: i32::MAX }).map(|(_, t)| t);
    let one = |other: &Thread| {
        let rests = other.sleeps() && facts.now - other.since >= limits.limit;
        !rests || naps(&other.sight) || serves(&other.sight) || depth > 0 && works(facts, other, limits, depth - 1)
    };
    others.iter().any(|pid| of(*pid).any(one))
}
