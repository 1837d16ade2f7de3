//! Check values from the last executions of a section.
//!
//! Owns: for each exit a sliding window of the progress its last executions made. Promises: the
//! check value is the factor times the mean of the exit with the largest mean (RMK, section 5.1),
//! never below the floor; adding and asking are O(1) in the window. Units are the caller's.

use std::collections::{BTreeMap, VecDeque};

/// Exits that are kept apart; further ones count as the last.
const MAX_EXITS: usize = 64;

#[derive(Clone, Debug, Default)]
struct Window {
    last: VecDeque<u64>,
    sum: u128,
}

impl Window {
    fn mean(&self) -> u64 {
        (self.sum / self.last.len().max(1) as u128) as u64
    }
}

/// The executions of one section, by exit.
#[derive(Clone, Debug)]
pub struct Windows {
    exits: BTreeMap<u64, Window>,
    window: usize,
}

impl Windows {
    /// An empty one that remembers so many executions of each exit.
    pub fn new(window: usize) -> Windows {
        Windows { exits: BTreeMap::new(), window: window.max(1) }
    }

    /// One execution that left by `exit` and made so much progress.
    pub fn add(&mut self, exit: u64, progress: u64) {
        let known = self.exits.contains_key(&exit) || self.exits.len() < MAX_EXITS;
        let w = self.exits.entry(if known { exit } else { u64::MAX }).or_default();
        if w.last.len() == self.window {
            w.sum -= u128::from(w.last.pop_front().unwrap_or(0));
        }
        w.last.push_back(progress);
        w.sum += u128::from(progress);
    }

    /// Mean of the exit with the largest mean; nothing without a history.
    pub fn usual(&self) -> Option<u64> {
        self.exits.values().map(Window::mean).max()
    }

    /// Mean of one exit; nothing if it was never used.
    pub fn mean(&self, exit: u64) -> Option<u64> {
        self.exits.get(&exit).map(Window::mean)
    }

    /// What one execution may use before it counts as hung.
    pub fn check_value(&self, factor: f64, floor: u64) -> u64 {
        let usual = self.usual().unwrap_or(0) as f64;
        floor.max((usual * factor) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_with_the_largest_mean_counts_and_old_executions_do_not() {
        let mut h = Windows::new(50);
        assert_eq!((h.usual(), h.check_value(4.0, 100)), (None, 100));
        for _ in 0..1000 {
            h.add(1, 5);
        }
        h.add(2, 900);
        h.add(2, 1100);
        assert_eq!(h.usual(), Some(1000));
        assert_eq!(h.check_value(4.0, 100), 4000);
        for _ in 0..50 {
            h.add(2, 10);
        }
        assert_eq!(h.check_value(4.0, 100), 100, "the floor");
        assert_eq!(h.check_value(20.0, 100), 200);
    }

    #[test]
    fn exits_are_bounded() {
        let mut h = Windows::new(2);
        for e in 0..10_000 {
            h.add(e, 1);
        }
        assert!(h.exits.len() <= MAX_EXITS + 1);
    }
}
