//! One hang is one report: verdicts that belong together, what is news of them, and when they are
//! over.
//!
//! Owns: [`Reports`]. Verdicts belong together that have a key or a thread in common, or are of one
//! process within a second; a port without answers belongs to whatever hangs in its process. News
//! is a new hang, one that became surer, one that is over. Promises: pure; a hang is reported at
//! most once for each degree of sureness.

use crate::facts::{Facts, Id};
use crate::judge::{Key, Verdict};
use orbit_inspect::Sure;
use std::collections::BTreeSet;

/// Verdicts of one process within this time are one hang, s.
const TOGETHER: f64 = 1.0;
/// A hang that no rule has found for so long, s, and in so many scans, is over: on a slow machine a
/// scan may take that long.
const OVER: f64 = 3.0;
const OVER_SCANS: u32 = 5;
/// Hangs that are remembered: of more the oldest are forgotten.
const MAX_HANGS: usize = 256;

/// What is new.
#[derive(Clone, Debug)]
pub enum News {
    /// A hang, or one that became surer.
    Hang {
        /// The surest verdict on it.
        verdict: Verdict,
        /// What it was reported as before, and how long ago, s.
        before: Option<(Sure, f64)>,
    },
    /// A hang is over.
    Over {
        /// The verdict it was reported with.
        verdict: Verdict,
        /// For how long it was reported, s.
        after: f64,
    },
}

impl News {
    fn is_of(&self, key: Key) -> bool {
        matches!(self, News::Hang { verdict, .. } if verdict.key == key)
    }
}

#[derive(Debug)]
struct Hang {
    keys: BTreeSet<Key>,
    threads: BTreeSet<Id>,
    pids: BTreeSet<i32>,
    verdict: Verdict,
    reported: f64,
    seen: f64,
    /// Scans since.
    missed: u32,
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct Reports {
    hangs: Vec<Hang>,
    /// Threads whose hang was reported by other means than the rules.
    claimed: BTreeSet<Id>,
}

impl Reports {
    /// Takes the verdicts of a scan and answers what is new.
    pub fn take(&mut self, mut verdicts: Vec<Verdict>, facts: &Facts) -> Vec<News> {
        let now = facts.now;
        let mut news = Vec::new();
        verdicts.sort_by_key(|v| std::cmp::Reverse(v.sure));
        self.claimed.retain(|id| facts.threads.contains_key(id));
        for verdict in verdicts.into_iter().filter(|v| !v.threads.iter().any(|id| self.claimed.contains(id))) {
            let pids = processes(&verdict);
            let Some(hang) = self.hangs.iter_mut().find(|hang| hang.includes(&verdict, &pids, now)) else {
                news.push(News::Hang { verdict: verdict.clone(), before: None });
                if self.hangs.len() >= MAX_HANGS {
                    self.hangs.remove(0);
                }
                self.hangs.push(Hang {
                    keys: BTreeSet::from([verdict.key]),
                    threads: verdict.threads.iter().copied().collect(),
                    pids,
                    verdict,
                    reported: now,
                    seen: now,
                    missed: 0,
                });
                continue;
            };
            // What is found with it is part of the report.
            if hang.reported == now
                && let Some(News::Hang { verdict: first, .. }) = news.iter_mut().find(|n| n.is_of(hang.verdict.key))
            {
                let more = verdict.threads.iter().filter(|id| !first.threads.contains(id));
                first.threads.extend(more.copied().collect::<Vec<_>>());
            }
            (hang.seen, hang.missed) = (now, 0);
            hang.keys.insert(verdict.key);
            hang.threads.extend(&verdict.threads);
            hang.pids.extend(pids);
            if verdict.sure > hang.verdict.sure {
                let before = Some((hang.verdict.sure, now - hang.reported));
                news.push(News::Hang { verdict: verdict.clone(), before });
                (hang.verdict, hang.reported) = (verdict, now);
            }
        }
        self.hangs.retain_mut(|hang| {
            if hang.seen == now {
                return true;
            }
            hang.missed += 1;
            let over = now - hang.seen > OVER && hang.missed >= OVER_SCANS;
            // Of one whose processes have ended it is not said. It is remembered for as long, for
            // one that could not be read for a moment seems to have ended.
            if over && hang.pids.iter().any(|pid| facts.processes.contains_key(pid)) {
                news.push(News::Over { verdict: hang.verdict.clone(), after: hang.seen - hang.reported });
            }
            !over
        });
        news
    }

    /// Forgets the hangs of a process alone that runs another program, or is watched no more.
    pub fn forget(&mut self, pid: i32) {
        self.hangs.retain(|hang| !hang.pids.iter().eq([&pid]));
    }
}

impl Reports {
    /// Whether a hang that this thread is part of was reported and is not over.
    pub fn includes(&self, id: Id) -> bool {
        self.claimed.contains(&id) || self.hangs.iter().any(|hang| hang.threads.contains(&id))
    }

    /// The hang of this key was reported as surer than its verdict: the runtime itself proves it.
    pub fn proven(&mut self, key: Key, sure: Sure) {
        self.hangs.iter_mut().filter(|hang| hang.verdict.key == key).for_each(|hang| hang.verdict.sure = sure);
    }

    /// The hang of this key was reported with this thread as the first.
    pub fn begins_with(&mut self, key: Key, id: Id) {
        for hang in self.hangs.iter_mut().filter(|hang| hang.verdict.key == key) {
            let threads = &mut hang.verdict.threads;
            if let Some(at) = threads.iter().position(|other| *other == id) {
                threads[..=at].rotate_right(1);
            }
        }
    }

    /// No verdict on this thread is news until it is over.
    pub fn claim(&mut self, id: Id) {
        self.claimed.insert(id);
    }

    /// It is over; whether it was claimed.
    pub fn unclaim(&mut self, id: Id) -> bool {
        self.claimed.remove(&id)
    }
}

impl Hang {
    fn includes(&self, verdict: &Verdict, pids: &BTreeSet<i32>, now: f64) -> bool {
        let of_port = verdict.threads.is_empty() || self.threads.is_empty();
        let near = of_port || now - self.reported <= TOGETHER;
        // In another section it is another execution that does not end.
        let is_other = matches!(verdict.key, Key::Section(..)) && matches!(self.verdict.key, Key::Section(..));
        self.keys.contains(&verdict.key)
            || !is_other && verdict.threads.iter().any(|thread| self.threads.contains(thread))
            || near && !self.pids.is_disjoint(pids) && !(is_other && verdict.threads == self.verdict.threads)
    }
}

/// Processes that a verdict is about.
fn processes(verdict: &Verdict) -> BTreeSet<i32> {
    let of_key = match verdict.key {
        Key::Closed(id) | Key::Left(id) | Key::Held(id) | Key::Owed(id) => id.pid,
        Key::Stopped(id) | Key::Unreaped(id) | Key::Section(id, _) => id.pid,
        Key::HeldAt(pid, _) | Key::Goroutines(pid) | Key::Unanswered(pid, _) => pid,
    };
    verdict.threads.iter().map(|id| id.pid).chain([of_key]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Process;
    use crate::judge::Why;

    fn verdict(key: Key, sure: Sure, threads: &[i32]) -> Verdict {
        let threads = threads.iter().map(|tid| Id { pid: 1, tid: *tid }).collect();
        Verdict { key, sure, threads, since: 0.0, allowed: 1.0, why: Why::ClosedSet(Vec::new()) }
    }

    fn at(now: f64) -> Facts {
        Facts { now, processes: [(1, Process::default())].into(), ..Facts::default() }
    }

    #[test]
    fn a_hang_is_reported_once_again_when_surer_and_when_over() {
        let id = |tid| Id { pid: 1, tid };
        let mut reports = Reports::default();
        let mut count = |verdicts: Vec<Verdict>, now| reports.take(verdicts, &at(now)).len();
        let left = || verdict(Key::Left(id(7)), Sure::Guess, &[7]);
        assert_eq!(count(vec![left(), verdict(Key::Left(id(8)), Sure::Guess, &[8])], 5.0), 1, "of one moment");
        assert_eq!(
            count(vec![left(), verdict(Key::Unanswered(1, 80), Sure::Guess, &[])], 7.5),
            0,
            "a port without answers"
        );
        assert_eq!(count(vec![left(), verdict(Key::Held(id(9)), Sure::Likely, &[9, 8])], 8.0), 1, "surer");
        assert_eq!(count(vec![verdict(Key::Left(id(20)), Sure::Guess, &[20])], 10.0), 1, "another thread, later");
        let over: usize = (0..5)
            .map(|i| count(vec![verdict(Key::Left(id(20)), Sure::Guess, &[20])], 12.0 + f64::from(i) * 0.08))
            .sum();
        assert_eq!(over, 1, "the first is over");
        let over: usize = (0..5).map(|i| count(vec![], 20.0 + f64::from(i) * 0.08)).sum();
        assert_eq!(over, 1, "and the second");
    }

    #[test]
    fn a_hang_that_is_lost_from_sight_for_a_moment_is_the_same() {
        let mut reports = Reports::default();
        let closed = || vec![verdict(Key::Closed(Id { pid: 1, tid: 7 }), Sure::Likely, &[7, 8])];
        assert_eq!(reports.take(closed(), &at(1.0)).len(), 1);
        // Its process cannot be read in one scan, and is learnt anew.
        assert_eq!(reports.take(vec![], &Facts { now: 1.1, ..Facts::default() }).len(), 0);
        for i in 2..12 {
            assert_eq!(reports.take(vec![], &at(1.0 + f64::from(i) * 0.1)).len(), 0);
        }
        assert_eq!(reports.take(closed(), &at(2.3)).len(), 0, "the same hang");
        // A scan that took seconds, in which a thread was just being stopped for its stack.
        assert_eq!(reports.take(vec![], &at(6.3)).len(), 0);
        assert_eq!(reports.take(closed(), &at(6.4)).len(), 0, "still the same");
        reports.forget(1);
        assert_eq!(reports.take(closed(), &at(6.5)).len(), 1, "another program's");
    }
}
