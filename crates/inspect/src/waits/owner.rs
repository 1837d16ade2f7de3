//! Who holds a lock, across pid namespaces.

use crate::procfs;
use std::collections::BTreeMap;

/// The holder of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// This thread; ids as the looking process sees them.
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
    /// The lock does not say.
    Unknown,
}

/// Ids of threads in their own pid namespace, and ours of them; nothing if the namespace is ours.
pub(crate) fn foreign<'a>(pid: i32, tids: impl Iterator<Item = &'a i32>) -> Option<BTreeMap<i32, i32>> {
    inner_id(pid).filter(|&id| id != pid)?;
    Some(tids.filter_map(|&t| Some((inner_id(t)?, t))).collect())
}

/// The id of a thread in the innermost pid namespace it lives in, which is the one it knows itself by; nothing if it is gone.
pub fn inner_id(tid: i32) -> Option<i32> {
    let status = procfs::text(&format!("/proc/{tid}/status"), 8192).ok()?;
    procfs::field(&status, "NSpid")?.split_whitespace().last()?.parse().ok()
}

/// Our id of a thread that has `id` in the pid namespace of `pid`, looked for among all processes.
pub(crate) fn ours(id: i32, pid: i32) -> Option<i32> {
    let space = |p: i32| std::fs::read_link(format!("/proc/{p}/ns/pid")).ok();
    let want = space(pid)?;
    procfs::ids("/proc")
        .ok()?
        .into_iter()
        .filter(|&p| space(p).as_ref() == Some(&want))
        .flat_map(|p| procfs::ids(&format!("/proc/{p}/task")).unwrap_or_default())
        .find(|&t| inner_id(t) == Some(id))
}
