//! Copies of written pages that are made while the program still runs, so that the pause is left
//! with what it writes meanwhile.
//!
//! Invariant: a page here was written since the newest checkpoint, and the tracking does not know
//! that any more. So it stays here until the next checkpoint takes it, or until a rollback puts the
//! page back.

use crate::capture::Tracker;
use crate::pages::{Bytes, Pool};
use crate::space::is_kept;
use orbit_linux::maps::Entry;
use std::collections::{HashMap, HashSet};

/// Checkpoints for which nothing is copied ahead, at most, after some where the program has written
/// most of it again.
const LONGEST_REST: u32 = 8;

/// Pages copied ahead.
#[derive(Default)]
pub(crate) struct Ahead {
    pages: HashMap<u64, Box<Bytes>>,
    /// Checkpoints for which nothing is copied ahead.
    rest: u32,
    /// How long the last rest was.
    rested: u32,
}

impl Ahead {
    /// Copies what the running program has written, in those of the mappings `known` that are
    /// tracked.
    pub fn copy(&mut self, tracker: &Tracker, known: &[Entry], pool: &mut Pool) {
        if self.rest > 0 {
            self.rest -= 1;
            return;
        }
        let written: Vec<u64> = known.iter().filter(|e| is_kept(e)).flat_map(|e| tracker.scan_running(e)).collect();
        for (address, page) in tracker.read_running(written, pool) {
            pool.give(self.pages.insert(address, page));
        }
    }

    /// Those that are still as the program has them: it has not written them again (`pages`), nor
    /// made their mapping anew (`anew`).
    pub fn take(
        &mut self,
        pages: &[(u64, Box<Bytes>)],
        anew: &[(u64, u64)],
        pool: &mut Pool,
    ) -> Vec<(u64, Box<Bytes>)> {
        if self.pages.is_empty() {
            return Vec::new();
        }
        let copied = self.pages.len();
        let later: HashSet<u64> = pages.iter().map(|(address, _)| *address).collect();
        let is_old = |address: u64| {
            later.contains(&address) || anew.iter().any(|(start, end)| (*start..*end).contains(&address))
        };
        let (old, good): (Vec<_>, Vec<_>) = self.pages.drain().partition(|(address, _)| is_old(*address));
        self.rested = if good.len() < copied / 2 { (self.rested * 2).clamp(1, LONGEST_REST) } else { 0 };
        self.rest = self.rested;
        pool.give(old.into_iter().map(|(_, page)| page));
        good
    }

    /// Forgets them; returns their addresses.
    pub fn forget(&mut self, pool: &mut Pool) -> Vec<u64> {
        let (addresses, pages): (Vec<u64>, Vec<_>) = self.pages.drain().unzip();
        pool.give(pages);
        addresses
    }
}
