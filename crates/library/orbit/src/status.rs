//! The status page: how `orbit ps` and `orbit top` see the orbits of running programs, without
//! files left behind.
//!
//! Main keeps counters in a memory file named `orbit-status`. It has no path; it is found by name
//! among the descriptors of running processes, and it is gone with the last of them. Main writes
//! and never reads it back, so nothing that happens to the page can harm main. Readers take a copy
//! with `pread` and trust none of it.
//!
//! Cost: a call is counted by a few plain loads and stores, since one thread at a time counts for
//! an orbit. Counters are exact; they are not a snapshot of one moment. A slot's name and process
//! change under a sequence number, odd while they do.
//!
//! After `fork` the child has neither the mapping nor a claim to the counters: its handles do
//! nothing.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use orbit_linux::map::{self, Mapping};
use orbit_linux::memfd;

use crate::error::{Error, Result};
use crate::own::Own;

pub use find::{OrbitStatus, Program, find_all, find_process};

mod find;

/// Name of the memory file.
const FILE_NAME: &str = "orbit-status";
/// "orbstat1" as a little-endian word.
const MAGIC: u64 = u64::from_le_bytes(*b"orbstat1");
/// Raised with every change of the layout.
const VERSION: u32 = 1;
/// Orbits of one program that can be seen.
pub const SLOTS: usize = 256;
/// Bytes of a name that can be seen.
pub const NAME_BYTES: usize = 64;
/// Buckets of a latency histogram: four for each power of two of nanoseconds.
pub const BUCKETS: usize = 256;

/// What an orbit is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// Its process is being made, or its init function runs.
    Starting = 1,
    /// It waits for calls.
    Idle = 2,
    /// It works on a call.
    Running = 3,
    /// It failed and is about to be started again.
    Restarting = 4,
    /// It failed and is not started again by itself.
    Down = 5,
    /// It was ended.
    Ended = 6,
}

impl State {
    fn from_word(word: u32) -> Option<State> {
        use State::{Down, Ended, Idle, Restarting, Running, Starting};
        [Starting, Idle, Running, Restarting, Down, Ended].into_iter().find(|&state| state as u32 == word)
    }

    /// As a word for people: `starting`, `idle`, `running`, `restarting`, `down`, `ended`.
    pub fn name(self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Idle => "idle",
            State::Running => "running",
            State::Restarting => "restarting",
            State::Down => "down",
            State::Ended => "ended",
        }
    }
}

/// The beginning of the page. Writer: main, before the file gets its slots in use, but for the two
/// counts.
#[repr(C, align(4096))]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    /// Process number of main, as main sees it.
    pid: AtomicU32,
    /// When the page was made, nanoseconds since 1970.
    started_ns: AtomicU64,
    /// Slots behind this one have never been in use.
    slots_used: AtomicU32,
    /// Orbits that found no slot free.
    unseen: AtomicU32,
    page_size: AtomicU64,
}

/// One orbit. Writer: main.
#[repr(C, align(64))]
struct Slot {
    /// Odd while `name`, `pid` and `created_ns` change; even otherwise.
    sequence: AtomicU32,
    /// 1: there is an orbit in this slot.
    in_use: AtomicU32,
    /// A [`State`].
    state: AtomicU32,
    /// Process number of the orbit, as main sees it; 0: none now.
    pid: AtomicU32,
    /// Nanoseconds since 1970.
    created_ns: AtomicU64,
    name: [AtomicU8; NAME_BYTES],
    /// Calls handed over.
    calls: AtomicU64,
    /// Calls waiting or running, as of the last one handed over.
    queue: AtomicU64,
    /// Pages copied for snapshots.
    pages_total: AtomicU64,
    /// Pages copied for the last one.
    pages_last: AtomicU64,
    crashes: AtomicU64,
    restarts: AtomicU64,
    timeouts: AtomicU64,
    /// Calls that ended without a result: crashed, cancelled, timed out, or lost with a restart.
    lost: AtomicU64,
    /// Calls that returned, by the time from hand-over to result: [`bucket`].
    latency: [AtomicU64; BUCKETS],
}

#[repr(C)]
struct Page {
    header: Header,
    slots: [Slot; SLOTS],
}

/// Forks that this process has seen itself be the child of; a handle of an earlier time is dead.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Makes all handles dead in a child that has main's memory but not the mapping of the page. A raw
/// clone runs no such handler: code that runs in one keeps away from the status page.
extern "C" fn in_forked_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

struct Inner {
    /// Keeps the page findable.
    file: Own,
    mapping: Option<Mapping>,
    generation: u32,
    /// Slots given out and back. A bit each.
    taken: Mutex<[u64; SLOTS / 64]>,
}

impl Inner {
    fn page(&self) -> Option<&Page> {
        if self.generation != GENERATION.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: the mapping has the size of a page; all of it is atomics, for which zeros are
        // valid. In this process it stays mapped as long as `self`.
        self.mapping.as_ref().map(|mapping| unsafe { &*mapping.as_ptr().cast::<Page>() })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.generation != GENERATION.load(Ordering::Relaxed)
            && let Some(mapping) = self.mapping.take()
        {
            // Not mapped in a forked child, where something else may be at the address by now.
            let _ = mapping.leak();
        }
    }
}

/// The page of this program. Cheap to clone; the file goes with the last clone and the last handle.
#[derive(Clone)]
pub(crate) struct StatusPage {
    inner: Arc<Inner>,
}

impl StatusPage {
    /// Makes the page.
    pub(crate) fn create() -> Result<StatusPage> {
        static AT_FORK: Once = Once::new();
        AT_FORK.call_once(|| {
            // SAFETY: the handler only adds to an atomic.
            unsafe { libc::pthread_atfork(None, None, Some(in_forked_child)) };
        });
        let doing = "status page";
        let len = size_of::<Page>();
        let file = memfd::create(FILE_NAME, len, true).map_err(|error| Error::system(doing, error))?;
        let mapping = Mapping::shared(file.as_fd(), len, true, false).map_err(|error| Error::system(doing, error))?;
        // Orbits and other children must not be able to write to it. Before Linux 5.1 the seal does
        // not exist, and whoever opens the file could: no harm but to what is shown.
        let _ = memfd::seal_future_write(file.as_fd());
        // SAFETY: the whole of a mapping that this process knows not to use after a fork.
        unsafe { map::advise(mapping.addr(), len, libc::MADV_DONTFORK) }
            .map_err(|error| Error::system(doing, error))?;
        let generation = GENERATION.load(Ordering::Relaxed);
        let file = Own::new(file).map_err(|error| Error::system(doing, error))?;
        let inner = Inner { file, mapping: Some(mapping), generation, taken: Mutex::new([0; SLOTS / 64]) };
        if let Some(page) = inner.page() {
            let header = &page.header;
            header.version.store(VERSION, Ordering::Relaxed);
            header.pid.store(std::process::id(), Ordering::Relaxed);
            header.started_ns.store(now_ns(), Ordering::Relaxed);
            header.page_size.store(map::page_size() as u64, Ordering::Relaxed);
            // Release: a reader that sees the magic sees the rest.
            header.magic.store(MAGIC, Ordering::Release);
        }
        Ok(StatusPage { inner: Arc::new(inner) })
    }

    /// Whether others find the page: its file is among this program's descriptors.
    pub(crate) fn is_found(&self) -> bool {
        self.inner.file.is_there()
    }

    /// A slot for an orbit of this name (cut off after [`NAME_BYTES`]). If all are taken the handle
    /// works but is not seen; the page counts those.
    pub(crate) fn slot(&self, name: &str) -> SlotHandle {
        let generation = self.inner.generation;
        let mut handle = SlotHandle { inner: Arc::clone(&self.inner), index: None, at: 0, generation };
        let Some(page) = self.inner.page() else { return handle };
        let mut taken = self.inner.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(index) = (0..SLOTS).find(|index| taken[index / 64] & (1 << (index % 64)) == 0) else {
            page.header.unseen.fetch_add(1, Ordering::Relaxed);
            return handle;
        };
        taken[index / 64] |= 1 << (index % 64);
        let slot = &page.slots[index];
        slot.change(|| {
            for word in slot.counters() {
                word.store(0, Ordering::Relaxed);
            }
            let mut bytes = [0; NAME_BYTES];
            let fits = |&end: &usize| end <= NAME_BYTES;
            let len = name.char_indices().map(|(start, c)| start + c.len_utf8()).take_while(fits).last().unwrap_or(0);
            bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
            for (to, from) in slot.name.iter().zip(bytes) {
                to.store(from, Ordering::Relaxed);
            }
            slot.pid.store(0, Ordering::Relaxed);
            slot.state.store(State::Starting as u32, Ordering::Relaxed);
            slot.created_ns.store(now_ns(), Ordering::Relaxed);
            slot.in_use.store(1, Ordering::Relaxed);
        });
        page.header.slots_used.fetch_max(index as u32 + 1, Ordering::Release);
        handle.index = Some(index);
        handle.at = (&raw const *slot).expose_provenance();
        handle
    }
}

impl Slot {
    /// Runs `write` with the sequence number odd. One thread at a time: called under the lock of
    /// the slots, or by the supervisor.
    fn change(&self, write: impl FnOnce()) {
        // AcqRel, Release: a reader that saw any write of `write` sees the number odd or changed.
        self.sequence.fetch_add(1, Ordering::AcqRel);
        write();
        self.sequence.fetch_add(1, Ordering::Release);
    }

    fn counters(&self) -> impl Iterator<Item = &AtomicU64> {
        let single = [&self.calls, &self.queue, &self.pages_total, &self.pages_last];
        let rare = [&self.crashes, &self.restarts, &self.timeouts, &self.lost];
        single.into_iter().chain(rare).chain(&self.latency)
    }
}

/// One orbit's slot, released on drop. Its methods may be called from any thread, by one at a time:
/// under the lock of the orbit. Should two do so at once, a count may be lost.
pub(crate) struct SlotHandle {
    inner: Arc<Inner>,
    index: Option<usize>,
    /// The slot's address, 0 for none: a call finds it without the way through `inner`.
    at: usize,
    /// That of `inner`.
    generation: u32,
}

impl SlotHandle {
    #[inline(always)]
    fn slot(&self) -> Option<&Slot> {
        if self.at == 0 || self.generation != GENERATION.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: the slot lies in the page of `inner`, which stays mapped in this process as long
        // as `self` keeps it, and is made of atomics.
        Some(unsafe { &*std::ptr::with_exposed_provenance::<Slot>(self.at) })
    }

    /// A call was handed over: how many now wait or run, and how many pages its snapshot copied.
    #[inline(always)]
    pub(crate) fn call_submitted(&self, queue_len: u32, pages: u64) {
        let Some(slot) = self.slot() else { return };
        add(&slot.calls, 1);
        slot.queue.store(u64::from(queue_len), Ordering::Relaxed);
        slot.pages_last.store(pages, Ordering::Relaxed);
        if pages != 0 {
            add(&slot.pages_total, pages);
        }
    }

    /// A call returned, so long after it was handed over.
    #[inline]
    pub(crate) fn call_done(&self, latency_ns: u64) {
        let Some(slot) = self.slot() else { return };
        add(&slot.latency[bucket(latency_ns)], 1);
    }

    /// So many calls ended without a result.
    pub(crate) fn calls_lost(&self, count: u64) {
        let Some(slot) = self.slot() else { return };
        add(&slot.lost, count);
    }

    /// A call ran out of time. It counts as lost as well.
    pub(crate) fn timed_out(&self) {
        let Some(slot) = self.slot() else { return };
        add(&slot.timeouts, 1);
        add(&slot.lost, 1);
    }

    /// What the orbit is doing now. [`State::Running`] need not be reported: it is seen from the
    /// calls.
    pub(crate) fn set_state(&self, state: State) {
        let Some(slot) = self.slot() else { return };
        slot.state.store(state as u32, Ordering::Relaxed);
    }

    /// The orbit's process ended by itself, by a signal or by a limit.
    pub(crate) fn crashed(&self) {
        let Some(slot) = self.slot() else { return };
        add(&slot.crashes, 1);
        self.set_pid(0);
    }

    /// The orbit's process has ended, which is no failure.
    pub(crate) fn ended(&self) {
        self.set_pid(0);
    }

    /// The orbit has its first process.
    pub(crate) fn started(&self, pid: i32) {
        self.set_pid(pid);
    }

    /// The orbit has a new process.
    pub(crate) fn restarted(&self, pid: i32) {
        let Some(slot) = self.slot() else { return };
        add(&slot.restarts, 1);
        self.set_pid(pid);
    }

    fn set_pid(&self, pid: i32) {
        let Some(slot) = self.slot() else { return };
        let _one_at_a_time = self.inner.taken.lock().unwrap_or_else(PoisonError::into_inner);
        slot.change(|| slot.pid.store(pid.max(0) as u32, Ordering::Relaxed));
    }
}

/// Adds to a counter that one thread at a time writes: no locked instruction.
#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Drop for SlotHandle {
    fn drop(&mut self) {
        let (Some(slot), Some(index)) = (self.slot(), self.index) else { return };
        let mut taken = self.inner.taken.lock().unwrap_or_else(PoisonError::into_inner);
        slot.change(|| slot.in_use.store(0, Ordering::Relaxed));
        taken[index / 64] &= !(1 << (index % 64));
    }
}

/// The bucket of a time: exact up to 3 ns, then four to each power of two.
fn bucket(ns: u64) -> usize {
    if ns < 4 {
        return ns as usize;
    }
    let exponent = 63 - ns.leading_zeros() as usize;
    (exponent - 1) * 4 + ((ns >> (exponent - 2)) & 3) as usize
}

/// The least time in a bucket.
fn bucket_start(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64;
    }
    (4 + (bucket % 4) as u64).checked_shl(bucket as u32 / 4 - 1).unwrap_or(u64::MAX)
}

/// How many calls took how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    counts: Box<[u64; BUCKETS]>,
}

impl Latency {
    /// Calls counted.
    pub fn calls(&self) -> u64 {
        self.counts.iter().fold(0, |sum, &count| sum.saturating_add(count))
    }

    /// The time that a part of the calls (0.5: half, 0.99: all but one in a hundred) stayed within,
    /// in nanoseconds, exact to an eighth. None without calls.
    pub fn quantile_ns(&self, part: f64) -> Option<u64> {
        let calls = self.calls();
        let wanted = ((calls as f64 * part.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut below = 0_u64;
        for (bucket, &count) in self.counts.iter().enumerate() {
            below = below.saturating_add(count);
            if count > 0 && below >= wanted {
                let (start, end) = (bucket_start(bucket), bucket_start(bucket + 1));
                return Some(start + (end - start) / 2);
            }
        }
        None
    }

    /// What was counted since an earlier sample of the same orbit.
    pub fn since(&self, earlier: &Latency) -> Latency {
        let mut counts = self.counts.clone();
        for (count, before) in counts.iter_mut().zip(earlier.counts.iter()) {
            *count = count.saturating_sub(*before);
        }
        Latency { counts }
    }
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests;
