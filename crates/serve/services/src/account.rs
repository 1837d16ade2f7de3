//! Accounts: what services used, and when one is to be revoked. Pure functions of what was read.

use orbit_sandbox_lib::abi::Control;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

/// What a service used so far, charged to its owner.
///
/// Native services count in memory that every member can write: what the host reads there is
/// clamped to what is possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Runs of the handler.
    pub runs: u64,
    /// Of these, as upcalls in members.
    pub upcalls: u64,
    /// CPU time, nanoseconds.
    pub cpu_ns: u64,
    /// Runs aborted over their budget.
    pub overruns: u64,
    /// Runs aborted for a fault.
    pub faults: u64,
    /// Events dropped since the reservation was used up.
    pub unpaid: u64,
    /// Values that a guard rejected, and calls with forged handles.
    pub refused: u64,
    /// Values that a guard clamped.
    pub clamped: u64,
    /// Attributes that the kernel would not set.
    pub failed: u64,
    /// Runs whose process was killed in the middle.
    pub orphaned: u64,
    /// Events dropped since the queue was full.
    pub lost: u64,
    /// Runs that were promoted to a thread.
    pub promotions: u64,
    /// Ticks that were due so far, but for those that wait. Each began a run, was merged or was
    /// missed.
    pub ticks_due: u64,
    /// Of these, merged with a later one that was due as well.
    pub ticks_merged: u64,
    /// Of these, missed: the reservation was used up, or the run could not begin.
    pub ticks_missed: u64,
}

impl Account {
    /// Reads a slot's counters. `since`: time since the service was loaded; `cpus`: processors it
    /// can have used.
    pub fn read(control: &Control, since: Duration, cpus: usize) -> Account {
        let word = |word: &AtomicU64| word.load(Relaxed);
        // Before their sum, which is raised first.
        let (merged, missed) = (control.ticks_merged.load(Acquire), control.ticks_missed.load(Acquire));
        let due = word(&control.ticks_due);
        let merged = merged.min(due);
        let most = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).saturating_mul(cpus as u64);
        Account {
            runs: word(&control.runs),
            upcalls: word(&control.upcalls),
            cpu_ns: word(&control.cpu_ns).min(most),
            overruns: word(&control.overruns),
            faults: word(&control.faults),
            unpaid: word(&control.unpaid),
            refused: word(&control.refused).saturating_add(word(&control.forged)),
            clamped: word(&control.clamped),
            failed: word(&control.failed),
            orphaned: word(&control.orphaned),
            lost: word(&control.queue.dropped),
            promotions: word(&control.promotions),
            ticks_due: due,
            ticks_merged: merged,
            ticks_missed: missed.min(due - merged),
        }
    }

    /// Ticks that began a run.
    pub fn ticks_ran(&self) -> u64 {
        self.ticks_due.saturating_sub(self.ticks_merged).saturating_sub(self.ticks_missed)
    }

    /// Runs that were aborted.
    pub fn aborts(&self) -> u64 {
        self.overruns.saturating_add(self.faults)
    }

    /// Whether a service has been aborted too often: more than `limit` times, and in more than one
    /// of ten runs.
    pub fn is_abusive(&self, limit: u64) -> bool {
        self.aborts() > limit && self.aborts().saturating_mul(10) > self.runs
    }
}

#[cfg(test)]
mod tests {
    use super::Account;

    #[test]
    fn repeated_aborts_revoke_and_rare_ones_do_not() {
        let account = |runs, overruns| Account { runs, overruns, ..Account::default() };
        assert!(!account(3, 3).is_abusive(3));
        assert!(account(4, 4).is_abusive(3));
        assert!(!account(1000, 50).is_abusive(3), "one in twenty");
        assert!(account(1000, 150).is_abusive(3));
    }
}
