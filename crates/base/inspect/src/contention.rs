//! Threads that wait for the same lock, as one: the thread that holds it first, as far as that can
//! be known.
//!
//! Pure: works on waits and stacks that were read before. A lock of glibc's own (its time zone, its
//! allocator) and a lock for readers do not say which thread has them; stacks may.

use crate::stacks::Frame;
use crate::waits::{FutexKind, FutexWait, Key, Owner};
use std::collections::BTreeSet;

/// A thread that waits for a lock.
#[derive(Clone, Copy, Debug)]
pub struct Waiter<'a> {
    /// Its process.
    pub pid: i32,
    /// Its id.
    pub tid: i32,
    /// What it waits for.
    pub wait: &'a FutexWait,
    /// Its stack, innermost first; may be empty.
    pub frames: &'a [Frame],
}

/// The thread that a lock will not come free without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The lock names it.
    Named(Owner),
    /// It is one of those that wait: it took the lock, was interrupted by a signal, and its handler
    /// takes the lock again. A likely guess from its stack: one function is on both sides of the
    /// signal.
    OwnHandler {
        /// The thread.
        tid: i32,
    },
    /// So many readers, of which the lock keeps no list. A reader that waits may be one of them:
    /// where it takes the lock again after a writer has come, both wait for good.
    Readers {
        /// How many hold it.
        count: u32,
    },
    /// Not known.
    Unknown,
}

/// A lock, and all that wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contention {
    /// Where it begins, in the memory of the first that waits.
    pub lock: u64,
    /// Its kind, as the first that waits has it.
    pub kind: FutexKind,
    /// The thread that holds it.
    pub holder: Holder,
    /// Those that wait: those that may hold it themselves first, then by number.
    pub waiters: Vec<i32>,
}

/// The locks that threads wait for, those that most wait for first. Condition variables, semaphores
/// and waits that are no lock's are not among them.
pub fn contentions(waiters: &[Waiter<'_>]) -> Vec<Contention> {
    let mut groups: Vec<(Key, Vec<Waiter<'_>>)> = Vec::new();
    for waiter in waiters.iter().filter(|w| matches!(w.wait.kind, FutexKind::Mutex { .. } | FutexKind::RwLock { .. })) {
        let key = waiter.wait.lock_key();
        match groups.iter_mut().find(|group| group.0 == key) {
            Some(group) => group.1.push(*waiter),
            None => groups.push((key, vec![*waiter])),
        }
    }
    let mut found: Vec<Contention> = groups.into_iter().map(|(_, group)| contention(&group)).collect();
    found.sort_by_key(|contention| (usize::MAX - contention.waiters.len(), contention.lock));
    found
}

fn contention(group: &[Waiter<'_>]) -> Contention {
    let named = group.iter().find_map(|waiter| match waiter.wait.kind {
        FutexKind::Mutex { owner } | FutexKind::RwLock { writer: owner } if owner != Owner::Unknown => Some(owner),
        _ => None,
    });
    let own_handler = group.iter().find(|waiter| waits_in_own_handler(waiter.frames));
    let readers = group.iter().find_map(|waiter| waiter.wait.readers());
    let holder = match (named, own_handler, readers) {
        (Some(owner), ..) => Holder::Named(owner),
        (None, Some(waiter), _) => Holder::OwnHandler { tid: waiter.tid },
        (None, None, Some(count)) if count > 0 => Holder::Readers { count },
        _ => Holder::Unknown,
    };
    let may_hold = |waiter: &Waiter<'_>| match holder {
        Holder::OwnHandler { tid } => waiter.tid == tid,
        Holder::Readers { .. } => waiter.wait.is_reader(),
        _ => false,
    };
    let mut order: Vec<(bool, i32)> = group.iter().map(|waiter| (!may_hold(waiter), waiter.tid)).collect();
    order.sort_unstable();
    let first = group[0].wait;
    Contention { lock: first.lock, kind: first.kind, holder, waiters: order.into_iter().map(|(_, tid)| tid).collect() }
}

/// Whether a stack has one function on both sides of a signal frame, by which a handler waits for
/// what it interrupted.
fn waits_in_own_handler(frames: &[Frame]) -> bool {
    let Some(signal) = frames.iter().position(Frame::is_signal) else { return false };
    let names = |frames: &[Frame]| -> BTreeSet<(String, String)> {
        let named = frames.iter().filter(|frame| !frame.is_signal());
        named.filter_map(|frame| Some((frame.module.clone(), frame.function.clone()?))).collect()
    };
    // Where a program calls its own function from the handler too, that one's lock may be the one.
    !names(&frames[..signal]).is_disjoint(&names(&frames[signal + 1..]))
}
