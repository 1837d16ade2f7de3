//! The controller of a CPU share (PID), as the paper's CPU service manager has it: at the end of
//! each period the error between target and use sets the budget of the next; within a period a
//! process that has had its budget is satisfied.
//!
//! Integers only, no calls: the same function serves native services, the host and plain programs.

/// A process's target and what it had of it. `struct orbit_control` of `orbit_service.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// CPU time wanted in each period, nanoseconds.
    pub target_ns: u64,
    /// The period, nanoseconds; 0 counts as 1.
    pub period_ns: u64,
    /// When this period began, monotonic nanoseconds; 0: the first call sets it.
    pub began_ns: u64,
    /// CPU time of the process then, nanoseconds.
    pub used_ns: u64,
    /// CPU time that satisfies it in this period, nanoseconds.
    pub budget_ns: u64,
    /// Sum of errors, bounded to a quarter of the target, nanoseconds.
    pub integral_ns: i64,
    /// The last error, nanoseconds.
    pub error_ns: i64,
}

impl Control {
    /// A share of so much CPU time in every period.
    pub fn new(target_ns: u64, period_ns: u64) -> Control {
        Control { target_ns, period_ns, ..Control::default() }
    }

    /// Takes the time and the CPU time the process has used so far. True if it is owed time in this
    /// period.
    ///
    /// The guard of the paper is in here: a budget is never below the target, and at most a fifth
    /// above it.
    pub fn step(&mut self, now_ns: u64, used_ns: u64) -> bool {
        let period = self.period_ns.max(1);
        let target = self.target_ns.min(i64::MAX as u64 / 4) as i64;
        if self.began_ns == 0 {
            (self.began_ns, self.used_ns) = (now_ns.max(1), used_ns);
            self.budget_ns = (target + target / 50) as u64;
        }
        let passed = now_ns.saturating_sub(self.began_ns);
        if passed >= period {
            let got = used_ns.saturating_sub(self.used_ns).min(i64::MAX as u64 / 4) as i64;
            let error = (target - got).max(-target);
            let bound = target / 4;
            self.integral_ns = (self.integral_ns + error).clamp(-bound, bound);
            let wanted = target + error / 2 + self.integral_ns / 4 + (error - self.error_ns) / 8;
            self.error_ns = error;
            self.budget_ns = (wanted.clamp(target, target + target / 5) + target / 50) as u64;
            self.began_ns += passed / period * period;
            self.used_ns = used_ns;
        }
        used_ns.saturating_sub(self.used_ns) < self.budget_ns
    }
}

#[cfg(test)]
mod tests {
    use super::Control;

    const MS: u64 = 1_000_000;

    #[test]
    fn owed_until_it_has_had_its_share_and_again_in_the_next_period() {
        let mut share = Control::new(10 * MS, 100 * MS);
        assert!(share.step(5 * MS, 3 * MS));
        assert!(share.step(14 * MS, 12 * MS), "9 ms of 10");
        assert!(!share.step(17 * MS, 14 * MS), "11 ms of 10");
        assert!(!share.step(104 * MS, 14 * MS), "the period is not over");
        assert!(share.step(106 * MS, 14 * MS));
    }

    #[test]
    fn a_process_that_got_too_little_catches_up_by_a_fifth_at_most() {
        let mut share = Control::new(10 * MS, 100 * MS);
        share.step(MS, 0);
        for period in 1..20 {
            share.step(MS + period * 100 * MS, period * MS);
        }
        assert!(share.budget_ns > 11 * MS && share.budget_ns <= 12 * MS + MS / 5, "{share:?}");
    }

    #[test]
    fn wild_clocks_do_no_harm() {
        let mut share = Control::new(u64::MAX, 0);
        share.step(u64::MAX, 0);
        share.step(0, u64::MAX);
        share.step(u64::MAX, u64::MAX);
        assert!(share.budget_ns < u64::MAX / 2);
    }
}
