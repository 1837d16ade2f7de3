//! Locks on files: the holder of one that a process waits for, from `/proc/locks`; and locks that
//! show whether a process lives, whatever PID namespace it is in.

use crate::stat::Stat;
use crate::{check_int, procfs};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

/// Has this process hold a lock of one byte of a file, until it ends, or closes any descriptor of
/// that file. Needs a descriptor that can be written.
///
/// # Errors
/// `EAGAIN`: another process holds it.
pub fn set(fd: BorrowedFd<'_>, at: i64) -> io::Result<()> {
    let lock = byte(at);
    // SAFETY: the structure outlives the call.
    check_int(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLK, &raw const lock) }).map(|_| ())
}

/// Whether another process holds the lock of this byte of the file.
///
/// # Errors
/// Those of `fcntl(F_GETLK)`.
pub fn is_held(fd: BorrowedFd<'_>, at: i64) -> io::Result<bool> {
    let mut lock = byte(at);
    // SAFETY: the structure outlives the call, which fills it.
    check_int(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETLK, &raw mut lock) })?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

fn byte(at: i64) -> libc::flock {
    let (kind, whence) = (libc::F_WRLCK as libc::c_short, libc::SEEK_SET as libc::c_short);
    libc::flock { l_type: kind, l_whence: whence, l_start: at, l_len: 1, l_pid: 0 }
}

/// Processes that hold a lock on the file behind a descriptor of a process that waits for one;
/// nothing if that is not known: of locks of open files (`F_OFD_SETLK`) the kernel names no
/// process. A `flock` is held by whoever has the open file, also after the process that took it
/// has exited (`flock 9` in a shell's script).
pub fn holders(pid: i32, fd: i32) -> Option<Vec<i32>> {
    let inode = fs::metadata(format!("/proc/{pid}/fd/{fd}")).ok()?.ino();
    let text = procfs::text("/proc/locks").ok()?;
    let holder = blocker(&text, pid, inode)?;
    let lives = holder.taker > 0 && fs::metadata(format!("/proc/{}", holder.taker)).is_ok();
    if !holder.is_flock {
        return lives.then(|| vec![holder.taker]);
    }
    // Whoever has a descriptor of the same open file holds it too.
    let (mut all, mut unseen) = (Vec::new(), Vec::new());
    for pid in procfs::ids("/proc") {
        match shows_lock(pid, inode) {
            Some(true) => all.push(pid),
            Some(false) => {}
            None => unseen.push(pid),
        }
    }
    // Without its taker a child that may not be seen, or a parent, may have it as well.
    let may_share = |p: &i32| all.iter().any(|holder| descends(*p, *holder) || *p != 1 && descends(*holder, *p));
    if !lives && (all.is_empty() || unseen.iter().any(may_share)) {
        return None;
    }
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

/// The lock that blocks a waiter: the kernel lists waiters behind it, with its number and an
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

/// Whether a process is a child of another, or a child's child, as far as their parents live.
fn descends(mut pid: i32, ancestor: i32) -> bool {
    for _ in 0..1000 {
        match Stat::of(pid) {
            Ok(stat) if stat.parent == ancestor => return true,
            Ok(stat) if stat.parent > 1 => pid = stat.parent,
            _ => break,
        }
    }
    false
}

/// Whether a descriptor of the process shows that it holds a `flock` on the file; nothing if that
/// may not be seen.
fn shows_lock(pid: i32, inode: u64) -> Option<bool> {
    let end = format!(":{inode} ");
    let descriptors = match fs::read_dir(format!("/proc/{pid}/fdinfo")) {
        Err(e) if e.kind() == ErrorKind::PermissionDenied => return None,
        all => all,
    };
    Some(descriptors.into_iter().flatten().flatten().any(|fd| {
        let text = procfs::text(fd.path()).unwrap_or_default();
        text.lines().any(|l| l.starts_with("lock:") && l.contains(" FLOCK ") && l.contains(&end))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn the_holder_stands_above_the_waiter() {
        let text = "1: FLOCK  ADVISORY  WRITE 10 08:01:77 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 11 08:01:77 0 EOF\n\
                    2: OFDLCK ADVISORY  WRITE -1 08:01:78 0 EOF\n2: -> POSIX  ADVISORY  WRITE 12 08:01:78 0 \
                    EOF\nrubbish\n";
        let taker = |waiter, inode| blocker(text, waiter, inode).map(|h| h.taker);
        assert_eq!((taker(11, 77), taker(12, 78), taker(13, 77), taker(11, 78)), (Some(10), Some(-1), None, None));
    }

    #[test]
    fn a_lock_shows_whether_its_process_lives() {
        let name = std::env::temp_dir().join(format!("orbit-locks-lives-{}", std::process::id()));
        let file = fs::File::options().read(true).write(true).create(true).truncate(true).open(&name).expect("a file");
        fs::remove_file(&name).expect("removed");
        let held = || is_held(file.as_fd(), 7).expect("asked");
        let mut sleeper = Command::new("sleep");
        let number = file.as_raw_fd();
        // SAFETY: the closure makes system calls, on a descriptor that the child inherits.
        unsafe {
            sleeper.arg("60").pre_exec(move || {
                crate::descriptors::inherit(number)?;
                set(BorrowedFd::borrow_raw(number), 7)
            });
        }
        let mut sleeper = sleeper.spawn().expect("a process");
        let while_it_lives = (held(), set(file.as_fd(), 7).is_err(), is_held(file.as_fd(), 6).expect("asked"));
        sleeper.kill().expect("killed");
        sleeper.wait().expect("its end");
        assert_eq!((while_it_lives, held()), ((true, true, false), false), "over exec, and until its end");
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
        assert_eq!((before, locked, after), (Some(false), 0, Some(true)));
    }

    /// `flock 9` in a script: the command that took the lock has exited, the script has it.
    #[test]
    fn a_flock_whose_taker_has_exited_is_held_by_processes_with_the_file() {
        if !procfs::in_first_pid_namespace() {
            println!("SKIP: /proc/locks of another PID namespace leaves out locks without a taker");
            return;
        }
        let name = std::env::temp_dir().join(format!("orbit-locks-left-{}", std::process::id()));
        // The last line is not the last command, so that the shell stays.
        let script = format!("exec 9>{0}; flock 9; flock {0} true; true", name.display());
        let mut shell = Command::new("sh").args(["-c", &script]).process_group(0).spawn().expect("a shell");
        let pid = shell.id() as i32;
        let found = (0..500).find_map(|_| {
            std::thread::sleep(Duration::from_millis(20));
            let children = procfs::text(format!("/proc/{pid}/task/{pid}/children")).ok()?;
            let waiter = children.split_whitespace().next()?.parse().ok()?;
            let own = |fd: &i32| fs::read_link(format!("/proc/{waiter}/fd/{fd}")).is_ok_and(|l| l == name);
            let fd = [3, 4, 5].into_iter().find(own)?;
            Some((holders(waiter, fd)?, waiter))
        });
        // SAFETY: a plain call, for the group of the shell.
        unsafe { libc::kill(-pid, libc::SIGKILL) };
        shell.wait().expect("its end");
        fs::remove_file(&name).expect("removed");
        let (mut found, waiter) = found.expect("holders");
        found.sort_unstable();
        let mut expected = vec![pid, waiter];
        expected.sort_unstable();
        assert_eq!(found, expected, "the shell, and the waiter that inherited the open file");
    }
}
