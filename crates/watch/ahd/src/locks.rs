//! The variables that the locks of a verdict are, where the program's files have symbols.
//!
//! Owns: [`Names`]. Refuses: to stop a thread.

use crate::facts::Id;
use crate::judge::{Verdict, Why};
use crate::wakers::How;
use orbit_inspect::{Maps, globals};
use std::collections::BTreeMap;

/// Locks of a verdict whose names are looked up: each takes some milliseconds, by the size of the
/// symbol table of the file that has it.
const MAX_NAMED: usize = 4;

/// Names by process and address.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<(i32, u64), String>);

impl Names {
    /// The names of the verdict's locks, read from the processes' files. None where a file has no
    /// symbols, where the lock is part of no variable (on the heap, say), and where a process has
    /// exited.
    pub(crate) fn of(verdict: &Verdict) -> Names {
        let mut names = BTreeMap::new();
        for (pid, at) in locks(verdict) {
            let Ok(maps) = Maps::of(pid) else { continue };
            let Some((variable, distance)) = globals::at(pid, &maps, at) else { continue };
            let name = if distance == 0 { variable.name } else { format!("{}+{distance:#x}", variable.name) };
            names.insert((pid, at), name);
        }
        Names(names)
    }

    /// The lock at an address of a process, with its name if that is known: `0x7f12 (name)`.
    pub(crate) fn lock(&self, pid: i32, at: u64) -> String {
        match self.0.get(&(pid, at)) {
            Some(name) => format!("{at:#x} ({name})"),
            None => format!("{at:#x}"),
        }
    }
}

/// The locks of a verdict, each once.
fn locks(verdict: &Verdict) -> Vec<(i32, u64)> {
    let mut found = Vec::new();
    match &verdict.why {
        Why::LockHeld { waiter, at, .. } => found.push((waiter.pid, *at)),
        Why::ClosedSet(members) => {
            let lock = |(Id { pid, .. }, how): &(Id, How)| match how {
                How::Lock { at, .. } | How::ForkedLock { at, .. } => Some((*pid, *at)),
                _ => None,
            };
            for lock in members.iter().filter_map(lock) {
                if !found.contains(&lock) {
                    found.push(lock);
                }
            }
        }
        _ => {}
    }
    found.truncate(MAX_NAMED);
    found
}
