//! The processes that could end a wait for a descriptor or a child: the other end of a pipe, the
//! holder of a file lock, the children.
//!
//! Promises: reads descriptors by their links in `/proc` and opens none of the files. Refuses:
//! processes this one may not inspect (they are not found, and cannot be distinguished from those
//! that are not there).

use super::Wait;
use super::call::{Call, name};
use super::socket;
use crate::{Memory, procfs};
use orbit_linux::descriptors::cached;
use orbit_linux::procfs::ids;
use orbit_linux::status::Status;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Which way the waiting side of a pipe goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It waits for bytes.
    Read,
    /// It waits for room.
    Write,
}

/// The holders of pipes and sockets, at one moment: when something of it is first asked for it is
/// read for all, and not again. So the waits of many threads are found at the price of one, but
/// what has changed since is not seen.
#[derive(Debug, Default)]
pub struct Ends {
    /// Processes that hold what a link such as `pipe:[1]` stands for, by that, and the modes they
    /// have it open in (of pipes only).
    held: Option<HashMap<String, Vec<(i32, u32)>>>,
    /// The sockets of each network namespace.
    pub(super) sockets: HashMap<String, socket::Table>,
    pub(super) price: Duration,
}

impl Ends {
    /// Processes that have a descriptor of the socket with this inode, sorted.
    pub fn of_socket(&mut self, ino: u64) -> Vec<i32> {
        self.holders(&format!("socket:[{ino}]"), None)
    }

    /// Time that reading it took so far; none as long as nothing was asked for.
    pub fn price(&self) -> Duration {
        self.price
    }

    /// Processes that have a descriptor with this link, sorted; with `writable`, only such as may
    /// be written to (or not).
    pub(super) fn holders(&mut self, link: &str, writable: Option<bool>) -> Vec<i32> {
        if !nameless(link) {
            return holders(link, writable);
        }
        let began = Instant::now();
        let held = self.held.get_or_insert_with(all_held);
        self.price += began.elapsed();
        let may = |mode: u32| writable.is_none_or(|w| mode & need(w) != 0);
        let all = held.get(link).into_iter().flatten();
        let mut pids: Vec<i32> = all.filter(|&&(_, mode)| may(mode)).map(|&(pid, _)| pid).collect();
        pids.dedup();
        pids
    }
}

/// Whether a link is to a pipe or a socket, which only descriptors lead to.
fn nameless(link: &str) -> bool {
    inside(link, "pipe:[").or(inside(link, "socket:[")).is_some()
}

/// All pipes and sockets of all processes; of each the processes are sorted.
fn all_held() -> HashMap<String, Vec<(i32, u32)>> {
    let mut held: HashMap<String, Vec<(i32, u32)>> = HashMap::new();
    for pid in ids("/proc") {
        for e in descriptors(pid) {
            let link = fs::read_link(e.path()).ok().and_then(|l| l.into_os_string().into_string().ok());
            let Some(link) = link.filter(|l| nameless(l)) else {
                continue;
            };
            let mode = if link.starts_with("pipe") { mode(&e) } else { 0 };
            held.entry(link).or_default().push((pid, mode));
        }
    }
    held
}

/// The wait behind a call whose first argument is a descriptor; nothing if it is none, or one of no
/// known kind. Not of `splice`, which may wait for either of two.
pub(super) fn of_descriptor(pid: i32, tid: i32, call: &Call, ends: &mut Ends) -> Option<Wait> {
    let called = name(call.nr)?;
    let direction = match call.nr {
        libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg
        | libc::SYS_accept
        | libc::SYS_accept4 => Direction::Read,
        libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_sendfile
        | libc::SYS_connect => Direction::Write,
        libc::SYS_flock | libc::SYS_fcntl => {
            let fd = call.args[0] as i32;
            let path = link(pid, tid, fd)?;
            // The kernel keeps no process' name for a lock that is an open file's.
            let of_file = call.nr == libc::SYS_fcntl && call.args[1] as i32 == libc::F_OFD_SETLKW;
            let waiter = if of_file { OPEN_FILE } else { pid };
            return Some(Wait::FileLock { owner: lock_owner(pid, tid, fd, waiter, &path), path });
        }
        _ => return None,
    };
    let fd = call.args[0] as i32;
    let link = link(pid, tid, fd)?;
    if let Some(ino) = inside(&link, "socket:[") {
        return Some(socket::wait(tid, fd, ino, called, ends));
    }
    let (ino, named) = match inside(&link, "pipe:[") {
        Some(ino) => (ino, false),
        None => {
            let file = cached(&format!("/proc/{pid}/task/{tid}/fd/{fd}"))?;
            // One that has lost its name nobody can open any more.
            let fifo = u32::from(file.stx_mode) & libc::S_IFMT == libc::S_IFIFO;
            fifo.then_some((file.stx_ino, file.stx_nlink > 0))?
        }
    };
    let peers = ends.holders(&link, Some(direction == Direction::Read));
    Some(Wait::Pipe { fd, ino, direction, peers, named })
}

/// What a descriptor of a thread is a link to.
fn link(pid: i32, tid: i32, fd: i32) -> Option<String> {
    let to = fs::read_link(format!("/proc/{pid}/task/{tid}/fd/{fd}")).ok()?;
    Some(to.to_string_lossy().into_owned())
}

/// The number in `pipe:[123]`.
fn inside(link: &str, prefix: &str) -> Option<u64> {
    link.strip_prefix(prefix)?.strip_suffix(']')?.parse().ok()
}

/// The same of any file, now.
fn holders(link: &str, writable: Option<bool>) -> Vec<i32> {
    let holds = |pid: &i32| {
        descriptors(*pid).any(|e| {
            fs::read_link(e.path()).is_ok_and(|l| l.as_os_str() == link)
                && writable.is_none_or(|w| mode(&e) & need(w) != 0)
        })
    };
    ids("/proc").into_iter().filter(holds).collect()
}

/// How a descriptor is open: its link's own mode says. 0 once it is closed.
fn mode(descriptor: &fs::DirEntry) -> u32 {
    fs::symlink_metadata(descriptor.path()).map_or(0, |m| m.mode())
}

/// The bit of a mode that allows to write, or to read.
fn need(writable: bool) -> u32 {
    if writable { 0o200 } else { 0o400 }
}

/// The descriptors of a process, as entries of a directory of links.
fn descriptors(pid: i32) -> impl Iterator<Item = fs::DirEntry> {
    let list = |pid: i32| fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().peekable();
    let mut all = list(pid);
    // None at all: perhaps its first thread has ended.
    if all.peek().is_none() {
        all = list(procfs::living(pid));
    }
    all
}

/// A process that holds the file lock that a thread waits for.
///
/// The kernel gives a lock of `flock`, or of an open file (`F_OFD_SETLK`), back once nobody has the
/// file open that way any more: it may outlast the process that took it (as `flock 9` in a shell's
/// script does), and another process may have that one's number by now; of an open file's the taker
/// is not known. So the one that took it must be seen to have it still; else it is whoever has
/// it, and where several do, the one the others inherited it from. `waiter`: as whom the kernel
/// knows the one that waits.
fn lock_owner(pid: i32, tid: i32, fd: i32, waiter: i32, path: &str) -> Option<i32> {
    let text = procfs::text("/proc/locks", 16 << 20).ok()?;
    let ino = cached(&format!("/proc/{pid}/task/{tid}/fd/{fd}"))?.stx_ino;
    let lock = match lock_in(&text, waiter, ino) {
        Some(lock) => lock,
        None if waiter == OPEN_FILE || orbit_linux::procfs::in_first_pid_namespace() => return None,
        None => unlisted_lock(&holders(path, None), ino)?,
    };
    let inherited = matches!(lock.line[0].as_str(), "FLOCK" | "OFDLCK");
    if !inherited && lock.taker <= 0 {
        return None;
    }
    if !inherited || lock.taker > 0 && lock.held_by(lock.taker).unwrap_or(true) {
        return Some(lock.taker);
    }
    let mut all = holders(path, None);
    all.retain(|&p| lock.held_by(p) == Some(true));
    let mut first = all.iter().filter(|&&p| parent(p).is_none_or(|p| !all.contains(&p)));
    first.next().filter(|_| first.next().is_none()).copied()
}

/// The process of a lock that belongs to an open file.
const OPEN_FILE: i32 = -1;

/// A lock on a file.
struct Lock {
    /// The process that took it, or [`OPEN_FILE`]; 0 if it cannot be named here.
    taker: i32,
    /// Its line from the kind on, in words.
    line: Vec<String>,
}

impl Lock {
    /// Whether a process has the file open so that it holds the lock; nothing if that may not be
    /// seen.
    fn held_by(&self, pid: i32) -> Option<bool> {
        Some(locks_of(pid)?.contains(&self.line))
    }
}

/// The locks that a process holds by its descriptors, as the kernel writes them in `/proc/locks`,
/// from the kind on; nothing if that may not be seen.
fn locks_of(pid: i32) -> Option<Vec<Vec<String>>> {
    let dir = match fs::read_dir(format!("/proc/{}/fdinfo", procfs::living(pid))) {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => return None,
        dir => dir,
    };
    let texts = dir.into_iter().flatten().flatten().filter_map(|f| fs::read_to_string(f.path()).ok());
    // Behind a number of its own.
    let words = |l: &str| Some(l.strip_prefix("lock:")?.split_whitespace().skip(1).map(str::to_owned).collect());
    Some(texts.flat_map(|text| text.lines().filter_map(words).collect::<Vec<_>>()).collect())
}

/// A lock of a file whose taker has exited. In a PID namespace other than the first `/proc/locks`
/// has neither it nor those that wait for it; those that have the file open show it still.
fn unlisted_lock(holders: &[i32], ino: u64) -> Option<Lock> {
    let is_this = |line: &Vec<String>| {
        let file = line.get(4).and_then(|file| file.rsplit(':').next()?.parse().ok());
        line.first().is_some_and(|kind| kind == "FLOCK")
            && line.get(3).is_some_and(|pid| pid == "0")
            && file == Some(ino)
    };
    let line = holders.iter().filter_map(|pid| locks_of(*pid)).flatten().find(is_this)?;
    Some(Lock { taker: 0, line })
}

/// The lock that one waits for: in the text of `/proc/locks` waiters follow it, with its number and
/// an arrow. Of those that wait for a lock of an open file the kernel does not name them: where
/// they wait for several of one file, it may be any.
fn lock_in(locks: &str, waiter: i32, ino: u64) -> Option<Lock> {
    let mut held: Option<(&str, Lock)> = None;
    let mut found: Option<(&str, Lock)> = None;
    for l in locks.lines() {
        let mut f: Vec<&str> = l.split_whitespace().collect();
        let blocked = f.get(1) == Some(&"->");
        if blocked {
            f.remove(1);
        }
        let (Some(&id), Some(pid), Some(file)) = (f.first(), f.get(4).and_then(|p| p.parse().ok()), f.get(5)) else {
            continue;
        };
        if !blocked {
            held = Some((id, Lock { taker: pid, line: f.split_off(1).into_iter().map(str::to_owned).collect() }));
        } else if pid == waiter && file.rsplit(':').next().and_then(|i| i.parse().ok()) == Some(ino) {
            if found.as_ref().is_some_and(|f| f.0 != id) {
                return None;
            }
            if let Some(lock) = held.take_if(|h| h.0 == id) {
                found = Some(lock);
            }
            if waiter != OPEN_FILE {
                break;
            }
        }
    }
    found.map(|f| f.1)
}

/// The parent of a process.
pub(super) fn parent(pid: i32) -> Option<i32> {
    Status::of(pid).ok()?.parent()
}

/// The children a call waits for: the one it names, if that is there, else all.
pub(super) fn children(pid: i32, call: &Call) -> Vec<i32> {
    let mut all: Vec<i32> = Vec::new();
    let mut is_listed = false;
    for t in ids(format!("/proc/{pid}/task")) {
        if let Ok(text) = procfs::text(&format!("/proc/{pid}/task/{t}/children"), 1 << 20) {
            is_listed = true;
            all.extend(text.split_whitespace().filter_map(|p| p.parse::<i32>().ok()));
        }
    }
    if !is_listed {
        // A kernel without these lists: ask every process for its parent.
        all = ids("/proc");
        all.retain(|&p| parent(p) == Some(pid));
    }
    all.sort_unstable();
    let named = match call.nr {
        libc::SYS_wait4 => Some(call.args[0] as i32),
        libc::SYS_waitid if call.args[0] == u64::from(libc::P_PID) => Some(call.args[1] as i32),
        _ => None,
    };
    match named.filter(|n| all.contains(n)) {
        Some(one) => vec![one],
        None => all,
    }
}

/// Descriptors in the three sets of `select`.
pub(super) fn selected(memory: Memory, args: &[u64; 6]) -> usize {
    let bytes = (args[0] as usize).min(1 << 20).div_ceil(8);
    let mut any = vec![0u8; bytes];
    for &set in &args[1..4] {
        if set != 0 {
            for (a, b) in any.iter_mut().zip(memory.vec(set, bytes)) {
                *a |= b;
            }
        }
    }
    any.iter().map(|b| b.count_ones() as usize).sum()
}

#[cfg(test)]
mod tests {
    use super::{Lock, OPEN_FILE, lock_in};

    #[test]
    fn holder_is_the_lock_above_the_waiter() {
        let text = "1: FLOCK  ADVISORY  WRITE 10 08:01:77 0 EOF\n\
                    1: -> FLOCK  ADVISORY  WRITE 11 08:01:77 0 EOF\n\
                    2: OFDLCK  ADVISORY  WRITE -1 08:01:78 0 EOF\n\
                    2: -> POSIX  ADVISORY  WRITE 12 08:01:78 0 EOF\n\
                    3: OFDLCK  ADVISORY  WRITE -1 08:01:79 0 9\n\
                    3: -> OFDLCK  ADVISORY  WRITE -1 08:01:79 0 9\n\
                    3: -> OFDLCK  ADVISORY  WRITE -1 08:01:79 0 EOF\n\
                    4: OFDLCK  ADVISORY  WRITE -1 08:01:80 0 9\n\
                    4: -> OFDLCK  ADVISORY  WRITE -1 08:01:80 0 9\n\
                    5: POSIX  ADVISORY  WRITE 12 08:01:80 10 19\n\
                    5: -> OFDLCK  ADVISORY  WRITE -1 08:01:80 10 19\n\
                    rubbish\n";
        let taker = |waiter, ino| lock_in(text, waiter, ino).map(|l| l.taker);
        assert_eq!(taker(11, 77), Some(10));
        assert_eq!(taker(12, 78), Some(OPEN_FILE), "an open-file lock has no process");
        assert_eq!(taker(13, 77), None);
        assert_eq!(taker(OPEN_FILE, 79), Some(OPEN_FILE), "whoever waits, it is for this one");
        assert_eq!(taker(OPEN_FILE, 80), None, "it may wait for either");
    }

    #[test]
    fn a_stranger_with_the_number_of_one_that_has_ended() {
        let line = "FLOCK ADVISORY WRITE 10 08:01:77 0 EOF".split(' ').map(str::to_owned).collect();
        let lock = Lock { taker: std::process::id() as i32, line };
        assert_eq!(lock.held_by(lock.taker), Some(false));
    }
}
