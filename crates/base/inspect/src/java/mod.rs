//! The monitors and locks that the threads of a Java program wait for, and their holders, as
//! HotSpot's own memory has them.
//!
//! Owns: reading what HotSpot publishes about itself for debuggers (`gHotSpotVMStructs`: each field
//! that is used here with its place), the threads' pending monitors, and (`owned`) the locks of
//! `java.util.concurrent`. Promises: the process is not stopped and not asked; at most
//! [`MAX_THREADS`] threads are read. What is read of threads that did not run meanwhile is as it
//! was at one moment. Refuses: other virtual machines; monitors and locks whose holder is not named
//! or is no thread of the system's (a virtual thread).

mod owned;

use crate::stacks::elf::Room;
use crate::stacks::module::open_elf;
use crate::waits::Watched;
use crate::{Mapping, Maps, Memory};
use std::collections::BTreeMap;

/// Threads of a JVM that are read at most.
pub const MAX_THREADS: usize = 8192;
/// Entries of the table of fields at most: there are some 600 to 800.
const MAX_ENTRIES: u64 = 4096;
/// Bytes of the file's symbol table that are read.
const MAX_SYMBOLS: usize = 64 << 20;
/// Longest name of a field that is compared.
const NAME: usize = 48;

/// A thread that waits to enter a monitor or for a lock, and the thread that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entering {
    /// The thread that waits.
    pub waiter: i32,
    /// Address of the monitor, or of the lock's object.
    pub monitor: u64,
    /// The thread that holds it.
    pub holder: i32,
    /// Whether it is a lock of `java.util.concurrent`.
    pub is_lock: bool,
}

/// A JVM in another process: where it keeps what is needed.
#[derive(Clone, Debug)]
pub struct Java {
    memory: Memory,
    /// Address of the pointer to the list of threads.
    list: u64,
    length: u64,
    threads: u64,
    pending: u64,
    os_thread: u64,
    thread_id: u64,
    owner: u64,
    /// From JDK 24 on a thread's number as an owner; before, the owner is its address.
    number: Option<u64>,
    stack: (u64, u64),
    /// What objects are read by; nothing where HotSpot publishes too little.
    objects: Option<owned::Objects>,
}

/// Finds a JVM; nothing if the process has none, or one that publishes too little.
pub fn find(pid: i32) -> Option<Java> {
    let maps = Maps::of(pid).ok()?;
    let is_first = |m: &&Mapping| m.offset == 0 && m.ino != 0 && m.path.ends_with("/libjvm.so");
    let file = maps.iter().find(is_first)?;
    let elf = open_elf(pid, file, &Room::of(MAX_SYMBOLS))?;
    let memory = Memory::of(pid);
    let table = crate::stacks::object(&elf, b"gHotSpotVMStructs").map(|(linked, _)| linked)?;
    let bias = file.start.wrapping_sub(elf.linked(file.offset)?);
    Java::by_table(memory, memory.u64(table.wrapping_add(bias))?)
}

impl Java {
    fn by_table(memory: Memory, table: u64) -> Option<Java> {
        // Type, field and type of the field by name, whether it is static, offset, address.
        const ENTRY: u64 = 48;
        let places: Vec<u64> = (0..MAX_ENTRIES).map(|nth| table.wrapping_add(ENTRY * nth)).collect();
        let word = |entry: &[u8], at: usize| crate::stacks::elf::u64_at(entry, at).unwrap_or(0);
        let entries = memory.many::<{ ENTRY as usize }>(&places);
        let entries: Vec<_> = entries.into_iter().map_while(|entry| entry.filter(|e| word(e, 0) != 0)).collect();
        let name = |at: u64| {
            let text = memory.vec(at, NAME);
            let end = text.iter().position(|byte| *byte == 0)?;
            String::from_utf8(text[..end].to_vec()).ok()
        };
        const TYPES: [&str; 11] = [
            "ThreadsSMRSupport",
            "ThreadsList",
            "JavaThread",
            "Thread",
            "OSThread",
            "ObjectMonitor",
            "Klass",
            "Symbol",
            "oopDesc",
            "CompressedOops",
            "CompressedKlassPointers",
        ];
        let mut types: BTreeMap<u64, Option<String>> = BTreeMap::new();
        let mut fields: BTreeMap<(String, String), u64> = BTreeMap::new();
        for entry in &entries {
            let of = types.entry(word(entry, 0)).or_insert_with(|| name(word(entry, 0)));
            let Some(of) = of.as_ref().filter(|of| TYPES.contains(&of.as_str())) else { continue };
            let Some(field) = name(word(entry, 8)) else { continue };
            let place = if word(entry, 24) as u32 == 0 { word(entry, 32) } else { word(entry, 40) };
            fields.insert((of.clone(), field), place);
        }
        let field = |of: &str, name: &str| fields.get(&(of.to_owned(), name.to_owned())).copied();
        let of_thread = |name: &str| field("JavaThread", name).or_else(|| field("Thread", name));
        Some(Java {
            memory,
            list: field("ThreadsSMRSupport", "_java_thread_list")?,
            length: field("ThreadsList", "_length")?,
            threads: field("ThreadsList", "_threads")?,
            pending: of_thread("_current_pending_monitor")?,
            os_thread: of_thread("_osthread")?,
            thread_id: field("OSThread", "_thread_id")?,
            owner: field("ObjectMonitor", "_owner")?,
            number: of_thread("_monitor_owner_id"),
            stack: (of_thread("_stack_base")?, of_thread("_stack_size")?),
            objects: owned::Objects::by(field),
        })
    }

    /// The threads that wait to enter a monitor now, as far as its holder is known, and those of
    /// `parked` (asleep without a limit of time) that wait for a lock of `java.util.concurrent`.
    pub fn entering(&self, parked: &[i32]) -> Vec<Entering> {
        let memory = &self.memory;
        let Some(list) = memory.u64(self.list) else { return Vec::new() };
        let count = memory.u32(list.wrapping_add(self.length)).unwrap_or(0) as usize;
        let first = memory.u64(list.wrapping_add(self.threads)).unwrap_or(0);
        let places: Vec<u64> = (0..count.min(MAX_THREADS) as u64).map(|nth| first.wrapping_add(8 * nth)).collect();
        let threads: Vec<u64> = self.words(&places).into_iter().flatten().collect();
        let pending = self.words(&self.at(&threads, self.pending));
        let waiting: Vec<(u64, u64)> = threads
            .iter()
            .zip(pending)
            .filter_map(|(thread, monitor)| Some((*thread, monitor.filter(|m| *m != 0)?)))
            .collect();
        if waiting.is_empty() && parked.is_empty() {
            return Vec::new();
        }
        let ids = self.ids(&threads);
        let Ok(watched) = Watched::of_few(memory.pid()) else { return Vec::new() };
        let id = |thread: u64| watched.translated(*ids.get(&thread)?);
        let is_parked = |thread: &&u64| id(**thread).is_some_and(|tid| parked.contains(&tid));
        let parked: Vec<u64> = threads.iter().filter(is_parked).copied().collect();
        let owners: Owners = self.owners(&threads);
        let monitors = waiting.into_iter().filter_map(|(thread, monitor)| {
            let owner = owners.of(memory.u64(monitor.wrapping_add(self.owner))?)?;
            Some(Entering { waiter: id(thread)?, monitor, holder: id(owner)?, is_lock: false })
        });
        let locks = self.owned(&threads, &parked).into_iter().filter_map(|(thread, lock, owner)| {
            Some(Entering { waiter: id(thread)?, monitor: lock, holder: id(owner)?, is_lock: true })
        });
        monitors.chain(locks).collect()
    }

    fn at(&self, threads: &[u64], field: u64) -> Vec<u64> {
        threads.iter().map(|thread| thread.wrapping_add(field)).collect()
    }

    fn words(&self, places: &[u64]) -> Vec<Option<u64>> {
        self.memory.many::<8>(places).into_iter().map(|word| word.map(u64::from_le_bytes)).collect()
    }

    /// The kernel's ids of threads, in the process' own namespace.
    fn ids(&self, threads: &[u64]) -> BTreeMap<u64, i32> {
        let os_threads = self.words(&self.at(threads, self.os_thread));
        let known =
            threads.iter().zip(os_threads).filter_map(|(thread, os)| Some((*thread, os.filter(|os| *os != 0)?)));
        let id = |(thread, os): (u64, u64)| Some((thread, self.memory.u32(os.wrapping_add(self.thread_id))? as i32));
        known.filter_map(id).collect()
    }

    fn owners(&self, threads: &[u64]) -> Owners {
        let all = |field| threads.iter().copied().zip(self.words(&self.at(threads, field)));
        let some = |field| all(field).filter_map(|(thread, word)| Some((thread, word?)));
        match self.number {
            Some(number) => Owners::Numbers(some(number).map(|(thread, number)| (number, thread)).collect()),
            None => {
                let sizes: BTreeMap<u64, u64> = some(self.stack.1).collect();
                let range = |(thread, base): (u64, u64)| {
                    let size = sizes.get(&thread).copied().unwrap_or(0);
                    (base.saturating_sub(size)..base, thread)
                };
                Owners::Addresses(some(self.stack.0).map(range).collect())
            }
        }
    }
}

/// How a monitor names its owner.
enum Owners {
    /// By a number.
    Numbers(BTreeMap<u64, u64>),
    /// By the thread's address, or by that of a record on its stack.
    Addresses(Vec<(std::ops::Range<u64>, u64)>),
}

impl Owners {
    fn of(&self, owner: u64) -> Option<u64> {
        match self {
            Owners::Numbers(threads) => threads.get(&owner).copied(),
            Owners::Addresses(threads) => {
                let is_owner =
                    |(stack, thread): &&(std::ops::Range<u64>, u64)| *thread == owner || stack.contains(&owner);
                threads.iter().find(is_owner).map(|(_, thread)| *thread)
            }
        }
    }
}
