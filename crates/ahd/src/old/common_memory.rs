//! Whether another process works on a process' memory.
//!
//! Owns: the doubt about "nobody is left to write there". A child made with `CLONE_VM`, but not as a thread, shares all memory with whoever
//! made it, as between `vfork` and `exec`. Promises: the kernel is asked (`kcmp`) of every process there is; some microseconds each,
//! so it is for the last question before a verdict. Refuses: memory that is mapped shared; whoever waits for such a word is not judged
//! by who is left.

use crate::old::proc::Dir;
use orbit_linux::process::same_memory;
use std::fs;

/// Whether another process shares the memory of a thread's process; nothing if that cannot be told.
pub(crate) fn shares_memory(pid: i32, tid: i32) -> Option<bool> {
    let names = fs::read_dir("/proc").ok()?.flatten();
    let others = names.filter_map(|e| e.file_name().to_str()?.parse().ok()).filter(|&p: &i32| p != pid);
    let mut known = true;
    for other in others.filter_map(living) {
        match same(tid, other) {
            Some(true) => return Some(true),
            Some(false) => {}
            None => known = false,
        }
    }
    known.then_some(false)
}

/// A thread of a process that has not ended: one that has ended has no memory.
fn living(pid: i32) -> Option<i32> {
    let dir = Dir::open(pid).ok()?;
    let lives = |&t: &i32| dir.status(t).is_some_and(|s| !matches!(s.state, b'Z' | b'X'));
    lives(&pid).then_some(pid).or_else(|| dir.tids().ok()?.into_iter().find(lives))
}

/// Whether two threads have the same memory.
fn same(a: i32, b: i32) -> Option<bool> {
    if let Ok(same) = same_memory(a, b) {
        return Some(same);
    }
    // It was refused, or is not there. The program file belongs to the memory; and who may look at one of those who share it may look at all.
    let program = |tid: i32| fs::read_link(format!("/proc/{tid}/exe"));
    match (program(a), program(b)) {
        (Ok(a), Ok(b)) if a == b => None,
        (Ok(_), _) => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_memory_and_processes_do_not() {
        let pid = std::process::id() as i32;
        // SAFETY: plain call.
        let tid = unsafe { libc::gettid() };
        assert_ne!(same(pid, tid), Some(false), "threads of one process");
        // SAFETY: plain call.
        let parent = unsafe { libc::getppid() };
        assert_eq!(same(pid, parent), Some(false), "cargo is another program");
        assert_ne!(shares_memory(pid, tid), Some(true));
    }
}
