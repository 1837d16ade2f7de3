//! The goroutines that wait for locks of package sync, by the runtime's table of those that sleep,
//! and the goroutines that have the address of such a lock on their stacks.
//!
//! Owns: reading `runtime.semtable` and the stacks of goroutines. A lock of Go's keeps no owner;
//! whoever is to unlock it has, as a rule, its address or that of the structure around it on its
//! stack, but so may others. Promises: the process is not stopped and not asked, so what is read of
//! goroutines that run meanwhile may be torn; at most [`MAX_WAITERS`] waiters, [`MAX_GOROUTINES`]
//! goroutines and [`MAX_STACKS`] bytes of their stacks are read. Refuses: programs without symbols
//! or DWARF, as the module does.

use super::{Layout, MAX_GOROUTINES, MAX_SECTION, SCANS, WAITING, layout, reason_text};
use crate::stacks::elf::{Room, u64_at};
use crate::stacks::module::open_elf;
use crate::stacks::object;
use crate::{Mapping, Maps, Memory};
use std::collections::{BTreeMap, BTreeSet};

/// Waiters read at most.
pub const MAX_WAITERS: usize = 20_000;
/// Bytes of stacks read at most, and of one goroutine's, its innermost part.
pub const MAX_STACKS: usize = 32 << 20;
const MAX_STACK: usize = 64 << 10;
/// Where a slot of the table of sleepers has its tree, and the slots' distance.
const TREE: usize = 8;
const SLOT: usize = 64;
/// Bytes of a sleeper's record that are read.
const RECORD: usize = 256;
/// A structure whose address is so much before that of its lock is taken for the one around it.
const AROUND: u64 = 256;
/// Names of the reasons for which goroutines wait for locks, and where the semaphore of each lies
/// in the lock.
const REASONS: [(&str, u64); 3] = [("sync.Mutex.Lock", 4), ("sync.RWMutex.Lock", 8), ("sync.RWMutex.RLock", 12)];
/// A wait for other goroutines as such.
const FOR_OTHERS: &str = "sync.WaitGroup.Wait";

/// A goroutine that waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locked {
    /// The goroutine.
    pub goroutine: u64,
    /// The lock's address.
    pub lock: u64,
    /// Whether it is a `sync.RWMutex`.
    pub is_rw: bool,
    /// A count that changes each time it runs.
    pub turn: u8,
    /// Goroutines that wait for another lock, and have the address of this one on their stacks.
    pub near: Vec<u64>,
    /// Whether others have it there, that neither wait for a lock nor for goroutines to be done,
    /// or may have it.
    pub by_others: bool,
}

/// The locks of a Go program: where the runtime keeps what is needed.
#[derive(Clone, Debug)]
pub struct Locks {
    pid: i32,
    memory: Memory,
    file: Mapping,
    /// The table of those that sleep at semaphores, and its size.
    table: (u64, u64),
    goroutines: u64,
    reasons: u64,
    /// Nothing before it was asked for; then nothing inside if the file has none.
    layout: Option<Option<Layout>>,
}

/// Finds a Go program; nothing if it is none, or one without symbols.
pub fn find(pid: i32) -> Option<Locks> {
    let maps = Maps::of(pid).ok()?;
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let file = maps.iter().find(|m| m.exec && m.ino != 0 && exe.as_os_str() == m.path.as_str())?;
    let elf = open_elf(pid, file, &Room::of(MAX_SECTION))?;
    elf.section(".gopclntab")?;
    let bias = file.start.wrapping_sub(elf.linked(file.offset)?);
    let variable = |name: &str| object(&elf, name.as_bytes()).map(|(at, size)| (at.wrapping_add(bias), size));
    Some(Locks {
        pid,
        memory: Memory::of(pid),
        file: file.clone(),
        table: variable("runtime.semtable")?,
        goroutines: variable("runtime.allgs")?.0,
        reasons: variable("runtime.waitReasonStrings")?.0,
        layout: None,
    })
}

/// A goroutine, as far as it matters here.
#[derive(Clone, Copy, Debug)]
struct Goroutine {
    id: u64,
    status: u32,
    reason: u8,
    turn: u8,
    /// From its innermost frame on.
    stack: (u64, u64),
}

impl Locks {
    /// Whether anybody sleeps at a semaphore: a lock's, or one for other uses. Costs a few us.
    pub fn are_waited_for(&self) -> bool {
        !self.trees().is_empty()
    }

    fn trees(&self) -> Vec<u64> {
        let table = self.memory.vec(self.table.0, self.table.1.min(1 << 16) as usize);
        table.chunks_exact(SLOT).filter_map(|slot| u64_at(slot, TREE)).filter(|tree| *tree != 0).collect()
    }

    /// The goroutines that wait for a lock now. The first call reads the program's DWARF.
    pub fn waiters(&mut self) -> Vec<Locked> {
        let (pid, file) = (self.pid, &self.file);
        let read = || open_elf(pid, file, &Room::of(MAX_SECTION)).and_then(|elf| layout(&elf));
        match *self.layout.get_or_insert_with(read) {
            Some(layout) => self.waiters_by(&layout).unwrap_or_default(),
            None => Vec::new(),
        }
    }

    fn waiters_by(&self, l: &Layout) -> Option<Vec<Locked>> {
        let asleep = self.asleep(l);
        let all = self.all(l)?;
        let mut names: BTreeMap<u8, String> = BTreeMap::new();
        let mut name = |reason: u8| -> String {
            let read = || reason_text(&self.memory, self.reasons + 16 * u64::from(reason)).unwrap_or_default();
            names.entry(reason).or_insert_with(read).clone()
        };
        let mut waits: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
        let mut patient: BTreeSet<u64> = BTreeSet::new();
        for (g, goroutine) in all.iter().filter(|(_, goroutine)| goroutine.status == WAITING) {
            let reason = name(goroutine.reason);
            if reason == FOR_OTHERS {
                patient.insert(*g);
            }
            let known = REASONS.iter().find(|(name, _)| *name == reason);
            if let (Some((name, at)), Some(semaphore)) = (known, asleep.get(g)) {
                waits.insert(*g, (semaphore.wrapping_sub(*at), name.contains("RW")));
            }
        }
        let locks: BTreeSet<u64> = waits.values().map(|(lock, _)| *lock).collect();
        let mut near: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        let mut by_others: BTreeSet<u64> = BTreeSet::new();
        let mut room = if locks.is_empty() { 0 } else { MAX_STACKS };
        for (g, goroutine) in all.iter().filter(|(g, _)| !locks.is_empty() && !patient.contains(g)) {
            let (from, to) = goroutine.stack;
            let size = (to.saturating_sub(from) as usize).min(MAX_STACK);
            if size > room {
                // What was not read may have any of them.
                by_others.extend(&locks);
                break;
            }
            room -= size;
            let stack = self.memory.vec(from, size);
            for word in stack.chunks_exact(8).filter_map(|word| u64_at(word, 0)) {
                for lock in locks.range(word..word.saturating_add(AROUND)) {
                    match waits.get(g) {
                        // It has what it waits for there anyhow.
                        Some((own, _)) if own == lock => {}
                        Some(_) => drop(near.entry(*lock).or_default().insert(goroutine.id)),
                        None => drop(by_others.insert(*lock)),
                    }
                }
            }
        }
        let waiter = |(g, (lock, is_rw)): (&u64, &(u64, bool))| {
            let Goroutine { id, turn, .. } = *all.get(g)?;
            let near = near.get(lock).map(|ids| ids.iter().copied().collect()).unwrap_or_default();
            let by_others = by_others.contains(lock);
            Some(Locked { goroutine: id, lock: *lock, is_rw: *is_rw, turn, near, by_others })
        };
        let mut found: Vec<Locked> = waits.iter().filter_map(waiter).collect();
        found.sort_by_key(|locked| locked.goroutine);
        Some(found)
    }

    /// The semaphore at which each goroutine sleeps, by the address of its structure.
    fn asleep(&self, l: &Layout) -> BTreeMap<u64, u64> {
        let (mut found, mut seen, mut level) = (BTreeMap::new(), BTreeSet::new(), self.trees());
        while !level.is_empty() && seen.len() < MAX_WAITERS {
            level.retain(|record| *record != 0 && seen.insert(*record));
            let records = self.memory.many::<RECORD>(&level);
            level.clear();
            for record in records.into_iter().flatten() {
                let word = |at: u64| u64_at(&record, at as usize).unwrap_or(0);
                // The collector's copy of the address may be empty; the address is then behind it.
                let semaphore = if word(l.element) == 0 { word(l.element + 8) } else { word(l.element) };
                found.insert(word(l.sleeper), semaphore);
                level.extend([word(l.previous), word(l.next), word(l.link)]);
            }
        }
        found
    }

    /// All goroutines, by the addresses of their structures.
    fn all(&self, l: &Layout) -> Option<BTreeMap<u64, Goroutine>> {
        let (list, count) = (self.memory.u64(self.goroutines)?, self.memory.u64(self.goroutines + 8)?);
        let list = self.memory.vec(list, 8 * count.min(MAX_GOROUTINES) as usize);
        let all: Vec<u64> = list.chunks_exact(8).filter_map(|g| u64_at(g, 0)).filter(|g| *g != 0).collect();
        let at = |offset: u64| -> Vec<u64> { all.iter().map(|g| g.wrapping_add(offset)).collect() };
        let words = |offset| self.memory.many::<8>(&at(offset));
        let (ids, statuses, reasons) = (words(l.id), words(l.status), self.memory.many::<1>(&at(l.reason)));
        let turns = l.turn.map(|turn| self.memory.many::<1>(&at(turn)));
        let (inner, outer) = (words(l.sp), words(l.stack + 8));
        let one = |(nth, g): (usize, &u64)| {
            let word = |words: &[Option<[u8; 8]>]| words[nth].map(u64::from_le_bytes);
            let status = word(&statuses)? as u32 & !SCANS;
            let turn = turns.as_ref().and_then(|turns| turns[nth]).map_or(0, |[turn]| turn);
            let (id, [reason], stack) = (word(&ids)?, reasons[nth]?, (word(&inner)?, word(&outer)?));
            Some((*g, Goroutine { id, status, reason, turn, stack }))
        };
        Some(all.iter().enumerate().filter_map(one).collect())
    }
}
