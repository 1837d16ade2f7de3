//! Locks on files: who holds one that a process waits for, from `/proc/locks`.

use crate::procfs;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Processes that hold a lock on the file behind a descriptor of a process that waits for one;
/// nothing if that is not known: of locks of open files (`F_OFD_SETLK`) the kernel names no
/// process, and one of `flock` may be held by who inherited it.
pub fn holders(pid: i32, fd: i32) -> Option<Vec<i32>> {
    let inode = fs::metadata(format!("/proc/{pid}/fd/{fd}")).ok()?.ino();
    let text = procfs::text("/proc/locks").ok()?;
    let holder = blocker(&text, pid, inode)?;
    let has_it =
        |p: i32| procfs::text(format!("/proc/{p}/fdinfo/{fd}")).is_ok() || fs::metadata(format!("/proc/{p}")).is_ok();
    if holder.taker <= 0 || !has_it(holder.taker) {
        return None;
    }
    if !holder.is_flock {
        return Some(vec![holder.taker]);
    }
    // Whoever has a descriptor of the same open file holds it too.
    let mut all: Vec<i32> = procfs::ids("/proc").into_iter().filter(|p| shows_lock(*p, inode)).collect();
    if all.is_empty() {
        all.push(holder.taker);
    }
    // It may have changed hands meanwhile, even to the one that waited.
    let now = blocker(&procfs::text("/proc/locks").ok()?, pid, inode)?;
    (now.taker == holder.taker).then_some(all)
}

struct Holder {
    taker: i32,
    is_flock: bool,
}

/// The lock in the way of a waiter: the kernel lists waiters behind it, with its number and an
/// arrow.
fn blocker(text: &str, waiter: i32, inode: u64) -> Option<Holder> {
    let mut held: Option<(&str, Holder)> = None;
    for line in text.lines() {
        let mut f: Vec<&str> = line.split_whitespace().collect();
        let waits = f.get(1) == Some(&"->");
        if waits {
            f.remove(1);
        }
        let (Some(number), Some(kind)) = (f.first().copied(), f.get(1).copied()) else { continue };
        let Some(pid) = f.get(4).and_then(|p| p.parse().ok()) else { continue };
        if !waits {
            held = Some((number, Holder { taker: pid, is_flock: kind == "FLOCK" }));
        } else if pid == waiter && f.get(5).and_then(|d| d.rsplit(':').next()?.parse().ok()) == Some(inode) {
            return held.filter(|(of, _)| *of == number).map(|(_, holder)| holder);
        }
    }
    None
}

/// Whether a descriptor of the process shows that it holds a `flock` on the file.
fn shows_lock(pid: i32, inode: u64) -> bool {
    let end = format!(":{inode} ");
    procfs::ids(format!("/proc/{pid}/fdinfo")).into_iter().any(|fd| {
        let text = procfs::text(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
        text.lines().any(|l| l.starts_with("lock:") && l.contains(" FLOCK ") && l.contains(&end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn the_holder_stands_above_the_waiter() {
        let text = "1: FLOCK  ADVISORY  WRITE 10 08:01:77 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 11 08:01:77 0 EOF\n\
                    2: OFDLCK ADVISORY  WRITE -1 08:01:78 0 EOF\n2: -> POSIX  ADVISORY  WRITE 12 08:01:78 0 EOF\nrubbish\n";
        let taker = |waiter, inode| blocker(text, waiter, inode).map(|h| h.taker);
        assert_eq!((taker(11, 77), taker(12, 78), taker(13, 77), taker(11, 78)), (Some(10), Some(-1), None, None));
    }

    #[test]
    fn a_held_flock_shows() {
        let name = std::env::temp_dir().join(format!("orbit-locks-{}", std::process::id()));
        let file = fs::File::create(&name).expect("a file");
        let inode = file.metadata().expect("a file").ino();
        let pid = std::process::id() as i32;
        let before = shows_lock(pid, inode);
        // SAFETY: a plain call on a descriptor of our own.
        let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
        let after = shows_lock(pid, inode);
        fs::remove_file(&name).expect("removed");
        assert_eq!((before, locked, after), (false, 0, true));
    }
}
