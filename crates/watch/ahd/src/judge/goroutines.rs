//! Goroutines: one has waited for a lock of package sync for longer than the limit.
//!
//! A guess, since such a lock keeps no owner. Likely once it lasts and the goroutines that have the
//! locks' addresses on their stacks wait for each other's: each of them for a lock whose address
//! another one has, and nobody has one of these who does anything else. Time in which the machine
//! kept the process from running does not count.

use super::{Key, Verdict, Why};
use crate::facts::{Facts, Locked};
use crate::history::History;
use crate::limits::Limits;
use orbit_inspect::Sure;

/// See the module's head.
pub fn goroutines(facts: &Facts, _: &History, limits: &Limits) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for (pid, process) in &facts.processes {
        let lost = facts.lost(*pid, facts.now);
        let waited = |since: f64, before: f64| facts.now - since - (lost - before).max(0.0);
        let beyond = |limit: f64| -> Vec<&Locked> {
            let waits = process.goroutines.iter().filter(|(_, since, lost)| waited(*since, *lost) >= limit);
            waits.map(|(locked, ..)| locked).collect()
        };
        let stuck = beyond(limits.limit);
        let first = process.goroutines.iter().filter(|(locked, ..)| stuck.contains(&locked));
        let Some((_, since, before)) = first.min_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
        let ring = ring(&beyond(limits.likely_times * limits.limit));
        let sure = if ring.is_empty() { Sure::Guess } else { Sure::Likely };
        let waits: Vec<Locked> = if ring.is_empty() { stuck } else { ring }.into_iter().cloned().collect();
        let why = Why::Goroutines { waited: waited(*since, *before), waits, is_ring: sure == Sure::Likely };
        let (key, allowed) = (Key::Goroutines(*pid), limits.limit);
        verdicts.push(Verdict { key, sure, threads: Vec::new(), since: *since, allowed, why });
    }
    verdicts
}

/// Goroutines each of which waits for a lock that only the next one seems to have, the last one for
/// the first one's; none if there are no such.
fn ring<'a>(all: &[&'a Locked]) -> Vec<&'a Locked> {
    // Those that wait for the same lock may all have the address of what another one has.
    let next = |locked: &Locked| -> Option<&'a Locked> {
        let has = |other: &&&Locked| locked.by.contains(&other.g);
        let mut may_have = all.iter().filter(has);
        let one = may_have.next()?;
        let is_only_one = locked.by.len() == 1 && !locked.o;
        is_only_one.then_some(*one)
    };
    for first in all {
        let mut passed: Vec<&'a Locked> = vec![first];
        while let Some(locked) = passed.last().and_then(|locked| next(locked)) {
            if locked.g == first.g {
                return passed;
            }
            if passed.iter().any(|other| other.g == locked.g) {
                break;
            }
            passed.push(locked);
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Process, Record};

    fn waits(g: u64, at: u64, n: u8, by: &[u64], o: bool) -> Locked {
        Locked { g, at, rw: false, n, by: by.to_vec(), o }
    }

    /// The verdict after so many seconds of the same reading.
    fn after(seconds: f64, list: &[Locked], change: impl Fn(f64, &mut Vec<Locked>)) -> Option<(Sure, usize)> {
        let mut facts = Facts { processes: [(1, Process::default())].into(), ..Facts::default() };
        let mut t = 0.0;
        while t <= seconds {
            let mut e = list.to_vec();
            change(t, &mut e);
            facts.take(&Record::Goroutines { t, p: 1, e });
            facts.take(&Record::Tick { t, us: 0 });
            t += 0.5;
        }
        let verdicts = goroutines(&facts, &History::default(), &Limits::default());
        verdicts.first().map(|verdict| match &verdict.why {
            Why::Goroutines { waits, .. } => (verdict.sure, waits.len()),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn a_ring_by_stacks_is_likely_once_it_lasts() {
        let ring = [waits(7, 0x10, 1, &[8], false), waits(8, 0x20, 5, &[7], false), waits(9, 0x10, 2, &[], false)];
        let same = |_: f64, _: &mut Vec<Locked>| {};
        assert_eq!(after(4.5, &ring, same), None);
        assert_eq!(after(6.0, &ring, same), Some((Sure::Guess, 3)));
        assert_eq!(after(11.0, &ring, same), Some((Sure::Likely, 2)));
    }

    #[test]
    fn whoever_else_may_have_a_lock_leaves_it_a_guess() {
        let same = |_: f64, _: &mut Vec<Locked>| {};
        let by_another = [waits(7, 0x10, 1, &[8], true), waits(8, 0x20, 5, &[7], false)];
        assert_eq!(after(20.0, &by_another, same), Some((Sure::Guess, 2)));
        let by_two = [waits(7, 0x10, 1, &[8, 9], false), waits(8, 0x20, 5, &[7], false)];
        assert_eq!(after(20.0, &by_two, same), Some((Sure::Guess, 2)));
        let by_nobody = [waits(7, 0x10, 1, &[], false)];
        assert_eq!(after(20.0, &by_nobody, same), Some((Sure::Guess, 1)));
    }

    #[test]
    fn one_that_gets_its_turn_is_left_alone() {
        let list = [waits(7, 0x10, 1, &[8], false), waits(8, 0x20, 5, &[7], false)];
        let runs = |t: f64, e: &mut Vec<Locked>| e.iter_mut().for_each(|locked| locked.n = (t / 3.0) as u8);
        assert_eq!(after(20.0, &list, runs), None);
        let gone = |t: f64, e: &mut Vec<Locked>| e.truncate(if t < 19.0 { 2 } else { 0 });
        assert_eq!(after(20.0, &list, gone), None);
    }
}
