//! The global variables of a process, by the symbols of its files.

use crate::stacks::elf::{Room, text_at, u32_at, u64_at};
use crate::stacks::module::{open_elf, split_off};
use crate::stacks::readable;
use crate::stacks::symbols::{DYNSYM, SYMTAB, entries, tables};
use crate::{Mapping, Maps};
use std::collections::BTreeMap;

/// Bytes of symbol tables read of one file.
const MAX_TABLE: usize = 512 << 20;
const OBJECT: u8 = 1;

/// A variable with a symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Global {
    /// Its readable name.
    pub name: String,
    /// The file, by the name the process knows it.
    pub module: String,
    /// Its first byte's address in the process.
    pub address: u64,
    /// Bytes; at least 1.
    pub size: u64,
}

/// All variables of the process' files whose path `wanted` accepts, by address. Takes some
/// milliseconds for a large program. Variables without a symbol (of a stripped program), without a
/// size, and those of a thread's own are not among them.
pub fn of(pid: i32, maps: &Maps, wanted: impl Fn(&str) -> bool) -> BTreeMap<u64, Global> {
    let mut files: BTreeMap<(u64, u64), &Mapping> = BTreeMap::new();
    for m in maps.iter().filter(|m| m.exec && m.ino != 0 && wanted(&m.path)) {
        files.entry((m.dev, m.ino)).or_insert(m);
    }
    let mut found = BTreeMap::new();
    for m in files.into_values() {
        add(pid, m, &mut found);
    }
    found
}

/// The variable that holds an address of the process, and the distance from its first byte: of
/// those of the file that is mapped there, or right before (its zeros have no file).
pub fn at(pid: i32, maps: &Maps, address: u64) -> Option<(Global, u64)> {
    let file = maps.iter().rfind(|m| m.start <= address && m.ino != 0)?;
    // A file's parts lie side by side; memory in between is another's.
    let near = address < file.end || maps.at(address).is_some_and(|m| m.ino == 0 && m.start == file.end);
    let globals = if near { of(pid, maps, |path| path == file.path) } else { return None };
    let (start, global) = globals.range(..=address).next_back()?;
    (address - start < global.size).then(|| (global.clone(), address - start))
}

fn add(pid: i32, m: &Mapping, found: &mut BTreeMap<u64, Global>) {
    let room = Room::of(MAX_TABLE);
    let Some(mut elf) = open_elf(pid, m, &room) else { return };
    let Some(bias) = elf.linked(m.offset).map(|linked| m.start.wrapping_sub(linked)) else { return };
    if !elf.sections.iter().any(|s| s.kind == SYMTAB)
        && let Some(debug) = split_off(pid, &elf, &room)
    {
        // Symbols that were split off have the same addresses.
        elf = debug;
    }
    for (_, table, strings) in tables(&elf, [SYMTAB, DYNSYM]) {
        for s in entries(&table) {
            let name = u32_at(s, 0).and_then(|n| text_at(&strings, n as usize)).unwrap_or_default();
            let (Some(linked), Some(size)) = (u64_at(s, 8), u64_at(s, 16)) else { continue };
            if s[4] & 15 == OBJECT && (s[6] != 0 || s[7] != 0) && size != 0 && !name.is_empty() {
                let address = bias.wrapping_add(linked);
                let name = name.split(|&c| c == b'@').next().unwrap_or(name);
                let global = || Global { name: readable(name), module: m.path.clone(), address, size };
                found.entry(address).or_insert_with(global);
            }
        }
    }
}
