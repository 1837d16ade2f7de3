//! Copies of a probed process, made by `fork`.
//!
//! A copy has the breakpoints that were there when it was made. Where probes are attached many at a
//! time the kernel takes them away from it only once a probe at the same place goes, and what they
//! cost it is in nobody's account. Owns: when the kernel is to check, which is once for each child
//! that may have some. Promises: scans are a second apart, and further where they take long.
//! Ignores children of processes that have exited by then, and those that run another program
//! already: these have none.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Time between two scans, at least.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// And in durations of the last scan.
const MIN_PAUSE_IN_SCANS: u32 = 200;

/// Of all probed processes.
#[derive(Debug)]
pub(crate) struct Copies {
    /// The children that each had at the last scan.
    known: BTreeMap<i32, BTreeSet<i32>>,
    next: Instant,
}

impl Copies {
    pub(crate) fn new() -> Copies {
        Copies { known: BTreeMap::new(), next: Instant::now() + MIN_PAUSE }
    }

    /// Those of these processes that have copies which were not there at the last scan; none
    /// between scans.
    pub(crate) fn more(&mut self, probed: impl Fn() -> BTreeSet<i32>) -> Vec<i32> {
        let now = Instant::now();
        if now < self.next {
            return Vec::new();
        }
        let before = std::mem::take(&mut self.known);
        let (mut more, none) = (Vec::new(), BTreeSet::new());
        for pid in probed() {
            let children = children(pid);
            let new: Vec<&i32> = children.difference(before.get(&pid).unwrap_or(&none)).collect();
            let own = if new.is_empty() { None } else { program(pid).ok() };
            let copy = |child: &i32| match program(*child) {
                Ok(other) => own.is_none_or(|own| own == other),
                // A child that may not be inspected may be one; one that has exited is none.
                Err(e) => e.kind() != io::ErrorKind::NotFound,
            };
            if new.into_iter().any(copy) {
                more.push(pid);
            }
            self.known.insert(pid, children);
        }
        self.next = now + MIN_PAUSE.max(now.elapsed() * MIN_PAUSE_IN_SCANS);
        more
    }
}

/// The children of all its threads; none where the kernel does not tell (`CONFIG_PROC_CHILDREN`).
fn children(pid: i32) -> BTreeSet<i32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let lists = threads.into_iter().flatten().flatten().map(|t| std::fs::read_to_string(t.path().join("children")));
    lists.flatten().flat_map(|list| list.split_ascii_whitespace().flat_map(str::parse).collect::<Vec<i32>>()).collect()
}

/// Device and inode of the program that a process runs.
fn program(pid: i32) -> io::Result<(u64, u64)> {
    std::fs::metadata(format!("/proc/{pid}/exe")).map(|m| (m.dev(), m.ino()))
}
