//! What the executions of a marked section took, as far as that can be known from outside.
//!
//! Owns: the history of one section and the CPU time that one execution of it may use. The marks
//! say how often a section was entered and by which exits it was left, not when, and many
//! executions may lie between two scans. So an exit is never credited with less than its executions
//! can have taken:
//! - one that was seen inside for [`LONG_EXECUTION_NS`] of CPU is one execution, with all that was
//!   seen of it and all up to the scan that found it left. An exit's long executions have a window
//!   of their own: among many short ones the mean would not show them. If several exits were used
//!   meanwhile, it counts for each of them whose long ones it does not make seem shorter;
//! - of the others each exit is credited as if it had used all of the CPU time between the scans,
//!   and the other exits none.
//!
//! Promises: too much is at most what the thread used in two periods. Refuses: to judge by few
//! executions, see [`Executions::allowed`].

use super::window::Windows;
use orbit_section::layout::EXITS;

/// CPU time, ns, inside which an execution must have been seen to be a long one.
const LONG_EXECUTION_NS: u64 = 30_000_000;
/// Executions by one exit of which the mean says little.
const FEW_EXECUTIONS: u64 = 8;
/// An exit that is used so seldom counts for what it is after this time, s.
const RARE_EXIT_SECONDS: f64 = 10.0;
/// However many executions there were, a section is not known before, s.
const NEW: f64 = 1.0;

/// When an exit was first used, as far as it was seen, and how often since.
#[derive(Clone, Copy, Debug)]
struct Used {
    first: f64,
    times: u64,
}

/// The executions of one section, in all threads of a process.
#[derive(Clone, Debug)]
pub struct Executions {
    history: Windows,
    /// Executions that make it known.
    enough: u64,
    first: f64,
    exits: [Option<Used>; EXITS],
}

impl Executions {
    /// Of a section that was first seen now.
    pub fn new(window: usize, now: f64) -> Executions {
        Executions { history: Windows::new(window), enough: window as u64, first: now, exits: [None; EXITS] }
    }

    /// It was left so many times by each exit. `seen`: CPU time up to the last scan in which one of
    /// these was inside already. `since`: what the thread used after that scan.
    pub fn left(&mut self, times: &[u32; EXITS], seen: u64, since: u64, now: f64) {
        let used: Vec<(usize, u64)> =
            times.iter().enumerate().filter(|(_, n)| **n > 0).map(|(e, n)| (e, u64::from(*n))).collect();
        let long = seen >= LONG_EXECUTION_NS;
        for &(e, n) in &used {
            let of = self.exits[e].get_or_insert(Used { first: now, times: 0 });
            of.times += n;
            let (exit, of_long) = (e as u64, (EXITS + e) as u64);
            if !long {
                self.history.add(exit, (seen + since) / n);
                continue;
            }
            let took = seen + since;
            if used.len() == 1 || self.history.mean(of_long).is_none_or(|mean| mean <= took) {
                self.history.add(of_long, took);
            }
            if n > 1 {
                self.history.add(exit, since / (n - 1));
            }
        }
    }

    /// Mean of the exit with the largest mean; nothing without a history.
    pub fn usual(&self) -> Option<u64> {
        self.history.usual()
    }

    /// CPU time, ns, that one execution may use: the check value, once the section is known.
    /// Before, that is the limit for waits at least: a rare long execution need not have been among
    /// few. It is known by a window of executions and `NEW`, and each of the exits seen by
    /// `FEW_EXECUTIONS` or `RARE_EXIT_SECONDS`.
    pub fn allowed(&self, factor: f64, floor: u64, limit: u64, now: f64) -> u64 {
        let check = self.history.check_value(factor, floor);
        let exits = || self.exits.iter().flatten();
        let known = exits().map(|of| of.times).sum::<u64>() >= self.enough
            && now - self.first >= NEW
            && exits().all(|of| of.times >= FEW_EXECUTIONS || now - of.first >= RARE_EXIT_SECONDS);
        if known { check } else { check.max(limit) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn times<const N: usize>(of: [(usize, u32); N]) -> [u32; EXITS] {
        let mut out = [0; EXITS];
        of.into_iter().for_each(|(e, n)| out[e] = n);
        out
    }

    /// What is allowed long after.
    fn allowed(x: &Executions) -> u64 {
        x.allowed(4.0, 120 * MS, 5000 * MS, x.first + 60.0) / MS
    }

    #[test]
    fn a_long_execution_among_many_short_ones_counts_as_one() {
        let now = 0.0;
        let mut x = Executions::new(50, now);
        for _ in 0..20 {
            // 300 ms by exit 1, of which the last 60 after the last scan; then 20 short ones by
            // exit 0.
            x.left(&times([(0, 20), (1, 1)]), 240 * MS, 62 * MS, now);
            x.left(&times([(0, 30)]), 0, 3 * MS, now);
        }
        assert!((1200..1300).contains(&allowed(&x)), "{}", allowed(&x));
        // By one and the same exit: the short ones do not hide it either.
        let mut x = Executions::new(50, now);
        for _ in 0..20 {
            x.left(&times([(0, 21)]), 240 * MS, 62 * MS, now);
            x.left(&times([(0, 30)]), 0, 3 * MS, now);
        }
        assert!((1200..1300).contains(&allowed(&x)), "{}", allowed(&x));
    }

    #[test]
    fn an_execution_that_may_have_left_by_either_exit_shortens_none() {
        let now = 0.0;
        let mut x = Executions::new(50, now);
        x.left(&times([(1, 1)]), 900 * MS, 0, now);
        for _ in 0..100 {
            x.left(&times([(0, 1), (1, 1)]), 150 * MS, 0, now);
        }
        assert_eq!(allowed(&x), 3600);
        for _ in 0..50 {
            x.left(&times([(1, 1)]), 150 * MS, 0, now);
        }
        assert_eq!(allowed(&x), 600, "known to be shorter by now");
    }

    #[test]
    fn short_executions_have_the_floor() {
        let now = 0.0;
        let mut x = Executions::new(50, now);
        for _ in 0..10 {
            x.left(&times([(0, 12), (1, 13), (2, 12)]), 0, 75 * MS, now);
        }
        assert_eq!(allowed(&x), 120);
        // Left by no exit: its thread ended.
        x.left(&[0; EXITS], 800 * MS, 0, now);
        assert_eq!(allowed(&x), 120);
    }

    #[test]
    fn a_section_is_known_by_executions_and_time() {
        let now = 0.0;
        let mut x = Executions::new(50, now);
        let after = |x: &Executions, s: u64| x.allowed(4.0, 120 * MS, 5000 * MS, now + s as f64);
        x.left(&times([(0, 49)]), 0, MS, now);
        assert_eq!(after(&x, 3600) / MS, 5000, "few executions");
        x.left(&times([(0, 1)]), 0, MS, now);
        assert_eq!((after(&x, 0) / MS, after(&x, 1) / MS), (5000, 120), "little time");
        x.left(&times([(1, 7)]), 0, MS, now);
        assert_eq!((after(&x, 9) / MS, after(&x, 10) / MS), (5000, 120), "an exit hardly ever used");
        x.left(&times([(1, 1)]), 0, MS, now);
        assert_eq!(after(&x, 1) / MS, 120);
    }
}
