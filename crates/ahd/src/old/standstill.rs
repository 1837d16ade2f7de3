//! Processes that wait for each other, by pipes, sockets and the ends of children, and nobody else is left to wake one of them.
//!
//! Owns: the set of processes around a thread that waits for another process. It is closed: whoever could end a wait of one of its threads
//! is in it, so once all of them sleep at one moment none ever gets on. Promises: that moment is proven, not guessed: every thread of every
//! process was found asleep in such a wait twice and had not run from the look before to after the second time, and in between each pipe
//! and socket was empty for who reads and full for who writes. Reads the calls of the first process' threads before anything dearer; one set is bounded by
//! [`PROCESSES`] and [`THREADS`]. Refuses: a set of which one process is not watched or may be woken from outside, by a signal that it catches, a timer, an event, a
//! wait with a time limit, memory it shares, a file system that is served through the pipe; sets where a hang was told already.

use crate::Ahd;
use crate::event::Edge;
use crate::old::blocked::{Verdict, frozen, price_of};
use crate::old::common_memory::shares_memory;
use crate::old::describe::words;
use crate::old::proc::{self, Dir, Sched};
use crate::old::sight::{Sight, sight};
use crate::old::signals::{Handlers, handlers};
use orbit_inspect::Sure;
use orbit_inspect::waits::{Direction, Ends, FutexKind, FutexWait, Key, Owner, Wait};
use orbit_linux::{pidfd, poll};
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Processes of a set.
const PROCESSES: usize = 32;
/// Their threads.
const THREADS: usize = 256;

/// A thread of a set, and what it sleeps in.
#[derive(Debug, PartialEq)]
struct Member {
    pid: i32,
    tid: i32,
    sched: Sched,
    wait: Wait,
    /// Processes of which one has to get on before this thread does.
    wakers: Vec<i32>,
}

impl Ahd {
    /// Whether this thread and those of other processes wait for each other, and nobody is left to wake them.
    pub(crate) fn standstill(&mut self, pid: i32, tid: i32) -> Option<Verdict> {
        let call = self.processes.get(&pid)?.dir.call(tid).ok()??;
        let start = Instant::now();
        if !waits_for_process(call.nr) || start < self.processes.get(&pid)?.ask_others_from {
            return None;
        }
        // Who holds what may be known from a moment ago: most sets are no hang by that already. It has a pace of its own.
        let kept = self.ends.take();
        let keeps = kept.is_some();
        let mut ends = kept.unwrap_or_default();
        let before = ends.price();
        let verdict = self.stands_still(pid, tid, &mut ends);
        let read = ends.price() - before;
        self.ends = keeps.then_some(ends);
        if let (None, Some(p)) = (&verdict, self.processes.get_mut(&pid)) {
            p.ask_others_from = Instant::now() + price_of(start.elapsed().saturating_sub(read));
        }
        verdict
    }

    fn stands_still(&mut self, pid: i32, tid: i32, ends: &mut Ends) -> Option<Verdict> {
        let all = self.closed_set(pid, ends)?;
        let cycle = cycle(&all, all.iter().position(|m| m.tid == tid)?)?;
        let pids: BTreeSet<i32> = all.iter().map(|m| m.pid).collect();
        let mut sure = self.left_alone(&all, &pids)?;
        let mut unseen = false;
        for m in &all {
            sure = sure.min(shut(m)?);
            if matches!(m.wait, Wait::Futex(_)) {
                let shared = shares_memory(m.pid, m.tid);
                if shared == Some(true) {
                    return None;
                }
                unseen |= shared.is_none();
                sure = sure.min(Sure::Likely);
            }
        }
        if self.closed_set(pid, &mut Ends::default())? != all {
            return None;
        }
        let of: Vec<i32> = cycle.iter().map(|&i| all[i].tid).collect();
        let mut why = format!(
            "{} threads of {} processes wait for each other, and nobody is left to wake them",
            of.len(),
            cycle.iter().map(|&i| all[i].pid).collect::<BTreeSet<_>>().len()
        );
        for (n, &i) in cycle.iter().enumerate() {
            let m = &all[i];
            why += if n == 0 { ": " } else { "; " };
            why += &format!("thread {} ", m.tid);
            if m.tid != m.pid {
                why += &format!("of process {} ", m.pid);
            }
            why += &words(&m.wait);
        }
        if unseen {
            why += "; whether another process shares their memory cannot be seen";
            sure = Sure::Guess;
        }
        let edges = cycle.iter().enumerate().map(|(n, &i)| Edge {
            pid: all[i].pid,
            tid: all[i].tid,
            waits_for: words(&all[i].wait),
            held_by: of[(n + 1) % of.len()],
            sure,
        });
        let edges: Vec<Edge> = edges.collect();
        let in_cycle = edges[1..].iter().map(|e| (e.pid, e.tid));
        let beside = all.iter().filter(|m| !of.contains(&m.tid)).map(|m| (m.pid, m.tid));
        let others = in_cycle.chain(beside).collect();
        let allowed = self.config.hopeless();
        Some(Verdict { why, of: tid, sure, others, cycle: edges, allowed, joint: true })
    }

    /// The processes that could wake threads of this one, those that could wake theirs, and so on: their threads, by process and id, if each of
    /// them sleeps in a wait that only one of these can end.
    fn closed_set(&mut self, pid: i32, ends: &mut Ends) -> Option<Vec<Member>> {
        let (mut pids, mut all) = (vec![pid], Vec::new());
        let mut done = 0;
        while let Some(&pid) = pids.get(done) {
            done += 1;
            let members = self.asleep(pid, ends)?;
            for &p in members.iter().flat_map(|m| &m.wakers) {
                if !pids.contains(&p) {
                    pids.push(p);
                }
            }
            all.extend(members);
            if pids.len() > PROCESSES || all.len() > THREADS {
                return None;
            }
        }
        all.sort_by_key(|m| (m.pid, m.tid));
        (pids.len() > 1).then_some(all)
    }

    /// The threads of one process, if all sleep, have done so for long, and in waits that end by a known process only.
    fn asleep(&mut self, pid: i32, ends: &mut Ends) -> Option<Vec<Member>> {
        let hopeless = self.config.hopeless();
        let p = self.processes.get_mut(&pid)?;
        let mut sleeping = Vec::new();
        // What costs little comes first: nearly all are given up here.
        for tid in p.dir.tids().ok()? {
            let status = p.dir.status(tid)?;
            if matches!(status.state, b'Z' | b'X') {
                continue;
            }
            let t = p.threads.get(&tid)?;
            let told = t.told.is_some() || t.involved.is_some() || t.in_ring;
            if told || t.still < hopeless || status.state != b'S' || status.tracer != 0 || frozen(p, tid) {
                return None;
            }
            let call = p.dir.call(tid).ok()??;
            if call.nr != libc::SYS_futex && !waits_for_process(call.nr) {
                return None;
            }
            sleeping.push((tid, t.sched));
            if sleeping.len() > THREADS {
                return None;
            }
        }
        let mut members = Vec::new();
        for (tid, sched) in sleeping {
            let wait = p.waits()?.wait_of_by(tid, ends);
            let wakers = wakers(pid, &p.dir, &wait, ends)?;
            // Asleep after all of that, and it has not been on a CPU since the look.
            if proc::sched(&p.dir.file(format_args!("task/{tid}/schedstat")).ok()?)? != sched {
                return None;
            }
            members.push(Member { pid, tid, sched, wait, wakers });
        }
        (!members.is_empty()).then_some(members)
    }

    /// How sure it is that nobody outside of the set wakes one of it, by a signal, by a pipe or socket that it holds as well; nothing if somebody may.
    fn left_alone(&self, all: &[Member], pids: &BTreeSet<i32>) -> Option<Sure> {
        let mut sure = Sure::Certain;
        // A child that is not of the set ends by itself, and its parent may do something then; so does who traces another process.
        let mut with_children = BTreeSet::new();
        for kin in kin() {
            if all.iter().any(|m| m.tid == kin.tracer) {
                return None;
            }
            if pids.contains(&kin.parent) && !pids.contains(&kin.pid) {
                with_children.insert(kin.parent);
            }
        }
        for &pid in pids {
            let p = self.processes.get(&pid)?;
            let mut status = p.dir.status(all.iter().find(|m| m.pid == pid)?.tid)?;
            if !with_children.contains(&pid) {
                status.caught &= !(1 << (libc::SIGCHLD - 1));
            }
            // The kernel lists timers that send signals where it can be checkpointed.
            let timers = p.dir.text(format_args!("timers")).is_ok_and(|t| !t.is_empty());
            match handlers(pid, &status, false) {
                Handlers::None => {}
                // Somebody at a terminal may be what Python waits for.
                Handlers::OfRuntimes => sure = Sure::Likely,
                Handlers::MayWake => return None,
            }
            if timers || serves_a_file_system(pid, all)? {
                return None;
            }
        }
        match sight(&pids.iter().copied().collect::<Vec<_>>()) {
            Sight::Whole => Some(sure),
            Sight::Strangers => Some(Sure::Likely),
            Sight::Doubtful => None,
        }
    }
}

/// Whether a call may wait for another process, and for nothing else once it is known what its descriptor is.
pub(crate) fn waits_for_process(nr: i64) -> bool {
    matches!(
        nr,
        libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_wait4
            | libc::SYS_waitid
    )
}

/// The processes of which one has to get on before this wait ends; nothing if it may end in another way.
fn wakers(pid: i32, dir: &Dir, wait: &Wait, ends: &mut Ends) -> Option<Vec<i32>> {
    let mut pids = match wait {
        Wait::Futex(f) if !f.call.timed && (matches!(f.key, Key::Private { .. }) || joins(f, pid)) => vec![pid],
        // One that has lost its name is not looked for by its number.
        Wait::Pipe { fd, ino, peers, named: false, .. } if dir.fd(*fd as u64)? == format!("pipe:[{ino}]") => {
            peers.clone()
        }
        // Whoever has the same side may shut it.
        Wait::Socket { ino, peers, .. } if !peers.is_empty() => [ends.of_socket(*ino), peers.clone()].concat(),
        Wait::Child { pids } => pids.clone(),
        _ => return None,
    };
    pids.sort_unstable();
    pids.dedup();
    (!pids.is_empty()).then_some(pids)
}

/// Whether it waits for the end of a thread of its own process.
fn joins(wait: &FutexWait, own: i32) -> bool {
    matches!(wait.kind, FutexKind::Join(Owner::Thread { pid, .. }) if pid == own)
}

/// From one thread to one that it waits for, until that closes: the threads of the cycle, from this one on. Nothing if it leads to a cycle
/// without this one, or within one process, which is told of that.
fn cycle(all: &[Member], first: usize) -> Option<Vec<usize>> {
    let next = |at: usize| {
        let m = &all[at];
        let others = (0..all.len()).filter(|&i| i != at && m.wakers.contains(&all[i].pid));
        // Other processes first, and their threads that wait for other processes.
        others.min_by_key(|&i| (all[i].pid == m.pid, matches!(all[i].wait, Wait::Futex(_))))
    };
    let mut way = vec![first];
    loop {
        let at = next(*way.last()?)?;
        if at == first {
            break;
        }
        if way.contains(&at) {
            return None;
        }
        way.push(at);
    }
    way.iter().any(|&i| all[i].pid != all[first].pid).then_some(way)
}

/// How sure it is that the pipe or socket keeps this thread waiting; nothing if it does not, or may do so for a limited time.
fn shut(m: &Member) -> Option<Sure> {
    let (fd, reads, socket) = match &m.wait {
        Wait::Pipe { fd, direction, .. } => (*fd, *direction == Direction::Read, false),
        Wait::Socket { fd, call, .. } => (*fd, matches!(*call, "read" | "readv" | "recvfrom" | "recvmsg"), true),
        _ => return Some(Sure::Certain),
    };
    let Some(end) = end(m.pid, fd) else {
        // A thread does not sleep at a pipe that has what it wants; but a socket may have a time limit.
        return (!socket).then_some(Sure::Likely);
    };
    if socket && !waits_without_limit(&end) {
        return None;
    }
    let events = if reads { libc::POLLIN } else { libc::POLLOUT };
    let mut asked = [libc::pollfd { fd: end.as_raw_fd(), events, revents: 0 }];
    (poll::poll(&mut asked, Some(Duration::ZERO)).ok()? == 0).then_some(Sure::Certain)
}

/// A descriptor of another process, for a moment; close-on-exec. It changes nothing of the file.
fn end(pid: i32, fd: i32) -> Option<OwnedFd> {
    pidfd::duplicate(pidfd::open(pid).ok()?.as_fd(), fd).ok()
}

/// Whether it is a unix socket whose two sides are bound to each other, and calls on it have no time limit.
fn waits_without_limit(socket: &OwnedFd) -> bool {
    let kind = || Some((option::<i32>(socket, libc::SO_DOMAIN)?, option::<i32>(socket, libc::SO_TYPE)?));
    let unlimited = |name| option::<[i64; 2]>(socket, name) == Some([0, 0]);
    matches!(kind(), Some((libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_SEQPACKET)))
        && unlimited(libc::SO_RCVTIMEO)
        && unlimited(libc::SO_SNDTIMEO)
}

/// An option of a socket that is made of whole numbers; nothing if it has another size.
fn option<T: Copy + Default>(socket: &OwnedFd, name: i32) -> Option<T> {
    let mut value = T::default();
    let size = size_of::<T>() as libc::socklen_t;
    let mut len = size;
    // SAFETY: `value` has room for `len` bytes, and any bytes are one of the integers it is made of.
    let ok =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len) };
    (ok == 0 && len == size).then_some(value)
}

/// Whether the kernel itself may write to one of their pipes: for a file system that a process serves through a descriptor. Nothing if that cannot be seen.
fn serves_a_file_system(pid: i32, all: &[Member]) -> Option<bool> {
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).ok()?;
    let pipes: Vec<String> = all
        .iter()
        .filter_map(|m| match m.wait {
            Wait::Pipe { ino, .. } => Some(format!("pipe_ino={ino}")),
            _ => None,
        })
        .collect();
    let served = |line: &str| {
        let Some((_, of)) = line.split_once(" - ") else { return false };
        let mut options = of.split([' ', ',']);
        of.starts_with("9p ") && of.contains("trans=fd")
            || of.starts_with("autofs ") && options.any(|o| pipes.iter().any(|p| p == o))
    };
    Some(mounts.lines().any(served))
}

/// Who made and who traces a process.
struct Kin {
    pid: i32,
    parent: i32,
    tracer: i32,
}

/// Of all processes that have not ended.
fn kin() -> Vec<Kin> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    let of = |pid: i32| {
        let dir = Dir::open(pid).ok()?;
        let text = dir.text(format_args!("status")).ok()?;
        let field = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        // The first thread may have ended before others.
        let ended = field("State")?.starts_with(['Z', 'X']) && dir.count() == Some(1);
        (!ended).then_some(Kin { pid, parent: field("PPid")?.parse().ok()?, tracer: field("TracerPid")?.parse().ok()? })
    };
    names.filter_map(|e| of(e.file_name().to_str()?.parse().ok()?)).collect()
}
