//! The way of events out of the kernel: the tables shared with its programs, the slots of
//! subscriptions, and the ring's reader.
//!
//! A slot is a bit in every mask of `bpf/rmk.h`. It is reused as late as possible, and an event
//! older than the subscription that owns the slot now is dropped, so none reaches a stranger. A
//! subscription of a module's new life takes over from the same one of its last life in one step,
//! and releases in one if it ends first: in between one of them counts, never both. The sum of the
//! granted queues never exceeds the ring, so a subscriber that does not read takes no room from
//! another.

use super::{
    kernel::failed,
    layout::{Cpu, LISTED, Listed, MAX_CPUS, OWN, SUBS, Seen, Sub, Table},
};
use aya::maps::{HashMap as PidMap, MapData, RingBuf};
use orbit_linux::{map::Mapping, stat::Stat};
use orbit_rmk::{Counted, CpuState, Event, KernelSide, PinError, Scope, Source, Subscription, lock};
use std::{
    collections::{HashMap, VecDeque},
    io,
    marker::PhantomData,
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

/// Events that the ring holds, less what several CPUs may overshoot.
const RING_EVENTS: u64 = (16 << 20) / 72 - 1024;

/// A map of the kernel, seen as an array here. `T` consists of atomics.
pub(crate) struct View<T> {
    mapping: Mapping,
    of: PhantomData<T>,
}

impl<T> View<T> {
    pub(crate) fn new(map: &MapData, count: usize) -> Result<View<T>, PinError> {
        let bytes = (count * size_of::<T>()).next_multiple_of(4096);
        let mapping = Mapping::shared(map.fd().as_fd(), bytes, true, false)
            .map_err(|error| PinError::of("mapping a table of the kernel programs", error))?;
        Ok(View { mapping, of: PhantomData })
    }

    fn get(&self, n: usize) -> &T {
        assert!((n + 1) * size_of::<T>() <= self.mapping.len(), "row {n} is outside the table");
        // SAFETY: row `n` lies inside the mapping, which lives as long as `self`; `T` is made of
        // atomics, for which every value the kernel may write is valid.
        unsafe { &*self.mapping.as_ptr().cast::<T>().add(n) }
    }
}

struct Slots {
    owner: Vec<Option<Arc<Subscription>>>,
    free: VecDeque<usize>,
    granted: u64,
}

impl Slots {
    fn belongs(&self, slot: usize, sub: u64) -> bool {
        self.owner[slot].as_ref().is_some_and(|owner| owner.id == sub)
    }
}

/// See the module's head. Locks, in the order in which they are taken: a subscription's processes,
/// `slots`, `pids`.
pub(crate) struct Flow {
    pids: Mutex<PidMap<MapData, u32, Listed>>,
    tables: Tables,
    slots: RwLock<Slots>,
    cpus: usize,
}

pub(crate) struct Tables {
    pub subs: View<Sub>,
    pub seen: View<Seen>,
    pub table: View<Table>,
    pub cpus: View<Cpu>,
}

impl Flow {
    pub(crate) fn new(tables: Tables, pids: PidMap<MapData, u32, Listed>) -> Flow {
        let slots = RwLock::new(Slots { owner: vec![None; SUBS], free: (0..SUBS).collect(), granted: 0 });
        Flow { pids: Mutex::new(pids), tables, slots, cpus: possible_cpus() }
    }

    /// Gives the subscription a slot and lets its events flow.
    pub(crate) fn activate(self: &Arc<Self>, sub: &Arc<Subscription>, classes: u64) -> Result<(), PinError> {
        let filter = &sub.filter;
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if slots.granted + u64::from(filter.queue) > RING_EVENTS {
            return Err(PinError::Refused(format!(
                "the ring has room for {RING_EVENTS} waiting events, {} are promised to other subscriptions and {} \
                 are asked for: lower Filter::queue",
                slots.granted, filter.queue
            )));
        }
        let slot = slots.free.pop_front().ok_or_else(|| {
            PinError::Refused(format!(
                "all {SUBS} subscriptions that the kernel half has room for are taken: unsubscribe one"
            ))
        })?;
        let row = self.tables.subs.get(slot);
        let set = |words: &[AtomicU64], chosen: &Option<Vec<u32>>| {
            for word in words {
                word.store(if chosen.is_some() { 0 } else { u64::MAX }, Relaxed);
            }
            for n in chosen.iter().flatten() {
                if let Some(word) = words.get(*n as usize / 64) {
                    word.fetch_or(1 << (n % 64), Relaxed);
                }
            }
        };
        set(&row.keys, &filter.keys);
        set(&row.cpus, &filter.cpus);
        for (word, value) in [
            (&row.classes, classes),
            (&row.min_ns, filter.min_ns),
            (&row.every, filter.every),
            (&row.exact, filter.ticks),
            (&row.quota, u64::from(filter.queue)),
            (&row.taken, 0),
            (&row.sent, 0),
            (&row.lost, 0),
            (&row.unlisted, 0),
        ] {
            word.store(value, Relaxed);
        }
        for cpu in 0..self.cpus {
            let seen = self.tables.seen.get(cpu * 64 + slot);
            seen.passed.store(0, Relaxed);
            seen.due.store(0, Relaxed);
        }
        slots.granted += u64::from(filter.queue);
        slots.owner[slot] = Some(sub.clone());
        drop(slots);
        sub.bind(self.clone(), slot);
        let table = self.tables.table.get(0);
        if filter.scope == Scope::Everyone {
            table.everyone.fetch_or(1 << slot, SeqCst);
        } else {
            table.everyone.fetch_and(!(1 << slot), SeqCst);
            sub.list_all().inspect_err(|_| self.deactivate(sub))?;
        }
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let active = &table.active[sub.kind as usize];
        let replaced = slots.owner.iter().enumerate().find(|(at, owner)| {
            owner.as_ref().is_some_and(|owner| sub.replaces(owner))
                && active.load(SeqCst) >> at & 1 == 1
                && self.tables.subs.get(*at).classes.load(Relaxed) == classes
        });
        match replaced {
            // At once, so that each event is counted by one of them.
            Some((at, Some(owner))) => {
                if filter.scope != Scope::Everyone {
                    self.list_followed(at, slot);
                }
                sub.take_over(owner);
                active.fetch_xor(1 << slot | 1 << at, SeqCst);
            }
            _ => drop(active.fetch_or(1 << slot, SeqCst)),
        }
        Ok(())
    }

    /// Ends the flow of a subscription's events. Those in the ring are dropped when they are read.
    pub(crate) fn deactivate(&self, sub: &Subscription) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = slots.owner.iter().position(|owner| owner.as_ref().is_some_and(|owner| owner.id == sub.id))
        else {
            return;
        };
        let table = self.tables.table.get(0);
        let active = &table.active[sub.kind as usize];
        let replaced = slots.owner.iter().enumerate().find_map(|(at, owner)| {
            owner.as_ref().filter(|owner| sub.took_over() == Some(owner.id)).map(|owner| (at, owner))
        });
        match replaced {
            Some((at, owner)) => {
                active.fetch_xor(1 << slot | 1 << at, SeqCst);
                let counted = self.counted(slot);
                owner.add(counted.passed, counted.due);
            }
            None => drop(active.fetch_and(!(1 << slot), SeqCst)),
        }
        table.everyone.fetch_and(!(1 << slot), SeqCst);
        let mut pids = lock(&self.pids);
        let listed: Vec<(u32, Listed)> =
            pids.iter().flatten().filter(|(_, listed)| listed.mask & (1 << slot) != 0).collect();
        for (pid, listed) in listed {
            lessen(&mut pids, pid, Listed { mask: listed.mask & !(1 << slot), follow: listed.follow & !(1 << slot) });
        }
        slots.granted -= u64::from(sub.filter.queue);
        slots.owner[slot] = None;
        slots.free.push_back(slot);
    }

    /// Lists for the slot `to` what `from`, which it takes over from, followed: of the processes
    /// that listed ones made, nothing else knows. One that is made meanwhile by one not listed yet
    /// is found by the next round.
    fn list_followed(&self, from: usize, to: usize) {
        let (old, new) = (1u64 << from, 1u64 << to);
        let mut pids = lock(&self.pids);
        loop {
            let missing = |listed: &Listed| listed.follow & old != 0 && listed.mask & new == 0;
            let rows: Vec<_> = pids.iter().flatten().filter(|(_, listed)| missing(listed)).collect();
            let more = |(pid, listed): &(u32, Listed)| {
                let listed = Listed { mask: listed.mask | new, follow: listed.follow | new };
                pids.insert(pid, listed, ONLY_EXISTING).is_ok()
            };
            if rows.iter().map(more).filter(|listed| *listed).count() == 0 {
                return;
            }
        }
    }

    /// Marks a process as the core's own: subscriptions to everyone do not see it.
    pub(crate) fn mark_own(&self, pid: u32, own: bool) {
        let mut pids = lock(&self.pids);
        let listed = pids.get(&pid, 0).unwrap_or_default();
        if own {
            // Where there is no room the core sees itself, which is no harm but noise.
            let _ = pids.insert(pid, Listed { mask: listed.mask | OWN, ..listed }, 0);
        } else {
            lessen(&mut pids, pid, Listed { mask: listed.mask & !OWN, ..listed });
        }
    }

    /// What is known of each CPU.
    pub(crate) fn cpu_states(&self) -> Vec<CpuState> {
        online_cpus()
            .into_iter()
            .map(|cpu| {
                let row = self.tables.cpus.get(cpu as usize);
                let current = row.current.load(Relaxed);
                CpuState {
                    cpu,
                    switches: row.switches.load(Relaxed),
                    last_switch: row.last_switch.load(Relaxed),
                    longest: row.longest.load(Relaxed),
                    ticks: row.ticks.load(Relaxed),
                    last_tick: row.last_tick.load(Relaxed),
                    pid: (current >> 32) as u32,
                    tid: current as u32,
                }
            })
            .collect()
    }
}

impl KernelSide for Flow {
    fn took(&self, slot: usize, events: u64) {
        self.tables.subs.get(slot).taken.fetch_add(events, Relaxed);
    }

    fn counted(&self, slot: usize) -> Counted {
        let row = self.tables.subs.get(slot);
        let (mut passed, mut due) = (0, 0);
        for cpu in 0..self.cpus {
            let seen = self.tables.seen.get(cpu * 64 + slot);
            passed += seen.passed.load(Relaxed);
            due += seen.due.load(Relaxed);
        }
        let [sent, lost, unlisted] = [&row.sent, &row.lost, &row.unlisted].map(|count| count.load(Relaxed));
        Counted { passed, due, sent, lost, unlisted }
    }

    /// `process_exit` is attached by now, and takes the row away
    /// with the process.
    fn list(&self, pid: u32, sub: u64, slot: usize, follow: bool) -> Result<(), PinError> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        if !slots.belongs(slot, sub) {
            return Ok(());
        }
        let mut pids = lock(&self.pids);
        let mut listed = pids.get(&pid, 0).unwrap_or_default();
        let bit = 1u64 << slot;
        listed.mask |= bit;
        listed.follow = if follow { listed.follow | bit } else { listed.follow & !bit };
        let what = format!("listing process {pid} for the kernel programs, which have room for {LISTED}");
        pids.insert(pid, listed, 0).map_err(|error| failed(&what, error))?;
        // Its end may have come before the row.
        if ended(pid) {
            let _ = pids.remove(&pid);
        }
        Ok(())
    }

    fn unlist(&self, pid: u32, sub: u64, slot: usize) {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        if !slots.belongs(slot, sub) {
            return;
        }
        let mut pids = lock(&self.pids);
        let Ok(listed) = pids.get(&pid, 0) else { return };
        let bit = 1u64 << slot;
        lessen(&mut pids, pid, Listed { mask: listed.mask & !bit, follow: listed.follow & !bit });
    }
}

const ONLY_EXISTING: u64 = 2; // BPF_EXIST

/// Writes a row with less in it than before. It may have gone with its process meanwhile, and is
/// not made anew then.
fn lessen(pids: &mut PidMap<MapData, u32, Listed>, pid: u32, listed: Listed) {
    let _ = if listed.mask == 0 { pids.remove(&pid) } else { pids.insert(pid, listed, ONLY_EXISTING) };
}

/// Whether no thread of the process will do anything more, so that `process_exit` was, or is about
/// to be, called for its last.
fn ended(pid: u32) -> bool {
    let gone = |error: io::Error| matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH));
    match std::fs::read_dir(format!("/proc/{pid}/task")) {
        Ok(mut threads) => threads.all(|thread| {
            let stat = thread.and_then(|thread| {
                let tid = thread.file_name().to_str().and_then(|name| name.parse().ok());
                Stat::of_thread(pid as i32, tid.ok_or(io::ErrorKind::InvalidData)?)
            });
            stat.map_or_else(gone, |stat| stat.is_exiting())
        }),
        Err(error) => gone(error),
    }
}

/// Online CPUs that the tables have room for.
pub(crate) fn online_cpus() -> Vec<u32> {
    let mut cpus = aya::util::online_cpus().unwrap_or_else(|_| vec![0]);
    cpus.retain(|cpu| (*cpu as usize) < MAX_CPUS);
    cpus
}

/// Number of CPUs that may come online.
pub(crate) fn possible_cpus() -> usize {
    aya::util::nr_cpus().unwrap_or(1).clamp(1, MAX_CPUS)
}

/// Reads the ring on the dispatcher's thread.
pub(crate) struct Reader {
    flow: Arc<Flow>,
    ring: RingBuf<MapData>,
    batches: HashMap<usize, Vec<Event>>,
}

/// Records read in one go, so that other sources have their turn.
const MAX_BATCH_RECORDS: usize = 4096;
/// Milliseconds that an event which must not wake the reader (one of its own doing, an interrupt)
/// waits at most.
const MAX_DELAY_MS: i32 = 20;

impl Reader {
    pub(crate) fn new(flow: Arc<Flow>, ring: RingBuf<MapData>) -> Reader {
        Reader { flow, ring, batches: HashMap::new() }
    }

    /// Moves what is in the ring to the queues; gives the number of records.
    fn drain(&mut self) -> usize {
        let mut records = 0;
        while records < MAX_BATCH_RECORDS {
            let Some(record) = self.ring.next() else { break };
            records += 1;
            let Some(bytes) = record.first_chunk::<{ Event::BYTES }>() else { continue };
            let event = Event::from_bytes(bytes);
            let mut left = event.subscription & !OWN;
            while left != 0 {
                let slot = left.trailing_zeros() as usize;
                left &= left - 1;
                self.batches.entry(slot).or_default().push(event);
            }
        }
        let slots = self.flow.slots.read().unwrap_or_else(PoisonError::into_inner);
        for (slot, events) in &mut self.batches {
            if let Some(Some(sub)) = slots.owner.get(*slot) {
                events.retain(|event| event.time >= sub.since);
                for event in events.iter_mut() {
                    event.subscription = sub.id;
                }
                if !events.is_empty() {
                    sub.queue_sent(events);
                }
            }
            events.clear();
        }
        records
    }
}

impl Source for Reader {
    fn fd(&self) -> RawFd {
        self.ring.as_fd().as_raw_fd()
    }

    /// Says that it sleeps, and only then drains the ring a last time: what comes after that wakes
    /// it.
    fn before_sleep(&mut self) -> i32 {
        self.flow.tables.table.get(0).asleep.store(1, SeqCst);
        if self.drain() > 0 { 0 } else { MAX_DELAY_MS }
    }

    fn ready(&mut self) {
        self.flow.tables.table.get(0).asleep.store(0, SeqCst);
        self.drain();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Kernel;
    use orbit_rmk::{Env, Filter, Kind};

    #[test]
    fn a_new_life_follows_the_children_that_the_last_one_followed() {
        let env = Env::new(true).expect("a dispatcher");
        let Ok(kernel) = Kernel::of(&env) else {
            println!("SKIP: needs kernel programs (root, or CAP_BPF and CAP_PERFMON)");
            return;
        };
        let filter = Filter::pids(&[std::process::id()]).queue(1);
        let _forks = kernel.attach_for(&filter, &[]).expect("attached");
        let life = |client, before| {
            let subscription = Subscription::detached(client, client, before, Kind::CallBegun, filter.clone());
            let subscription = Arc::new(subscription);
            kernel.flow().activate(&subscription, 0).expect("a slot");
            subscription
        };
        let first = life(1, 0);
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
        let slots = || lock(&kernel.flow().pids).get(&child.id(), 0).unwrap_or_default().follow.count_ones();
        let made = slots();
        let second = life(2, 1);
        let both = slots();
        kernel.flow().deactivate(&first);
        let new = slots();
        let stranger = life(4, 3);
        let beside = slots();
        child.kill().expect("a child");
        child.wait().expect("a child");
        assert_eq!([made, both, new, beside], [1, 2, 1, 1], "the stranger has no life before");
        [second, stranger].iter().for_each(|subscription| kernel.flow().deactivate(subscription));
    }

    #[test]
    fn a_subscription_without_its_slot_lists_nobody_there() {
        let env = Env::new(true).expect("a dispatcher");
        let Ok(kernel) = Kernel::of(&env) else {
            println!("SKIP: needs kernel programs (root, or CAP_BPF and CAP_PERFMON)");
            return;
        };
        let subscription = |id| {
            let filter = Filter::pids(&[]).queue(1);
            Arc::new(Subscription::detached(id, 1, 0, Kind::CallBegun, filter))
        };
        let pid = std::process::id();
        let mask = || lock(&kernel.flow().pids).get(&pid, 0).unwrap_or_default().mask & !OWN;
        let first = subscription(1);
        kernel.flow().activate(&first, 0).expect("a slot");
        first.list(pid).expect("listed");
        assert_ne!(mask(), 0);
        kernel.flow().deactivate(&first);
        assert_eq!(mask(), 0);
        // Whoever guards a program meanwhile may still know it.
        first.list(pid).expect("nothing to do");
        assert_eq!(mask(), 0, "for the slot's next owner");
        // Round to the same slot.
        let others: Vec<_> = (2..2 + SUBS as u64).map(subscription).collect();
        for other in &others {
            kernel.flow().activate(other, 0).expect("a slot");
            other.list(pid).expect("listed");
        }
        let all = mask();
        first.unlist(pid);
        assert_eq!(mask(), all, "the next owner's");
    }
}
