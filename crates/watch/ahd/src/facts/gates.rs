//! Locks used as gates: one thread locks, another unlocks.
//!
//! A mutex that does not check its unlocker names the thread that locked it last, which need not
//! be the one that will unlock it. That a process uses locks so is known once a thread got past a
//! lock whose owner had not run meanwhile.

use super::{Facts, Id};
use crate::wakers::{How, Wakers, wakers};

/// Signals that a program may catch: those above are the C library's own, or real-time ones.
const STANDARD_SIGNALS: u64 = 0x7fff_ffff;

/// A lock that a thread waited for and waits for no more.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeftLock {
    at: u64,
    /// Nothing if it had ended.
    owner: Option<Id>,
    /// Since when the owner had slept.
    owner_since: f64,
}

impl Facts {
    /// The lock that a thread waits for, as it was seen last, if its owner had ended or slept
    /// already when that was read.
    pub(super) fn left_lock(&self, id: Id) -> Option<LeftLock> {
        let thread = self.threads.get(&id).filter(|t| t.sleeps() && t.waits_for_lock())?;
        let Wakers::Only { threads, how: How::Lock { at, lives, .. }, .. } = wakers(self, thread) else { return None };
        if !lives {
            return Some(LeftLock { at, owner: None, owner_since: 0.0 });
        }
        let owner = self.threads.get(threads.first()?)?;
        let slept = owner.id == id || owner.sleeps() && owner.since < thread.wait.as_ref()?.t;
        slept.then_some(LeftLock { at, owner: Some(owner.id), owner_since: owner.since })
    }

    /// Whether a thread that has ended waited, when it was seen last, for a lock whose owner had
    /// ended: it ends only once it has it.
    pub(super) fn is_let_through(&self, id: Id) -> bool {
        self.left_lock(id).is_some_and(|lock| lock.owner.is_none())
    }

    /// Finds processes whose locks are released by others than their owners.
    pub(super) fn find_gates(&mut self) {
        let left: Vec<(Id, LeftLock)> =
            self.threads.values().filter_map(|thread| Some((thread.id, thread.left_lock?))).collect();
        for (id, lock) in left {
            let slept = |owner: &super::Thread| owner.sleeps() && owner.since == lock.owner_since;
            let is_by_other = lock.owner.is_none_or(|owner| owner == id || self.threads.get(&owner).is_some_and(slept));
            let Some(thread) = self.threads.get_mut(&id) else { continue };
            if is_by_other && !thread.sleeps() && !thread.is_halted() {
                continue;
            }
            thread.left_lock = None;
            let is_same = thread.is_halted() || thread.waits_for_lock() && thread.sight.a0 == lock.at;
            if let Some(process) = self.processes.get_mut(&id.pid) {
                // One that a signal's handler interrupted is back at the same lock.
                let is_back = is_same && (thread.is_halted() || process.caught & STANDARD_SIGNALS != 0);
                process.has_gates |= is_by_other && !is_back;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Record, Seen, Sight, WaitFacts};

    const LOCK: u64 = 0x1010;

    /// Thread 7 is seen asleep at the lock, for the `v`th time, and then another way to rest.
    fn at_lock(facts: &mut Facts, t: f64, v: u64, owner: i32) {
        let waits =
            Sight { t, p: 1, i: 7, v, st: 'S', nr: libc::SYS_futex, a0: LOCK, a1: 128, a2: 2, ..Sight::default() };
        facts.take(&Record::Thread(waits));
        let words =
            [0u8; 16].into_iter().chain([2, 0, owner, 1, 0].map(|w: i32| w.to_le_bytes()).into_iter().flatten());
        let w = Some(words.collect());
        let a = [LOCK, 128, 2, 0, 0, 0];
        facts.take(&Record::Wait(WaitFacts { t, p: 1, i: 7, nr: libc::SYS_futex, a, w, ..WaitFacts::default() }));
        facts.take(&Record::Tick { t, us: 0 });
    }

    fn rests(facts: &mut Facts, t: f64, i: i32, v: u64) {
        let sight = Sight { t, p: 1, i, v, st: 'S', nr: libc::SYS_nanosleep, ..Sight::default() };
        facts.take(&Record::Thread(sight));
        facts.take(&Record::Tick { t, us: 0 });
    }

    #[test]
    fn whoever_gets_past_its_own_lock_was_let_through_by_another() {
        let mut facts = Facts::default();
        at_lock(&mut facts, 1.0, 1, 7);
        assert!(!facts.processes[&1].has_gates);
        at_lock(&mut facts, 2.0, 2, 7);
        assert!(facts.processes[&1].has_gates, "it was let through in between");
        let mut facts = Facts::default();
        at_lock(&mut facts, 1.0, 1, 7);
        facts.take(&Record::Changed { p: 1, pp: 0, cgt: 1 << (libc::SIGALRM - 1), unsure: Vec::new() });
        at_lock(&mut facts, 2.0, 2, 7);
        assert!(!facts.processes[&1].has_gates, "a handler may have interrupted it");
        rests(&mut facts, 3.0, 7, 3);
        assert!(facts.processes[&1].has_gates);
    }

    #[test]
    fn a_thread_that_the_watcher_stopped_has_not_passed_its_lock() {
        let mut facts = Facts::default();
        rests(&mut facts, 0.5, 8, 1);
        at_lock(&mut facts, 1.0, 1, 8);
        facts.take(&Record::Stopped { t: 2.0, p: 1, i: 7 });
        // On a loaded machine it is seen awake, when the kernel does not say where it is.
        let awake = Sight { t: 2.1, p: 1, i: 7, v: 2, run: 20_000, st: 'R', nr: -1, ..Sight::default() };
        assert_eq!(facts.take(&Record::Thread(awake)).map(|(seen, _)| seen), Some(Seen::Same));
        facts.take(&Record::Tick { t: 2.1, us: 0 });
        at_lock(&mut facts, 2.2, 3, 8);
        assert!(!facts.processes[&1].has_gates);
        assert!((facts.threads[&Id { pid: 1, tid: 7 }].since - 1.0).abs() < 0.01, "it waits since then");
    }

    #[test]
    fn a_lock_that_its_owner_releases_is_no_gate() {
        let mut facts = Facts::default();
        rests(&mut facts, 0.5, 8, 1);
        at_lock(&mut facts, 1.0, 1, 8);
        rests(&mut facts, 2.0, 8, 2);
        rests(&mut facts, 2.0, 7, 2);
        assert!(!facts.processes[&1].has_gates, "the owner ran meanwhile");
        at_lock(&mut facts, 3.0, 3, 8);
        rests(&mut facts, 4.0, 7, 4);
        assert!(facts.processes[&1].has_gates, "it did not");
    }
}
