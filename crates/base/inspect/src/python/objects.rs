//! Python's objects: attributes, dictionaries, sets, numbers.
//!
//! Owns: how CPython 3.11 and 3.12 lay them out on 64-bit Linux. Promises and bounds are those of
//! the module. Refuses: other versions, for which [`Python::reads_objects`] says so.

use super::{MAX_INTERPRETERS, Python, Reader};
use std::collections::HashSet;

/// Where a version has what is needed of objects, beside what both have alike.
#[derive(Clone, Copy, Debug)]
pub(super) struct Objects {
    /// Of an interpreter its modules.
    modules: u64,
    /// Of a type the keys of objects that have no dictionary.
    shared_keys: u64,
    /// In front of an object its values, or else its dictionary; in 3.12 both are one word, whose
    /// lowest bit says which.
    values_before: u64,
    dictionary_before: u64,
    /// What stands before the digit of a number that has one and is not negative.
    one_digit: u64,
    /// Of a coroutine or generator its state and its frame.
    pub(super) state: u64,
    pub(super) frame: u64,
    /// What asyncio calls the set of its tasks.
    pub(super) tasks: &'static str,
}

const V311: Objects = Objects {
    modules: 888,
    shared_keys: 872,
    values_before: 32,
    dictionary_before: 24,
    one_digit: 1,
    state: 75,
    frame: 80,
    tasks: "_all_tasks",
};

const V312: Objects = Objects {
    modules: 944,
    shared_keys: 880,
    values_before: 24,
    dictionary_before: 24,
    one_digit: 1 << 3,
    state: 67,
    frame: 72,
    tasks: "_scheduled_tasks",
};

/// Of a module its variables.
const VARIABLES: u64 = 16;
/// Of every object its type; of a type its name, its flags, and where its objects have their
/// dictionary.
const TYPE: u64 = 8;
const NAME: u64 = 24;
const FLAGS: u64 = 168;
const DICTIONARY_AT: u64 = 288;
/// The flag of types whose objects have their values or a dictionary in front.
const IS_MANAGED: u64 = 1 << 4;
/// Of a dictionary its keys, and its values if those are apart.
const KEYS: u64 = 32;
const VALUES: u64 = 40;
/// The head of a table of keys: size of its index as a power of two, its kind, count of entries.
const HEAD: u64 = 32;
const INDEX: usize = 9;
const KIND: usize = 10;
const ENTRIES: usize = 24;
/// Kind of a table whose entries have the hash too.
const GENERAL: u8 = 0;
/// Of a set the mask of its table, and the table: key and hash each.
const MASK: u64 = 32;
const TABLE: u64 = 40;
const MAX_ENTRIES: u64 = 1 << 17;
/// Of a number the count of its digits, with its sign, and the first one, of 30 bits.
const DIGITS: u64 = 16;
const FIRST_DIGIT: u64 = 24;
/// Longest name of a type that is read.
const MAX_NAME: usize = 64;
/// Of a text its length; most bytes before the text itself, and those of its beginning that are
/// compared.
const LENGTH: usize = 16;
const BEFORE_TEXT: usize = 48;
const COMPARED: usize = 16;

impl Python {
    /// How objects are laid out.
    ///
    /// # Errors
    /// A sentence, where the version is not known.
    pub(super) fn objects(&self) -> Result<Objects, String> {
        match self.version {
            (3, 11) => Ok(V311),
            (3, 12) => Ok(V312),
            (major, minor) => Err(format!(
                "names of Python's threads and tasks of asyncio are read of CPython 3.11 and 3.12 alone, not of \
                 {major}.{minor}"
            )),
        }
    }

    /// Whether names of threads, and tasks of asyncio, can be read.
    ///
    /// # Errors
    /// A sentence, where the version is not known.
    pub fn reads_objects(&self) -> Result<(), String> {
        self.objects().map(|_| ())
    }

    /// The variables of a module, as the dictionaries of each interpreter that has it.
    pub(super) fn modules(&self, r: &mut Reader, o: &Objects, name: &str) -> Vec<u64> {
        let (mut out, mut known) = (Vec::new(), HashSet::new());
        let mut next = r.pointer(self.runtime.wrapping_add(self.layout.interp_head));
        while let Some(interpreter) = next.filter(|i| known.len() < MAX_INTERPRETERS && known.insert(*i)) {
            let module = r.pointer(interpreter.wrapping_add(o.modules)).and_then(|all| self.item(r, all, name));
            out.extend(module.and_then(|module| r.pointer(module.wrapping_add(VARIABLES))));
            next = r.pointer(interpreter.wrapping_add(self.layout.interp_next));
        }
        out
    }

    /// What a dictionary has under a text of ASCII.
    pub(super) fn item(&self, r: &mut Reader, dictionary: u64, name: &str) -> Option<u64> {
        let items = self.items(r, dictionary);
        let at = self.place_of(r, &items, name)?;
        Some(items[at].1)
    }

    /// The keys of a dictionary with their values.
    pub(super) fn items(&self, r: &mut Reader, dictionary: u64) -> Vec<(u64, u64)> {
        let Some(keys) = r.pointer(dictionary.wrapping_add(KEYS)) else { return Vec::new() };
        let values = r.u64(dictionary.wrapping_add(VALUES)).unwrap_or(0);
        self.entries(r, keys, values).unwrap_or_default()
    }

    /// An attribute that an object has by itself.
    pub(super) fn attribute(&self, r: &mut Reader, o: &Objects, object: u64, name: &str) -> Option<u64> {
        let kind = r.pointer(object.wrapping_add(TYPE))?;
        let flags = r.u64(kind.wrapping_add(FLAGS))?;
        if flags & IS_MANAGED == 0 {
            let at = r.u64(kind.wrapping_add(DICTIONARY_AT)).filter(|at| (1..1 << 16).contains(at))?;
            let dictionary = r.pointer(object.wrapping_add(at))?;
            return self.item(r, dictionary, name);
        }
        let values = r.u64(object.wrapping_sub(o.values_before))?;
        let is_one_word = o.values_before == o.dictionary_before;
        if values == 0 || is_one_word && values & 1 == 0 {
            let dictionary = r.pointer(object.wrapping_sub(o.dictionary_before))?;
            return self.item(r, dictionary, name);
        }
        // The word has one byte less than the address, so that its lowest bit is set.
        let values = if is_one_word { values.wrapping_add(1) } else { values };
        let keys = r.pointer(kind.wrapping_add(o.shared_keys))?;
        let items = self.entries(r, keys, values)?;
        let at = self.place_of(r, &items, name)?;
        Some(items[at].1)
    }

    /// The keys of a table with their values, which are in `values` unless that is 0.
    fn entries(&self, r: &mut Reader, keys: u64, values: u64) -> Option<Vec<(u64, u64)>> {
        let head = r.bytes::<{ HEAD as usize }>(keys)?;
        let word = |bytes: &[u8], at: usize| crate::stacks::elf::u64_at(bytes, at).unwrap_or(0);
        let count = word(&head, ENTRIES).min(MAX_ENTRIES);
        let index = 1u64.checked_shl(u32::from(head[INDEX])).filter(|size| *size <= 8 * MAX_ENTRIES)?;
        // A hash, if there is one, comes first.
        let (size, key) = if head[KIND] == GENERAL { (24, 8) } else { (16, 0) };
        let entries = r.vec(keys.wrapping_add(HEAD + index), count * size)?;
        let apart = if values == 0 { Vec::new() } else { r.vec(values, count * 8)? };
        let entry = |(nth, entry): (usize, &[u8])| {
            let value = if values == 0 { word(entry, key + 8) } else { word(&apart, 8 * nth) };
            (word(entry, key), value)
        };
        Some(entries.chunks_exact(size as usize).enumerate().map(entry).collect())
    }

    /// The first of these entries whose key is a text of ASCII and that has a value.
    fn place_of(&self, r: &mut Reader, items: &[(u64, u64)], name: &str) -> Option<usize> {
        let places: Vec<u64> = items.iter().map(|(key, _)| *key).collect();
        r.left = r.left.checked_sub(places.len().div_ceil(16))?;
        r.take(places.len() * (BEFORE_TEXT + COMPARED))?;
        let heads = self.memory.many::<{ BEFORE_TEXT + COMPARED }>(&places);
        let text = self.layout.ascii as usize;
        // Of those that the rest is to be read of there are few, and of those that end where memory
        // does.
        let begins = &name.as_bytes()[..name.len().min(COMPARED)];
        let may_be = |head: &Option<[u8; BEFORE_TEXT + COMPARED]>| match head {
            Some(head) => {
                let length = crate::stacks::elf::u64_at(head, LENGTH);
                length == Some(name.len() as u64) && head[text..].starts_with(begins)
            }
            None => true,
        };
        (0..items.len()).find(|nth| {
            let (key, value) = items[*nth];
            value != 0 && key != 0 && may_be(&heads[*nth]) && self.text(r, key).as_deref() == Some(name)
        })
    }

    /// The members of a set.
    pub(super) fn members(&self, r: &mut Reader, set: u64) -> Vec<u64> {
        let Some(mask) = r.u64(set.wrapping_add(MASK)).filter(|mask| *mask < MAX_ENTRIES) else { return Vec::new() };
        let table = r.pointer(set.wrapping_add(TABLE)).and_then(|table| r.vec(table, (mask + 1) * 16));
        let words = table.unwrap_or_default();
        let keys = words.chunks_exact(16).filter_map(|entry| crate::stacks::elf::u64_at(entry, 0));
        keys.filter(|key| *key != 0).collect()
    }

    /// The name of an object's type.
    pub(super) fn kind(&self, r: &mut Reader, object: u64) -> Option<String> {
        let kind = r.pointer(object.wrapping_add(TYPE))?;
        let name = r.u64(kind.wrapping_add(NAME))?;
        r.take(MAX_NAME)?;
        let text = self.memory.vec(name, MAX_NAME);
        let end = text.iter().position(|byte| *byte == 0)?;
        String::from_utf8(text[..end].to_vec()).ok()
    }

    /// A number of one digit.
    pub(super) fn number(&self, r: &mut Reader, o: &Objects, object: u64) -> Option<i32> {
        let digits = r.u64(object.wrapping_add(DIGITS))?;
        let digit: [u8; 4] = r.bytes(object.wrapping_add(FIRST_DIGIT))?;
        (digits == o.one_digit).then(|| u32::from_le_bytes(digit) as i32)
    }
}
