//! A process with all that it made: which processes there are, and which waits for which.
//!
//! The list is that of one moment; a process whose parent has exited belongs to no tree.

use crate::groups::groups;
use crate::sample::{self, Sample};
use crate::show;
use orbit_console::harmless::Harmless;
use orbit_console::out::{BAD, HEAD, WARN};
use orbit_inspect::Error;
use orbit_linux::procfs;
use orbit_linux::stat::Stat;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::time::Duration;

/// Processes that are read; how many more there are is said.
const MAX_PROCESSES: usize = 64;
/// Processes that are read at a time.
const AT_ONCE: usize = 8;
/// Groups of threads that are shown of each.
const SHOWN: usize = 4;

/// A process and its descendants.
pub(crate) struct Tree {
    /// Depth of each, the process that was asked for first; parents before children.
    places: Vec<(usize, i32)>,
    pub(crate) samples: Vec<Sample>,
    /// What could not be read, in sentences.
    lacks: Vec<String>,
}

/// Reads them all. Blocks for the interval, again for each eight processes, and what reading takes.
pub(crate) fn take(root: i32, interval: Duration) -> Result<Tree, Error> {
    let all = procfs::ids("/proc").into_iter().filter_map(|pid| Some((pid, Stat::of(pid).ok()?.parent)));
    let (places, left_out) = below(root, &all.collect());
    let (mut samples, mut lacks) = (Vec::new(), Vec::new());
    for some in places.chunks(AT_ONCE) {
        let read: Vec<_> = std::thread::scope(|scope| {
            let started: Vec<_> =
                some.iter().map(|(_, pid)| (*pid, scope.spawn(|| sample::take(*pid, interval)))).collect();
            started.into_iter().map(|(pid, thread)| (pid, thread.join())).collect()
        });
        for (pid, result) in read {
            match result {
                Ok(Ok(sample)) => samples.push(sample),
                Ok(Err(error)) if pid == root => return Err(error),
                Ok(Err(Error::Gone { .. })) => {}
                Ok(Err(error)) => lacks.push(format!("process {pid}: {error}")),
                Err(_) => lacks.push(format!("process {pid}: reading it failed")),
            }
        }
    }
    if left_out > 0 {
        lacks.push(format!("{left_out} more processes"));
    }
    Ok(Tree { places, samples, lacks })
}

/// The descendants of a process with their depth, and how many more there are.
fn below(root: i32, parents: &BTreeMap<i32, i32>) -> (Vec<(usize, i32)>, usize) {
    let (mut places, mut next, mut seen) = (Vec::new(), vec![(0, root)], BTreeSet::from([root]));
    while let Some((depth, pid)) = next.pop() {
        places.push((depth, pid));
        let children = parents.iter().rev().filter(|(_, parent)| **parent == pid).map(|(child, _)| *child);
        next.extend(children.filter(|child| seen.insert(*child)).map(|child| (depth + 1, child)));
    }
    let left_out = places.len().saturating_sub(MAX_PROCESSES);
    places.truncate(MAX_PROCESSES);
    (places, left_out)
}

/// Text for people.
pub(crate) fn text(to: &mut (impl Write + ?Sized), tree: &Tree, facts: &[String]) -> io::Result<()> {
    for (depth, pid) in &tree.places {
        let Some(sample) = tree.samples.iter().find(|sample| sample.pid == *pid) else { continue };
        let indent = "  ".repeat(*depth);
        let count = if sample.threads.len() == 1 { "thread" } else { "threads" };
        let (command, threads) = (Harmless(&sample.command), sample.threads.len());
        writeln!(to, "{indent}{HEAD}process {pid}{HEAD:#}: {command} ({threads} {count})")?;
        let all = groups(&sample.threads);
        for group in all.iter().take(SHOWN) {
            let thread = &sample.threads[group[0]];
            let more = if group.len() > 1 { format!(" and {} more", group.len() - 1) } else { String::new() };
            let does = Harmless(show::does(sample, thread));
            writeln!(to, "{indent}    thread {} ({}){more} {does}", thread.tid, Harmless(&thread.name))?;
        }
        let left: usize = all.iter().skip(SHOWN).map(Vec::len).sum();
        if left > 0 {
            writeln!(to, "{indent}    and {left} more threads: see orbit why {pid}")?;
        }
    }
    let waits = between(&tree.samples);
    if !waits.is_empty() {
        writeln!(to, "\n{HEAD}who waits for whom:{HEAD:#}")?;
    }
    for ((from, on), why) in waits {
        writeln!(to, "    process {from} waits for process {on}: {}", Harmless(why))?;
    }
    for fact in facts {
        writeln!(to, "{BAD}{}{BAD:#}", Harmless(fact))?;
    }
    for lack in &tree.lacks {
        writeln!(to, "{WARN}not seen:{WARN:#} {}", Harmless(lack))?;
    }
    to.flush()
}

/// The process that waits and the one it waits for, and by which thread.
fn between(samples: &[Sample]) -> BTreeMap<(i32, i32), String> {
    let mut waits = BTreeMap::new();
    for sample in samples {
        for thread in sample.threads.iter().filter(|thread| !thread.is_busy()) {
            let others = thread.peers.iter().copied().chain(thread.holder.map(|(pid, _)| pid));
            for other in others.filter(|other| *other != sample.pid) {
                let why = || format!("thread {} {}", thread.tid, show::does(sample, thread));
                waits.entry((sample.pid, other)).or_insert_with(why);
            }
        }
    }
    waits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_come_before_their_children_and_none_twice() {
        // 12 is of another tree; 1 is its own parent, as in a broken list.
        let parents = BTreeMap::from([(1, 1), (2, 1), (3, 2), (4, 1), (5, 3), (12, 11)]);
        let (places, left_out) = below(1, &parents);
        assert_eq!((places, left_out), (vec![(0, 1), (1, 2), (2, 3), (3, 5), (1, 4)], 0));
        let many: BTreeMap<i32, i32> = (2..200).map(|pid| (pid, 1)).collect();
        assert_eq!(below(1, &many).1, 199 - MAX_PROCESSES);
    }
}
