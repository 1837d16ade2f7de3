//! One module's subscription to one kind of event: its filter, its counters, and the way its events
//! take to the module.
//!
//! Invariant: events sent and not yet taken never exceed the filter's `queue`. Scope makes the
//! event (the kernel program, or a pin here) compares `sent - taken` with it first and counts a
//! loss instead; so neither the ring nor the queue of a slow module can grow, and no module can use
//! up another's share.

use crate::{
    error::PinError,
    event::{Event, Kind},
    filter::{Counts, Filter, Scope},
};
use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Locks a mutex whose data stays valid when a thread panicked while it held it.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Events that wait for one module, in the order in which they arrived.
#[derive(Default)]
pub(crate) struct Queue {
    inner: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Default)]
struct Waiting {
    events: VecDeque<Event>,
    /// The next wait, or the one under way, is to return without an event.
    nudged: bool,
}

impl Queue {
    pub(crate) fn push(&self, events: &[Event]) {
        lock(&self.inner).events.extend(events);
        self.arrived.notify_one();
    }

    /// Moves up to `most` events to `out`, waiting up to `timeout` for the first; not once it was
    /// nudged.
    pub(crate) fn take(&self, most: usize, timeout: Duration, out: &mut Vec<Event>) -> usize {
        let until = Instant::now() + timeout;
        let mut inner = lock(&self.inner);
        while inner.events.is_empty() && !inner.nudged {
            let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                return 0;
            };
            inner = self.arrived.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        inner.nudged = false;
        let n = most.min(inner.events.len());
        out.extend(inner.events.drain(..n));
        n
    }

    /// Removes the waiting events of one subscription.
    pub(crate) fn purge(&self, subscription: u64) {
        lock(&self.inner).events.retain(|event| event.subscription != subscription);
    }

    /// Ends the wait that is under way, or else the next one, so that the waiting thread checks its
    /// state again.
    pub(crate) fn nudge(&self) {
        lock(&self.inner).nudged = true;
        self.arrived.notify_all();
    }
}

/// What was counted for a subscription in the kernel; see [`Counts`] for the words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Events that met the filter's conditions.
    pub passed: u64,
    /// Those of them that were to be sent.
    pub due: u64,
    /// Those that were sent.
    pub sent: u64,
    /// Those that found the queue full.
    pub lost: u64,
    /// Processes that could not be listed in their turn.
    pub unlisted: u64,
}

/// What filters and counts in the kernel for subscriptions that are bound to it
/// ([`Subscription::bind`]), each in a slot. A slot is used again: `subscription` says for whom a
/// process is listed, and a slot that is another's by now stays as it is.
pub trait KernelSide: Send + Sync {
    /// The module took so many events: their room is free again.
    fn took(&self, slot: usize, events: u64);
    /// What was counted in the slot.
    fn counted(&self, slot: usize) -> Counted;
    /// Lists a process for the subscription; `follow`: also those that it makes.
    fn list(&self, pid: u32, subscription: u64, slot: usize, follow: bool) -> Result<(), PinError>;
    /// Takes a process off the subscription's list.
    fn unlist(&self, pid: u32, subscription: u64, slot: usize);
}

/// See the module's head.
pub struct Subscription {
    /// Its number: never used twice.
    pub id: u64,
    /// The module it belongs to.
    pub client: u64,
    /// What it subscribed to.
    pub kind: Kind,
    /// Under which conditions.
    pub filter: Filter,
    /// When it began, `CLOCK_MONOTONIC`; older events are not its own.
    pub since: u64,
    queue: Arc<Queue>,
    /// The client of the module's life before, from whose subscriptions it takes over; 0: none.
    before: u64,
    /// The one it took over from; 0: none.
    took_over: AtomicU64,
    pids: Mutex<BTreeSet<u32>>,
    in_kernel: OnceLock<(Arc<dyn KernelSide>, usize)>,
    /// What passed and was due: here, and where the kernel counts, what another counted in its
    /// place.
    passed: AtomicU64,
    due: AtomicU64,
    sent: AtomicU64,
    lost: AtomicU64,
    taken: AtomicU64,
}

impl Subscription {
    pub(crate) fn new(
        id: u64,
        (client, before): (u64, u64),
        kind: Kind,
        filter: Filter,
        queue: Arc<Queue>,
        guarded: &[u32],
    ) -> Subscription {
        let pids = match &filter.scope {
            Scope::Everyone => BTreeSet::new(),
            Scope::Guarded => guarded.iter().copied().collect(),
            Scope::Pids(pids) => pids.iter().copied().collect(),
        };
        Subscription {
            id,
            client,
            kind,
            filter,
            since: crate::event::now(),
            queue,
            before,
            took_over: AtomicU64::new(0),
            pids: Mutex::new(pids),
            in_kernel: OnceLock::new(),
            passed: AtomicU64::new(0),
            due: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            taken: AtomicU64::new(0),
        }
    }

    /// One of no core, for the tests of what binds subscriptions: of the client `client`, whose
    /// life before was that of `before` (0: none). Nothing reads its events.
    pub fn detached(id: u64, client: u64, before: u64, kind: Kind, filter: Filter) -> Subscription {
        Subscription::new(id, (client, before), kind, filter, Arc::default(), &[])
    }

    /// Processes it is bound to now; with `Scope::Everyone` those count nothing.
    pub fn pids(&self) -> Vec<u32> {
        lock(&self.pids).iter().copied().collect()
    }

    /// Offers an event that was made here, not in the kernel: filters by process, counts, and
    /// queues it or counts it as lost. True: it is queued.
    pub fn offer(&self, mut event: Event) -> bool {
        if event.pid != 0 && self.filter.scope != Scope::Everyone && !lock(&self.pids).contains(&event.pid) {
            return false;
        }
        let count = self.passed.fetch_add(1, Relaxed) + 1;
        if self.filter.every == 0 || !count.is_multiple_of(self.filter.every) {
            return false;
        }
        self.due.fetch_add(1, Relaxed);
        if self.sent.load(Relaxed).wrapping_sub(self.taken.load(Relaxed)) >= u64::from(self.filter.queue) {
            self.lost.fetch_add(1, Relaxed);
            return false;
        }
        self.sent.fetch_add(1, Relaxed);
        event.subscription = self.id;
        self.queue.push(&[event]);
        true
    }

    /// Queues events that the kernel program sent to this subscription and counted.
    pub fn queue_sent(&self, events: &[Event]) {
        self.queue.push(events);
    }

    /// Notes that the module took `n` events: their room is free again.
    pub(crate) fn took(&self, n: u64) {
        self.taken.fetch_add(n, Relaxed);
        if let Some((side, slot)) = self.in_kernel.get() {
            side.took(*slot, n);
        }
    }

    /// What became of its events so far.
    pub fn counts(&self) -> Counts {
        let delivered = self.taken.load(Relaxed);
        let [passed, due, sent, lost] =
            [&self.passed, &self.due, &self.sent, &self.lost].map(|count| count.load(Relaxed));
        let (passed, due, sent, lost, unlisted) = match self.in_kernel.get() {
            Some((side, slot)) => {
                let there = side.counted(*slot);
                (passed + there.passed, due + there.due, there.sent, there.lost, there.unlisted)
            }
            None => (passed, due, sent, lost, 0),
        };
        Counts { passed, due, delivered, waiting: sent.saturating_sub(delivered), lost, unlisted }
    }

    /// Whether it is what `other` was in the module's life before.
    pub fn replaces(&self, other: &Subscription) -> bool {
        other.client == self.before && other.kind == self.kind && other.filter == self.filter
    }

    /// Notes that it counts in the place of `other`.
    pub fn take_over(&self, other: &Subscription) {
        self.took_over.store(other.id, Relaxed);
    }

    /// The subscription in whose place it counts.
    pub fn took_over(&self) -> Option<u64> {
        Some(self.took_over.load(Relaxed)).filter(|id| *id != 0)
    }

    /// Adds what another counted in its place.
    pub fn add(&self, passed: u64, due: u64) {
        self.passed.fetch_add(passed, Relaxed);
        self.due.fetch_add(due, Relaxed);
    }

    /// From now on the kernel filters and counts for it, in this slot.
    pub fn bind(&self, side: Arc<dyn KernelSide>, slot: usize) {
        let _ = self.in_kernel.set((side, slot));
    }

    /// Lists a process; nothing where it is not bound to processes. One that is listed already is
    /// listed again: it may be another of that number, whose row in the kernel went with the one
    /// before.
    pub fn list(&self, pid: u32) -> Result<(), PinError> {
        let mut pids = lock(&self.pids);
        pids.insert(pid);
        match self.in_kernel.get() {
            Some((side, slot)) => side.list(pid, self.id, *slot, self.filter.follow),
            None => Ok(()),
        }
    }

    /// Lists a process no more.
    pub fn unlist(&self, pid: u32) {
        let mut pids = lock(&self.pids);
        if pids.remove(&pid)
            && let Some((side, slot)) = self.in_kernel.get()
        {
            side.unlist(pid, self.id, *slot);
        }
    }

    /// Lists in the kernel what was listed here before the kernel filtered for it.
    pub fn list_all(&self) -> Result<(), PinError> {
        let pids = lock(&self.pids);
        let Some((side, slot)) = self.in_kernel.get() else { return Ok(()) };
        pids.iter().try_for_each(|pid| side.list(*pid, self.id, *slot, self.filter.follow))
    }

    /// Takes its waiting events back.
    pub(crate) fn purge(&self) {
        self.queue.purge(self.id);
    }
}
