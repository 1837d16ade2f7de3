//! Lock held: a thread has waited for a lock for longer than the limit.
//!
//! Likely where the holder is known and sleeps all the while; a guess where it runs, sleeps by the
//! clock, or is not known. Left out: holders that themselves wait for work or for a process that
//! works, which hold their lock until then; rings, which are closed sets; and locks that are used
//! as gates, which are waited for like work.

use super::{Key, Verdict, Why, others_work};
use crate::facts::{Facts, Id, Thread};
use crate::history::{History, naps, serves};
use crate::limits::Limits;
use crate::wakers::chain_end;
use orbit_inspect::Sure;
use std::collections::BTreeMap;

/// See the module's head.
pub fn lock_held(facts: &Facts, history: &History, limits: &Limits) -> Vec<Verdict> {
    let mut verdicts: BTreeMap<Key, Verdict> = BTreeMap::new();
    for (id, thread) in &facts.threads {
        let waits = thread.idle_for(facts.now, limits.limit) && thread.waits_for_lock() && thread.sight.a3 == 0;
        if waits && let Some(verdict) = of(facts, history, limits, *id, thread) {
            let known = verdicts.entry(verdict.key).or_insert_with(|| verdict.clone());
            known.sure = known.sure.max(verdict.sure);
            if verdict.since < known.since {
                (known.since, known.why) = (verdict.since, verdict.why);
            }
            let new: Vec<Id> = verdict.threads.into_iter().filter(|t| !known.threads.contains(t)).collect();
            known.threads.extend(new);
        }
    }
    for verdict in verdicts.values_mut() {
        if let Key::HeldAt(pid, at) = verdict.key {
            // Whoever waits for it, however short: one of them may be the one that waits for
            // itself.
            let of = facts.threads.range(Id { pid, tid: i32::MIN }..=Id { pid, tid: i32::MAX });
            let waits = |t: &&Thread| t.sleeps() && t.waits_for_lock() && (t.sight.a0, t.sight.a3) == (at, 0);
            let new: Vec<Id> = of.map(|(_, t)| t).filter(waits).map(|t| t.id).collect();
            verdict.threads.extend(new.into_iter().filter(|id| !verdict.threads.contains(id)).collect::<Vec<_>>());
        }
        // Whoever came first: where the holder is not known, a thread that waits for itself began
        // to wait before all others.
        let from = usize::from(matches!(verdict.why, Why::LockHeld { holder: Some(_), .. }));
        let since = |id: &Id| facts.threads.get(id).map_or(f64::MAX, |t| t.since);
        verdict.threads[from..].sort_by(|a, b| since(a).total_cmp(&since(b)));
        if let Some(reader) = reader_behind(facts, verdict) {
            verdict.threads.retain(|id| *id != reader);
            verdict.threads.insert(0, reader);
            if let Why::LockHeld { reader: found, .. } = &mut verdict.why {
                *found = Some(reader);
            }
        }
    }
    verdicts.into_values().collect()
}

/// In glibc's rwlock a reader behind a writer waits so many bytes before the word at which the
/// writer waits for readers to leave.
const READERS_BEFORE: u64 = 8;

/// A reader that waits behind the writer whose wait the verdict is about: it may be one of those
/// that the writer waits for.
fn reader_behind(facts: &Facts, verdict: &Verdict) -> Option<Id> {
    let Key::HeldAt(pid, at) = verdict.key else { return None };
    let of = facts.threads.range(Id { pid, tid: i32::MIN }..=Id { pid, tid: i32::MAX });
    let waits = |t: &&Thread| {
        t.sleeps()
            && t.sight.nr == libc::SYS_futex
            && t.sight.a3 == 0
            && Some(t.sight.a0) == at.checked_sub(READERS_BEFORE)
    };
    of.map(|(_, t)| t).filter(waits).min_by(|a, b| a.since.total_cmp(&b.since)).map(|t| t.id)
}

fn of(facts: &Facts, history: &History, limits: &Limits, id: Id, thread: &Thread) -> Option<Verdict> {
    let end = chain_end(facts, thread)?;
    let (at, waited) = (thread.sight.a0, facts.now - thread.since);
    let verdict = |key, sure, threads, holder| {
        let why = Why::LockHeld { waiter: id, waited, at, holder, reader: None };
        Verdict { key, sure, threads, since: thread.since, allowed: limits.limit, why }
    };
    if end.id == id {
        let has_owner = thread.wait.as_ref().is_some_and(|wait| wait.named_owner().is_some());
        let is_gate = has_owner && facts.processes.get(&id.pid).is_some_and(|process| process.has_gates);
        return (!is_gate).then(|| verdict(Key::HeldAt(id.pid, at), Sure::Guess, vec![id], None));
    }
    // A lock that goes from hand to hand is not held by any of them for long; nor is the holder to
    // blame for what the machine took. Nor is one that keeps coming back to where events come in:
    // it holds the lock until there is work.
    let habit = history.threads.get(&end.id).filter(|habit| habit.is_event_loop);
    if habit.is_some_and(|habit| habit.at_home || habit.away(facts.now, end.lost(facts.now)) < limits.limit) {
        return None;
    }
    let had_its_time = !end.is_halted() && facts.had_time(thread, end, limits.limit);
    if end.sleeps() && (serves(&end.sight) || others_work(facts, end, limits)) || !had_its_time {
        return None;
    }
    let sure = if end.idle_for(facts.now, limits.limit) && !naps(&end.sight) { Sure::Likely } else { Sure::Guess };
    Some(verdict(Key::Held(end.id), sure, vec![end.id, id], Some(end.id)))
}
