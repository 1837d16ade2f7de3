//! What a thread waits for, in words.

use orbit_inspect::Sure;
use orbit_inspect::waits::{Direction, FutexKind, FutexWait, Owner, Wait, call_name};

/// What a thread does, as a clause: `waits for mutex 0x10 held by thread 7`.
pub fn words(wait: &Wait) -> String {
    match wait {
        Wait::Running => "runs, or waits for a CPU".into(),
        Wait::Futex(f) => format!("waits for {}{}", futex(f), limit(f.call.timed)),
        Wait::Pipe { fd, direction, peers, named, .. } => {
            let (does, end) = match direction {
                Direction::Read => ("bytes from", "written"),
                Direction::Write => ("room in", "read"),
            };
            let name = if *named { "named " } else { "" };
            format!("waits for {does} a {name}pipe (descriptor {fd}), which can be {end} by {}", processes(peers))
        }
        Wait::Socket { fd, call, local, remote, peers, .. } => {
            let mut s = format!("waits in {call} on socket {fd}");
            if let Some(l) = local {
                s += &format!(", {l}");
            }
            if let Some(r) = remote {
                s += &format!(", connected to {r}");
            }
            if !peers.is_empty() {
                s += &format!(", other side: {}", processes(peers));
            }
            s
        }
        Wait::FileLock { path, owner: Some(o) } => format!("waits for a lock on file {path} held by process {o}"),
        Wait::FileLock { path, owner: None } => format!("waits for a lock on file {path}"),
        Wait::Child { pids } => format!("waits for a child to end: {}", processes(pids)),
        Wait::Poll { fds, timed } => format!("waits in poll for {fds} descriptors{}", limit(*timed)),
        Wait::Epoll { fds, timed } => format!("waits in epoll for {fds} descriptors{}", limit(*timed)),
        Wait::Sleep => "sleeps".into(),
        Wait::Signal => "waits for a signal".into(),
        Wait::Stopped => "is stopped by a signal".into(),
        Wait::Traced { by } => format!("is stopped by its tracer, process {by}"),
        Wait::Disk { wchan, .. } => format!("is in an uninterruptible wait in the kernel {wchan}"),
        Wait::Other(c) => match call_name(c.nr) {
            Some(name) => format!("waits in {name}"),
            None => format!("waits in system call {}", c.nr),
        },
        Wait::Fault { wchan } => format!("waits in a page fault or the like {wchan}"),
        Wait::Ended => "has ended".into(),
        Wait::Hidden(why) => format!("cannot be seen: {why}"),
    }
}

fn limit(timed: bool) -> &'static str {
    if timed { " with a time limit" } else { "" }
}

fn processes(pids: &[i32]) -> String {
    match pids {
        [] => "no process in sight".into(),
        [one] => format!("process {one} alone"),
        some => {
            let list: Vec<String> = some.iter().take(8).map(i32::to_string).collect();
            let more = if some.len() > 8 { ", ..." } else { "" };
            format!("processes {}{more}", list.join(", "))
        }
    }
}

fn futex(f: &FutexWait) -> String {
    let at = f.lock;
    let by = |o: &Owner, how: &str| match o {
        Owner::Thread { tid, .. } => format!(" {how} thread {tid}"),
        Owner::Gone { tid } => format!(" {how} thread {tid}, which has ended"),
        Owner::Forked { parent, tid } => {
            format!(", which thread {tid} of process {parent} held when this process was forked from it")
        }
        Owner::Unknown => String::new(),
    };
    let mut s = match &f.kind {
        FutexKind::Mutex { owner: Owner::Unknown } => format!("mutex {at:#x}, which keeps no owner"),
        FutexKind::Mutex { owner } => format!("mutex {at:#x}{}", by(owner, "held by")),
        FutexKind::RwLock { writer: Owner::Unknown } => format!("rwlock {at:#x}, perhaps held by readers"),
        FutexKind::RwLock { writer } => format!("rwlock {at:#x}{}", by(writer, "held by writer")),
        FutexKind::Condvar => format!("condition variable {at:#x}"),
        FutexKind::Join(o) => format!("the end of a thread{}", by(o, "by name")).replace(" by name thread", ":"),
        FutexKind::Semaphore => format!("semaphore {at:#x}"),
        FutexKind::Parked => format!("being unparked, futex {at:#x}"),
        FutexKind::GivenUp => "a mutex it can never get (the kernel refused the wait)".into(),
        FutexKind::Unknown => format!("futex {at:#x}"),
    };
    let forked = |o: &Owner| matches!(o, Owner::Forked { .. });
    if matches!(&f.kind, FutexKind::Mutex { owner: o } | FutexKind::RwLock { writer: o } if forked(o)) {
        s += " (nobody in this process can give it back, unless its first thread is the copy of that one)";
    } else if f.lost() && f.kind != FutexKind::GivenUp {
        s += " (nobody holds it now: a wake-up was lost, or the holder died)";
    }
    if f.sure < Sure::Certain {
        s += &format!(" ({})", f.sure);
    }
    s
}
