//! The threads that could end a wait.
//!
//! Owns: [`wakers`], by what a thread waits in and the holders, and [`chain_end`], which follows
//! holders of locks. Promises: where it cannot be known it says [`Wakers::World`]: nothing is
//! concluded from a guess at the threads there. Pure.

use crate::facts::{Access, Ends, Facts, Id, Peer, Runtime, Thread, Unsure, WaitFacts};
use crate::history::futex_op;
use std::collections::BTreeSet;

/// All threads that could end a wait.
#[derive(Clone, Debug, PartialEq)]
pub enum Wakers {
    /// They are not known.
    World,
    /// Nobody but these: threads, and all threads of processes but the one that waits.
    Only {
        /// Single threads.
        threads: Vec<Id>,
        /// Whole processes.
        processes: Vec<i32>,
        /// What the wait is for.
        how: How,
    },
}

/// What a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// A lock, by its address, whose memory names this owner; `lives` unless that one has ended.
    Lock {
        /// Address of the lock's word.
        at: u64,
        /// Thread; of one that is not seen the id that the lock names, of the process' own
        /// namespace.
        owner: i32,
        /// Whether a thread of that id lives.
        lives: bool,
        /// The owner waits for it itself, or has ended, and any other thread could unlock it: its
        /// kind does not check that.
        is_open: bool,
    },
    /// A lock of a runtime's own, whose memory names the holder.
    Held {
        /// Whose kind it is of.
        by: Runtime,
        /// Its address.
        at: u64,
        /// The thread that holds it.
        owner: i32,
        /// The owner waits for it itself, and any other thread could release it.
        is_open: bool,
    },
    /// A lock that was held when the process was forked, by a thread that the process does not
    /// have.
    ForkedLock {
        /// Address.
        at: u64,
        /// Thread, as the lock names it.
        owner: i32,
    },
    /// The end of a thread.
    Join(i32),
    /// A word in memory.
    Word(u64),
    /// Bytes from a descriptor.
    Read(i32),
    /// Room in a descriptor.
    Write(i32),
    /// A lock on a file.
    FileLock(i32),
    /// A child.
    Child,
    /// Several descriptors.
    Events,
}

impl How {
    /// Whether the holder's name stands where the program or the kernel keeps it.
    pub fn is_exact(self) -> bool {
        matches!(self, How::Lock { .. } | How::Held { .. } | How::Join(_))
    }

    /// Whether its owner waits for it itself, or has ended, and any other thread could unlock it.
    pub fn is_open(self) -> bool {
        matches!(self, How::Lock { is_open: true, .. } | How::Held { is_open: true, .. })
    }

    /// Whether it depends on the holders of pipes and sockets.
    pub fn is_by_ends(self) -> bool {
        matches!(self, How::Read(_) | How::Write(_) | How::Events)
    }

    /// Whether a signal's handler in the same process could end it.
    pub fn ends_by_own_handler(self) -> bool {
        matches!(self, How::Word(_) | How::Child)
    }
}

/// Kinds of glibc's mutexes are below this.
const MUTEX_KINDS: u32 = 1024;
/// More threads than this never use one mutex: a word with more is no mutex.
const MUTEX_USERS: u32 = 10_000;
/// Of the kinds of glibc's mutexes, those that only their owner can unlock: recursive and checked
/// ones (the low two bits), robust and priority-inheriting ones.
const CHECKED_KINDS: [u32; 2] = [1, 2];
const CHECKED_FLAGS: u32 = 16 | 32;
/// FUTEX_PRIVATE_FLAG.
const PRIVATE: u64 = 128;
/// A time limit in ms beyond which a wait counts as without one: 24 days.
const FOREVER_MS: u64 = 0x7fff_ffff;

/// The threads that could end the wait of a thread that is known to sleep.
pub fn wakers(facts: &Facts, thread: &Thread) -> Wakers {
    let Some(wait) = &thread.wait else { return Wakers::World };
    let sight = &thread.sight;
    let fd = sight.a0 as i32;
    let pid = thread.id.pid;
    let unsure = facts.processes.get(&pid).map_or(&[][..], |p| &p.unsure);
    // The kernel reads and writes for a ring's owner, and whoever shares the memory could wake any
    // wait.
    if unsure.contains(&Unsure::SharedMemory) || wait.tl {
        return Wakers::World;
    }
    // A runtime's lock is known by the runtime's memory, also where its waiters sleep by the clock
    // in between.
    if let Some((held, at, holder)) = facts.held_lock(thread) {
        let is_open = holder == thread.id && held.by == Runtime::Python;
        return only(vec![holder], How::Held { by: held.by, at, owner: holder.tid, is_open });
    }
    match sight.nr {
        libc::SYS_futex => of_futex(facts, thread, wait),
        libc::SYS_flock | libc::SYS_fcntl => of_file_lock(facts, wait, fd),
        libc::SYS_wait4 | libc::SYS_waitid => {
            let children = facts.processes.iter().filter(|(_, p)| p.parent == pid).map(|(pid, _)| *pid);
            whole(facts, children.collect(), How::Child)
        }
        _ if unsure.contains(&Unsure::IoUring) => Wakers::World,
        libc::SYS_read
        | libc::SYS_pread64
        | libc::SYS_readv
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_preadv => of_descriptor(facts, pid, fd, Access::Read, How::Read(fd)),
        libc::SYS_write
        | libc::SYS_pwrite64
        | libc::SYS_writev
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_pwritev
        | libc::SYS_sendfile => of_descriptor(facts, pid, fd, Access::Write, How::Write(fd)),
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => {
            if wait.a[3] as i32 != -1 {
                return Wakers::World;
            }
            let list = wait.ep.iter().flatten().map(|&(fd, events)| (fd, events));
            of_events(facts, pid, list.collect())
        }
        libc::SYS_poll if wait.a[2] & 0xffff_ffff < FOREVER_MS => Wakers::World,
        libc::SYS_poll | libc::SYS_ppoll if wait.to.is_none() => {
            of_events(facts, pid, polled(wait.pf.as_deref().unwrap_or_default()))
        }
        _ => Wakers::World,
    }
}

/// The last thread of the chain of holders that a thread waits in: itself if its holder is not
/// known, nothing for a ring.
pub fn chain_end<'a>(facts: &'a Facts, thread: &'a Thread) -> Option<&'a Thread> {
    let (mut seen, mut at) = (BTreeSet::new(), thread);
    while at.sleeps() {
        let Wakers::Only { threads, how, .. } = wakers(facts, at) else { break };
        let ([next], true) = (&threads[..], how.is_exact()) else { break };
        seen.insert(at.id);
        if seen.contains(next) {
            return None;
        }
        let Some(next) = facts.threads.get(next) else { break };
        at = next;
    }
    Some(at)
}

fn of_futex(facts: &Facts, thread: &Thread, wait: &WaitFacts) -> Wakers {
    let (sight, pid) = (&thread.sight, thread.id.pid);
    let op = futex_op(sight);
    if !matches!(op, 0 | 9) || sight.a3 != 0 {
        return Wakers::World;
    }
    let Some([word, owner, users, kind]) = wait.words() else { return Wakers::World };
    let is_private = sight.a1 & PRIVATE != 0;
    let is_mutex = op == 0 && sight.a2 == 2 && kind < MUTEX_KINDS && (1..MUTEX_USERS).contains(&users) && owner != 0;
    if is_mutex && word == 2 {
        let owner = owner as i32;
        let at = sight.a0;
        let own = facts.named_by(pid, owner);
        let other = || facts.threads.keys().find(|id| id.tid == owner).copied();
        let is_checked = CHECKED_KINDS.contains(&(kind & 3)) || kind & CHECKED_FLAGS != 0;
        // In this process the thread that unlocks need not be the one that locked.
        if !is_checked && facts.processes.get(&pid).is_some_and(|p| p.has_gates) {
            return Wakers::World;
        }
        let lock = |owner, lives, is_open: bool| How::Lock { at, owner, lives, is_open: is_open && !is_checked };
        return match own {
            Some(id) => only(vec![id], lock(id.tid, true, id == thread.id)),
            // A lock of this process' memory alone: it came with the memory of the process that
            // forked it. The copy of the thread that forked is the process' first one: it may give
            // back what that held. The one that forked may have ended, or not be watched: threads
            // of a process have later ids than it has.
            None if is_private && (other().is_some() || wait.alive || owner < facts.own_id(pid)) => {
                let copy = Id { pid, tid: pid };
                only(if thread.id == copy { Vec::new() } else { vec![copy] }, How::ForkedLock { at, owner })
            }
            None if is_private => only(Vec::new(), lock(owner, false, true)),
            None => match other() {
                Some(id) => only(vec![id], lock(id.tid, true, false)),
                None if wait.alive => Wakers::World,
                None => only(Vec::new(), lock(owner, false, true)),
            },
        };
    }
    if op == 9
        && sight.a2 == u64::from(word)
        && word as i32 != thread.id.tid
        && let Some(id) = facts.named_by(pid, word as i32)
    {
        return only(vec![id], How::Join(id.tid));
    }
    // A word that changed is a wake-up that may be on its way; a shared one may be anybody's.
    if u64::from(word) != sight.a2 & 0xffff_ffff || !is_private {
        return Wakers::World;
    }
    whole(facts, vec![pid], How::Word(sight.a0))
}

fn of_file_lock(facts: &Facts, wait: &WaitFacts, fd: i32) -> Wakers {
    match &wait.lk {
        Some(holders) if !holders.is_empty() => whole(facts, holders.clone(), How::FileLock(fd)),
        _ => Wakers::World,
    }
}

fn of_descriptor(facts: &Facts, pid: i32, fd: i32, access: Access, how: How) -> Wakers {
    let Some(ends) = facts.ends.as_ref() else { return Wakers::World };
    match holders(ends, pid, fd, access) {
        Some(holders) => whole(facts, holders, how),
        None => Wakers::World,
    }
}

/// Processes at the other end of a descriptor; nothing if they cannot be known.
fn holders(ends: &Ends, pid: i32, fd: i32, access: Access) -> Option<Vec<i32>> {
    if ends.flying || !ends.hidden.is_empty() {
        return None;
    }
    let link = ends.link(pid, fd)?;
    if link.starts_with("pipe:") {
        let other = if access == Access::Read { Access::Write } else { Access::Read };
        return Some(ends.holders(link, other));
    }
    if let Some(inode) = link.strip_prefix("socket:[").and_then(|l| l.strip_suffix(']')) {
        let Peer::Socket(peer) = ends.peer(inode.parse().ok()?) else { return None };
        return Some(ends.holders(&format!("socket:[{peer}]"), access));
    }
    (link == "anon_inode:[eventfd]").then(|| vec![pid])
}

/// Descriptors of a `poll` with the events each is watched for.
fn polled(bytes: &[u8]) -> Vec<(i32, u32)> {
    let one = |b: &[u8]| {
        let fd = i32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        (fd, u32::from(u16::from_le_bytes([b[4], b[5]])))
    };
    bytes.chunks_exact(8).map(one).filter(|(fd, _)| *fd >= 0).collect()
}

fn of_events(facts: &Facts, pid: i32, list: Vec<(i32, u32)>) -> Wakers {
    let Some(ends) = facts.ends.as_ref() else { return Wakers::World };
    let (input, output) = (libc::POLLIN as u32, libc::POLLOUT as u32);
    let mut all = Vec::new();
    let mut any = false;
    for (fd, events) in list {
        for (bit, access) in [(input, Access::Read), (output, Access::Write)] {
            if events & bit != 0 {
                any = true;
                let Some(holders) = holders(ends, pid, fd, access) else { return Wakers::World };
                all.extend(holders);
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    if any { whole(facts, all, How::Events) } else { Wakers::World }
}

fn only(threads: Vec<Id>, how: How) -> Wakers {
    Wakers::Only { threads, processes: Vec::new(), how }
}

/// All threads of these processes, if each is watched; else any thread of the machine may wake it.
fn whole(facts: &Facts, processes: Vec<i32>, how: How) -> Wakers {
    let is_watched = |pid: &i32| facts.processes.get(pid).is_some_and(|p| !p.threads.is_empty());
    if !processes.is_empty() && processes.iter().all(is_watched) {
        Wakers::Only { threads: Vec::new(), processes, how }
    } else {
        Wakers::World
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Record, Sight};

    #[test]
    fn the_owner_of_a_lock_in_another_namespace_is_named_as_its_thread_is() {
        let mut facts = Facts::default();
        let sight = |tid: i32, inner| {
            let wait = Sight { nr: libc::SYS_futex, a0: 0x1010, a1: 128, a2: 2, ..Sight::default() };
            Record::Thread(Sight { t: 1.0, p: 100, i: tid, ni: Some(inner), st: 'S', ..wait })
        };
        facts.take(&sight(100, 1));
        facts.take(&sight(101, 2));
        let words = [0u8; 16].into_iter().chain([2, 0, 2, 1, 0].map(|w: i32| w.to_le_bytes()).into_iter().flatten());
        let (a, w) = ([0x1010, 128, 2, 0, 0, 0], Some(words.collect()));
        let wait = WaitFacts { t: 1.0, p: 100, i: 100, nr: libc::SYS_futex, a, w, ..WaitFacts::default() };
        facts.take(&Record::Wait(wait));
        let waiter = &facts.threads[&Id { pid: 100, tid: 100 }];
        let Wakers::Only { threads, how: How::Lock { owner, .. }, .. } = wakers(&facts, waiter) else {
            panic!("a lock with an owner")
        };
        assert_eq!((threads, owner), (vec![Id { pid: 100, tid: 101 }], 101));
    }
}
