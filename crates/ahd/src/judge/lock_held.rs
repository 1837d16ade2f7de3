//! Lock held: a thread has waited for a lock for longer than the limit.
//!
//! Likely where the holder is known and sleeps all the while; a guess where it runs, or is not known. Left out: holders that
//! themselves wait for work, which hold their lock until there is some, and rings, which are closed sets.

use super::{Key, Verdict, Why};
use crate::facts::{Facts, Id, Thread};
use crate::history::{History, serves, waits_for_lock};
use crate::limits::Limits;
use crate::wakers::chain_end;
use orbit_inspect::Sure;
use std::collections::BTreeMap;

/// See the module's head.
pub fn lock_held(facts: &Facts, _: &History, limits: &Limits) -> Vec<Verdict> {
    let mut verdicts: BTreeMap<Key, Verdict> = BTreeMap::new();
    for (id, thread) in &facts.threads {
        let waits = thread.idle_for(facts.now, limits.limit) && waits_for_lock(&thread.sight) && thread.sight.a3 == 0;
        if waits && let Some(verdict) = of(facts, limits, *id, thread) {
            let known = verdicts.entry(verdict.key).or_insert_with(|| verdict.clone());
            known.sure = known.sure.max(verdict.sure);
            if verdict.since < known.since {
                (known.since, known.why) = (verdict.since, verdict.why);
            }
            let new: Vec<Id> = verdict.threads.into_iter().filter(|t| !known.threads.contains(t)).collect();
            known.threads.extend(new);
        }
    }
    verdicts.into_values().collect()
}

fn of(facts: &Facts, limits: &Limits, id: Id, thread: &Thread) -> Option<Verdict> {
    let end = chain_end(facts, thread)?;
    let (at, waited) = (thread.sight.a0, facts.now - thread.since);
    let verdict = |key, sure, threads, holder| {
        let why = Why::LockHeld { waiter: id, waited, at, holder };
        Verdict { key, sure, threads, since: thread.since, allowed: limits.limit, why }
    };
    if end.id == id {
        return Some(verdict(Key::HeldAt(id.pid, at), Sure::Guess, vec![id], None));
    }
    if end.sleeps() && serves(&end.sight) {
        return None;
    }
    // A lock that goes from hand to hand is not held by any of them for long.
    if facts.now - thread.same_owner_since < limits.limit {
        return None;
    }
    let sure = if end.idle_for(facts.now, limits.limit) { Sure::Likely } else { Sure::Guess };
    Some(verdict(Key::Held(end.id), sure, vec![end.id, id], Some(end.id)))
}
