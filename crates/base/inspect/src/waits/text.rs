//! Waits and holders as sentences for people.

use super::{Direction, FutexKind, Owner, Wait, call_name};
use std::fmt::{Display, Formatter, Result};

impl Display for Owner {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Owner::Thread { pid, tid } if pid == tid => write!(f, "held by thread {tid}"),
            Owner::Thread { pid, tid } => write!(f, "held by thread {tid} of process {pid}"),
            Owner::Gone { tid } => write!(f, "held by thread {tid}, which has ended"),
            Owner::Forked { parent, tid } => {
                write!(f, "held by thread {tid} of process {parent} when this one was forked")
            }
            Owner::Unknown => f.write_str("holder unknown"),
        }
    }
}

/// Without a holder: that is named after the address.
impl Display for FutexKind {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            FutexKind::Mutex { .. } => f.write_str("mutex"),
            FutexKind::RwLock { .. } => f.write_str("rwlock"),
            FutexKind::Condvar => f.write_str("condition variable"),
            FutexKind::Join(Owner::Thread { tid, .. } | Owner::Gone { tid }) => write!(f, "end of thread {tid}"),
            FutexKind::Join(Owner::Forked { .. } | Owner::Unknown) => f.write_str("end of a thread"),
            FutexKind::Semaphore => f.write_str("semaphore"),
            FutexKind::Parked => f.write_str("being unparked"),
            FutexKind::GivenUp => f.write_str("mutex that would close a ring or whose holder has ended"),
            FutexKind::Unknown => f.write_str("futex"),
        }
    }
}

/// Who holds a lock, after a comma.
fn holder(f: &mut Formatter<'_>, kind: &FutexKind) -> Result {
    match kind {
        FutexKind::RwLock { writer: Owner::Unknown } => f.write_str(", held by readers or holder unknown"),
        FutexKind::Mutex { owner } | FutexKind::RwLock { writer: owner } => write!(f, ", {owner}"),
        _ => Ok(()),
    }
}

/// Process ids after a word, or other words if there are none.
fn list(f: &mut Formatter<'_>, before: &str, pids: &[i32], none: &str) -> Result {
    if pids.is_empty() {
        return f.write_str(none);
    }
    f.write_str(before)?;
    for p in pids {
        write!(f, " {p}")?;
    }
    Ok(())
}

impl Display for Wait {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let limit = |timed: bool| if timed { ", with a time limit" } else { "" };
        match self {
            Wait::Running => f.write_str("nothing: it runs, or could"),
            Wait::Futex(w) => {
                write!(f, "{} at {:#x}{}", w.kind, w.lock, limit(w.call.timed))?;
                holder(f, &w.kind)?;
                write!(f, " ({})", w.sure)
            }
            Wait::Pipe { fd, direction, peers, named, .. } => {
                let what = if *direction == Direction::Read { "bytes from" } else { "room in" };
                let name = if *named { "named " } else { "" };
                write!(f, "{what} the {name}pipe at descriptor {fd}")?;
                list(f, ", whose other end is held by", peers, ", whose other end nobody in sight holds")
            }
            Wait::Socket { fd, call, local, remote, peers, .. } => {
                write!(f, "{call} on the socket at descriptor {fd}")?;
                if let Some(a) = local {
                    write!(f, ", {a}")?;
                }
                if let Some(a) = remote {
                    write!(f, " to {a}")?;
                }
                list(f, ", whose other side is held by", peers, "")
            }
            Wait::FileLock { path, owner: Some(p) } => write!(f, "a lock on {path}, held by process {p}"),
            Wait::FileLock { path, owner: None } => write!(f, "a lock on {path}"),
            Wait::Child { pids } => list(f, "the end of child", pids, "the end of a child, of which none is in sight"),
            Wait::Poll { fds: 0, timed: false } => f.write_str("a signal, in a poll of no descriptor"),
            Wait::Poll { fds, timed } => write!(f, "poll of {fds} descriptors{}", limit(*timed)),
            Wait::Epoll { fds, timed, unread } => {
                write!(f, "epoll of {fds} descriptors{}", limit(*timed))?;
                let silent = "; it does not fire for input that is there at descriptor";
                if unread.is_empty() { Ok(()) } else { list(f, silent, unread, "") }
            }
            Wait::Fifo { path, direction: Direction::Read } => {
                write!(f, "a process to open the FIFO {path} for writing")
            }
            Wait::Fifo { path, .. } => write!(f, "a process to open the FIFO {path} for reading"),
            Wait::Sleep => f.write_str("time to pass"),
            Wait::Signal => f.write_str("a signal"),
            Wait::Stopped => f.write_str("SIGCONT: it is stopped"),
            Wait::Traced { by } => write!(f, "its tracer {by}"),
            Wait::Disk { wchan, call } => {
                f.write_str("the kernel, not to be interrupted")?;
                if let Some(name) = call.and_then(|c| call_name(c.nr)) {
                    write!(f, ", in {name}")?;
                }
                if wchan.is_empty() { Ok(()) } else { write!(f, ", at {wchan}") }
            }
            Wait::Other(c) => match call_name(c.nr) {
                Some(name) => write!(f, "system call {name}"),
                None => write!(f, "system call number {}", c.nr),
            },
            Wait::Fault { wchan } if wchan.is_empty() => f.write_str("the kernel, outside a system call"),
            Wait::Fault { wchan } => write!(f, "the kernel, outside a system call, at {wchan}"),
            Wait::Ended => f.write_str("nothing: it has ended"),
            Wait::Hidden(why) => f.write_str(why),
        }
    }
}
