//! The holder of a lock, across pid namespaces and the making of processes.

use super::call::Seen;
use super::peers;
use crate::procfs;
use orbit_linux::process;
use orbit_linux::procfs::ids;
use orbit_linux::status::Status;
use std::cell::OnceCell;
use std::collections::BTreeMap;

/// The holder of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// This thread; ids as the inspecting process sees them.
    Thread {
        /// Its process.
        pid: i32,
        /// Its id.
        tid: i32,
    },
    /// A thread that is no more: the lock will never be released.
    Gone {
        /// Its id, as the program knew it.
        tid: i32,
    },
    /// A thread of the process that this one was forked from: it held the lock at that time. Nobody
    /// in this process will release it, but where that thread made the process: then its copy, the
    /// first thread, may.
    Forked {
        /// The process it was forked from.
        parent: i32,
        /// The thread.
        tid: i32,
    },
    /// The lock does not say.
    Unknown,
}

impl Owner {
    /// Whether no thread could release the lock.
    pub(super) fn left(&self) -> bool {
        matches!(self, Owner::Gone { .. } | Owner::Forked { .. })
    }
}

/// Ids of threads in their own pid namespace, and ours of them; nothing if the namespace is ours.
pub(crate) fn foreign<'a>(pid: i32, tids: impl Iterator<Item = &'a i32>) -> Option<BTreeMap<i32, i32>> {
    inner_id(pid).filter(|&id| id != pid)?;
    Some(tids.filter_map(|&t| Some((inner_id(t)?, t))).collect())
}

/// The id of a thread in the innermost pid namespace it lives in, which is the one it knows itself
/// by; nothing if it is gone.
pub fn inner_id(tid: i32) -> Option<i32> {
    Status::of(tid).ok()?.innermost_id()
}

/// Threads of other processes by the ids that a process knows them by, each list read once in a
/// scan of many locks.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    pid: i32,
    parent: OnceCell<(i32, BTreeMap<i32, i32>)>,
    all: OnceCell<BTreeMap<i32, i32>>,
}

impl Elsewhere {
    pub(crate) fn of(pid: i32) -> Elsewhere {
        Elsewhere { pid, parent: OnceCell::new(), all: OnceCell::new() }
    }

    /// Our id of a thread of any process in the pid namespace of this one, which is not ours.
    pub(crate) fn ours(&self, id: i32) -> Option<i32> {
        self.all.get_or_init(|| in_namespace_of(self.pid)).get(&id).copied()
    }

    /// The holder of a lock of the process' own that names a thread with `id` in its pid namespace,
    /// where that is a thread of its parent.
    ///
    /// A child of `vfork` works on the memory of whoever made it, and the C library takes it for
    /// that thread: what either of them holds is held by the child, for the other one waits for its
    /// end. Other children have a copy of the memory as it was.
    pub(crate) fn holder(&self, id: i32) -> Option<Owner> {
        let (parent, threads) = self.parent.get_or_init(|| of_parent(self.pid).unwrap_or_default());
        let &tid = threads.get(&id)?;
        if made_by_vfork(self.pid, tid) {
            return Some(Owner::Thread { pid: self.pid, tid: self.pid });
        }
        Some(Owner::Forked { parent: *parent, tid })
    }
}

/// The parent of a process, and its threads: their ids in the pid namespace of the process, and
/// ours of them.
fn of_parent(pid: i32) -> Option<(i32, BTreeMap<i32, i32>)> {
    let parent = peers::parent(pid)?;
    let tids = ids(format!("/proc/{parent}/task"));
    let ours = inner_id(pid)? == pid;
    let id = |t: i32| if ours { Some(t) } else { inner_id(t) };
    Some((parent, tids.into_iter().filter_map(|t| Some((id(t)?, t))).collect()))
}

/// Whether a thread waits for a process it made by `vfork` to end or to become another program, and
/// that is this one, as far as the kernel says.
fn made_by_vfork(pid: i32, maker: i32) -> bool {
    let line = procfs::text(&format!("/proc/{maker}/syscall"), 256).unwrap_or_default();
    let waits = matches!(Seen::parse(line.as_bytes()), Some(Seen::In(call))
        if matches!(call.nr, libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3));
    // Where the kernel does not report it, what the thread waits in must do.
    waits && process::same_memory(pid, maker).unwrap_or(true)
}

/// Ids of all threads in the pid namespace of a process, and ours of them.
fn in_namespace_of(pid: i32) -> BTreeMap<i32, i32> {
    let space = |p: i32| std::fs::read_link(format!("/proc/{p}/ns/pid")).ok();
    let Some(want) = space(pid) else { return BTreeMap::new() };
    ids("/proc")
        .into_iter()
        .filter(|&p| space(p).as_ref() == Some(&want))
        .flat_map(|p| ids(format!("/proc/{p}/task")))
        .filter_map(|t| Some((inner_id(t)?, t)))
        .collect()
}
