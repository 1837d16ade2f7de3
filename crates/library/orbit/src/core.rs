//! What an orbit is, as main holds it: its options, its state, its process, and the lock around
//! what changes.

use std::ffi::CString;
use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::area::Area;
use crate::call::Wakers;
use crate::channel::DownSide;
use crate::kept::Kept;
use crate::life::Life;
use crate::limits::{Applied, Limits};
use crate::own::Own;
use crate::queue::Queue;
use crate::replica::Replica;
use crate::runtime::Runtime;
use crate::side::{Entry, Init};
use crate::status::SlotHandle;

/// What becomes of an orbit that has come to an end by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// It stays down; calls fail.
    Never,
    /// It is started again: at once after the first failures, then after a pause that doubles from
    /// `first_pause` with every further failure in a row (a call that returns ends the row) up to
    /// `longest_pause`. After `give_up` failures in a row (0: never) it stays down.
    OnFailure {
        /// Pause after the fourth failure in a row.
        first_pause: Duration,
        /// Longest pause.
        longest_pause: Duration,
        /// Failures in a row after which it stays down; 0: no such number.
        give_up: u32,
    },
    /// It is started again at once, always.
    Always,
}

impl Default for Restart {
    fn default() -> Restart {
        Restart::OnFailure { first_pause: Duration::from_millis(1), longest_pause: Duration::from_secs(1), give_up: 0 }
    }
}

/// What becomes of calls that wait behind the one in which the orbit ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pending {
    /// They fail with [`Outcome::Cancelled`](crate::Outcome::Cancelled).
    #[default]
    Fail,
    /// They run in the orbit's next process, each on its own snapshot, if that can still be given;
    /// else they fail with [`Outcome::Cancelled`](crate::Outcome::Cancelled) too. What the process
    /// that failed has written to its copies of areas counts for nothing: the next one gets them
    /// anew from the areas, and the pages that waiting calls brought along from there. So a call is
    /// cancelled if a page has changed since it was made, unless the call itself, or a waiting call
    /// before it, brought that page along; if it waits with or behind one whose large snapshot was
    /// not written yet; if the orbit has let go of an area since
    /// ([`Orbit::detach`](crate::Orbit::detach)); or if the orbit's template was killed, and the
    /// next one lacks the function of the call, which main has unloaded.
    Keep,
}

/// What a call does when the queue or the log has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It blocks until there is room. At the call's deadline it fails with
    /// [`Kind::TimedOut`](crate::Kind::TimedOut).
    #[default]
    Block,
    /// It fails with [`Kind::Full`](crate::Kind::Full); nothing is lost: the pages go with the next
    /// call.
    Fail,
    /// It takes the place of the waiting calls that have not begun: all of them are cancelled, and
    /// it is queued at once. If even that makes no room, it fails with
    /// [`Kind::Full`](crate::Kind::Full) and nothing is cancelled. Only calls whose large snapshot
    /// a copier holds leave their room no sooner than the orbit comes to them: then these are
    /// cancelled, and it blocks, until its deadline at most.
    DropOldest,
}

#[derive(Clone)]
pub(crate) struct Options {
    pub name: String,
    pub entry: Option<Entry>,
    pub init: Option<Init>,
    /// Its functions take the arguments first and the store second.
    pub args_first: bool,
    pub limits: Limits,
    pub restart: Restart,
    pub pending: Pending,
    pub when_full: WhenFull,
    pub deadline: Option<Duration>,
    /// How long a task may sleep on a lock that nobody can release; none: for ever.
    pub stuck_after: Option<Duration>,
    /// How long a call without a deadline waits for an orbit that is down.
    pub wait_while_down: Duration,
    pub log_bytes: usize,
    pub may_alter: bool,
    pub alters: Option<Vec<Area>>,
    /// Descriptors of main's that the orbit has too.
    pub passed: Vec<Arc<Given>>,
}

/// A descriptor of main's that an orbit has under the same number: a copy, in case main closes its
/// own.
pub(crate) struct Given {
    pub number: RawFd,
    /// Whether exec hands it on.
    pub inherited: bool,
    pub fd: Own,
}

/// What an orbit has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Calls made.
    pub calls: u64,
    /// Calls that wait or run now.
    pub pending: u32,
    /// Calls that ended with something else than [`Outcome::Returned`](crate::Outcome::Returned).
    pub failed: u64,
    /// Times the orbit ended by itself or was killed for a deadline.
    pub crashes: u64,
    /// Times it was started again.
    pub restarts: u64,
    /// Of these, since a call had left threads running, which could have written into later
    /// snapshots. No failure: calls that wait run in the next process.
    pub left_threads: u64,
    /// Pages of snapshots sent to it.
    pub pages: u64,
    /// Calls whose snapshot a copier held.
    pub copiers: u64,
    /// Updates received, and those rejected because they made no sense.
    pub updates: u64,
    /// Updates rejected because they made no sense.
    pub bad_updates: u64,
    /// Updates of synchronous calls that nobody pulled and that had to make room for newer ones;
    /// see [`Orbit::pull`](crate::Orbit::pull).
    pub dropped_updates: u64,
    /// The orbit's process now, 0 when it is down.
    pub pid: i32,
}

/// One orbit. What the usual call needs lies together, first.
#[repr(C)]
pub(crate) struct Inner {
    /// The generation of the process that made it.
    pub generation: u64,
    /// Whether calls have a deadline that is not their own.
    pub has_deadline: bool,
    pub down: DownSide,
    pub status: SlotHandle,
    pub core: Mutex<Core>,
    pub options: Options,
    pub runtime: Arc<Runtime>,
    pub number: u64,
    pub name: CString,
    pub event: Own,
    /// Notified when room or state may have changed.
    pub changed: Condvar,
    /// Updates of synchronous calls.
    pub kept: Kept,
    /// Whether the supervisor is still to populate `down`.
    pub unpopulated: AtomicBool,
    /// Earliest deadline among waiting calls, nanoseconds of CLOCK_MONOTONIC; `u64::MAX`: none.
    pub next_deadline: AtomicU64,
}

/// What changes in an orbit's life, under one lock. What the usual call needs lies together, first.
#[repr(C)]
pub(crate) struct Core {
    pub replicas: Vec<Replica>,
    /// Areas that are gone and that the orbit has still mapped.
    pub forget: Vec<u32>,
    pub stats: Stats,
    pub queue: Queue,
    pub life: Life,
    pub limits: Applied,
    /// Threads in [`Inner::wait_for_change`].
    pub waiting_for_change: u32,
    /// Whom to wake when the lock is let go of.
    pub wakers: Wakers,
}

/// The orbit's lock. The thread that releases it wakes, without it, the wakers that have come
/// together meanwhile.
pub(crate) struct Locked<'a> {
    // In this order: fields are dropped as they are declared.
    core: MutexGuard<'a, Core>,
    wakers: Wakers,
}

impl Deref for Locked<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.wakers.append(&mut self.core.wakers);
    }
}

impl Inner {
    pub fn lock(&self) -> Locked<'_> {
        Locked { core: self.core.lock().unwrap_or_else(|e| e.into_inner()), wakers: Wakers::default() }
    }

    /// Sleeps without the lock until something has changed in the life of an orbit that has no
    /// process, or this long.
    pub fn wait_for_change(&self, at_most: Duration) {
        let mut core = self.core.lock().unwrap_or_else(|e| e.into_inner());
        if core.life.process().is_none() {
            core.waiting_for_change += 1;
            let (mut core, _) = self.changed.wait_timeout(core, at_most).unwrap_or_else(|e| e.into_inner());
            core.waiting_for_change -= 1;
        }
    }
}
