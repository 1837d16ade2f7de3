//! The locks of `java.util.concurrent` that threads are parked for, and their holders, as Java's
//! own objects have them.
//!
//! HotSpot does not publish where fields of Java's objects are, but how to tell their classes. A
//! parked thread's `Thread` has a reference to the lock's `Sync`, and that a reference to the
//! `Thread` that holds it; each is the only one of its class there. So both are found by class,
//! wherever they are. Promises and bounds are those of the module; at most [`MAX_OBJECT`] bytes of
//! an object are read. Refuses: collectors that colour references (ZGC), and objects with compact
//! headers.

use super::Java;
use crate::stacks::elf::{u32_at, u64_at};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of an object that are read at most.
const MAX_OBJECT: usize = 1024;
/// Bytes of the name of a class that are compared.
const MAX_NAME: u16 = 128;
/// The classes of which a lock's `Sync` is, in all versions since Java 8.
const SYNCS: [&str; 4] = [
    "java/util/concurrent/locks/ReentrantLock$NonfairSync",
    "java/util/concurrent/locks/ReentrantLock$FairSync",
    "java/util/concurrent/locks/ReentrantReadWriteLock$NonfairSync",
    "java/util/concurrent/locks/ReentrantReadWriteLock$FairSync",
];

/// Where HotSpot has what is needed of objects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Objects {
    thread: u64,
    class: u64,
    name: u64,
    size: u64,
    name_length: u64,
    name_text: u64,
    /// Addresses of base and shift of short references to objects, and to classes.
    references: (u64, u64),
    classes: (u64, u64),
}

impl Objects {
    /// By the fields of HotSpot's table.
    pub(super) fn by(field: impl Fn(&str, &str) -> Option<u64>) -> Option<Objects> {
        // Until JDK 21, and from then on.
        let either = |of: &str, old: &str, new: &str| field(of, old).or_else(|| field(of, new));
        let (oops, klasses) = ("CompressedOops", "CompressedKlassPointers");
        Some(Objects {
            thread: field("JavaThread", "_threadObj")?,
            class: field("oopDesc", "_metadata._compressed_klass")?,
            name: field("Klass", "_name")?,
            size: field("Klass", "_layout_helper")?,
            name_length: field("Symbol", "_length")?,
            name_text: field("Symbol", "_body").or_else(|| field("Symbol", "_body[0]"))?,
            references: (either(oops, "_narrow_oop._base", "_base")?, either(oops, "_narrow_oop._shift", "_shift")?),
            classes: (
                either(klasses, "_narrow_klass._base", "_base")?,
                either(klasses, "_narrow_klass._shift", "_shift")?,
            ),
        })
    }
}

/// How short references are made long.
#[derive(Clone, Copy, Debug)]
struct Short {
    base: u64,
    shift: u32,
}

impl Short {
    fn long(self, short: u32) -> u64 {
        if short == 0 { 0 } else { self.base.wrapping_add(u64::from(short) << self.shift) }
    }
}

/// What was learnt of a class: its name, and the size of its objects.
type Classes = BTreeMap<u32, Option<(String, usize)>>;

impl Java {
    /// Of these HotSpot threads the lock's `Sync` that each is parked for, if it has a holder, and
    /// the HotSpot thread that holds it.
    pub(super) fn owned(&self, all: &[u64], parked: &[u64]) -> Vec<(u64, u64, u64)> {
        let Some(o) = &self.objects else { return Vec::new() };
        let (Some(references), Some(classes)) = (self.short(o.references), self.short(o.classes)) else {
            return Vec::new();
        };
        let objects: BTreeMap<u64, u64> =
            all.iter().filter_map(|thread| Some((self.object_of(o, *thread)?, *thread))).collect();
        let mut known = Classes::new();
        let mut found = Vec::new();
        for thread in parked {
            let Some(object) = self.object_of(o, *thread) else { continue };
            let mut syncs = BTreeSet::new();
            for reference in self.references(o, object, (references, classes), &mut known) {
                let is_sync = self
                    .class(o, reference, classes, &mut known)
                    .is_some_and(|(name, _)| SYNCS.contains(&name.as_str()));
                if is_sync {
                    syncs.insert(reference);
                }
            }
            // More than one would be no `parkBlocker`.
            let [sync] = syncs.into_iter().collect::<Vec<u64>>()[..] else { continue };
            let holders: BTreeSet<u64> = self
                .references(o, sync, (references, classes), &mut known)
                .iter()
                .filter_map(|reference| objects.get(reference).copied())
                .collect();
            if let [holder] = holders.into_iter().collect::<Vec<u64>>()[..] {
                found.push((*thread, sync, holder));
            }
        }
        found
    }

    fn short(&self, (base, shift): (u64, u64)) -> Option<Short> {
        let (base, shift) = (self.memory.u64(base)?, self.memory.u32(shift)?);
        (shift < 32).then_some(Short { base, shift })
    }

    /// The `Thread` of a HotSpot thread, which has a handle of it.
    fn object_of(&self, o: &Objects, thread: u64) -> Option<u64> {
        let handle = self.memory.u64(thread.wrapping_add(o.thread)).filter(|handle| *handle != 0)?;
        self.memory.u64(handle).filter(|object| *object != 0 && object & 7 == 0)
    }

    /// What may be a reference in an object, long.
    fn references(
        &self,
        o: &Objects,
        object: u64,
        (references, classes): (Short, Short),
        known: &mut Classes,
    ) -> Vec<u64> {
        let size = self.class(o, object, classes, known).map_or(0, |(_, size)| size);
        let words = self.memory.vec(object, size);
        let short = words.chunks_exact(4).filter_map(|word| u32_at(word, 0)).map(|short| references.long(short));
        // With a large heap references are long.
        let long = words.chunks_exact(8).filter_map(|word| u64_at(word, 0));
        short.chain(long).filter(|at| *at > 4096 && at & 7 == 0).collect()
    }

    /// The class of what may be an object.
    fn class(&self, o: &Objects, object: u64, classes: Short, known: &mut Classes) -> Option<(String, usize)> {
        let class = self.memory.u32(object.wrapping_add(o.class)).filter(|class| *class != 0)?;
        let read = || {
            let at = classes.long(class);
            let size = self.memory.u32(at.wrapping_add(o.size))? as i32;
            // Of an array it is negative; the lowest bit says how one is made.
            let size = usize::try_from(size & !1).ok().filter(|size| (16..=MAX_OBJECT).contains(size))?;
            let symbol = self.memory.u64(at.wrapping_add(o.name)).filter(|symbol| *symbol != 0)?;
            let length: [u8; 2] = self.memory.bytes(symbol.wrapping_add(o.name_length))?;
            let length = u16::from_le_bytes(length).min(MAX_NAME);
            let name = self.memory.vec(symbol.wrapping_add(o.name_text), usize::from(length));
            Some((String::from_utf8(name).ok()?, size))
        };
        known.entry(class).or_insert_with(read).clone()
    }
}
