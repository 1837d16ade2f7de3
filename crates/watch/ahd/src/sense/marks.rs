//! The records that `orbit-section` keeps in a program's memory, read from outside.
//!
//! Owns: where they are, one for each copy of the library in the process. Promises: trusts nothing
//! in them; what one scan reads is bounded by the layout.

use crate::facts::Cell;
use orbit_inspect::{Maps, Memory};
use orbit_section::layout::{CELLS_AT, EXITS, MAGIC, NAME, NAMES_AT, SECTIONS, SLOTS, SLOTS_AT, Slot};
use std::collections::BTreeMap;

/// Scans between two searches for a record in a process that has none yet.
const SEARCH_EVERY: u64 = 8;
/// The same for one that has made none in [`SEARCHES`], or has one: a library loaded later may
/// bring another.
const SEARCH_SELDOM: u64 = SEARCH_EVERY * 16;
const SEARCHES: u32 = 50;
/// Records of a process that are read.
const RECORDS: usize = 16;
/// Bytes of a cell: the entry count and those of the exits.
const CELL: usize = 32;
/// Bytes of a slot before the place of the section that was entered last.
const LAST_AT: usize = 4;
/// Bytes of a name.
const NAME_BYTES: usize = 64;

#[derive(Debug)]
struct Record {
    base: u64,
    /// The numbers that its sections have in [`Marks::names`].
    sections: Vec<usize>,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Marks {
    records: Vec<Record>,
    searches: u32,
    names: Vec<String>,
    /// Entry counts that were handed over last.
    known: BTreeMap<(i32, usize), u32>,
}

impl Marks {
    /// Reads them. `thread` says of an id in the program's own namespace which thread it is, its
    /// CPU time and that since the scan before. Names are answered where one is new; last the
    /// sections that threads entered last, of those that they are in.
    pub(super) fn read(
        &mut self,
        pid: i32,
        scan: u64,
        thread: impl Fn(i32) -> Option<(i32, u64, u64)>,
    ) -> (Vec<String>, Vec<Cell>, Vec<(i32, usize)>) {
        self.find(pid, scan);
        let (mut cells, mut lasts, mut is_new) = (Vec::new(), Vec::new(), false);
        let memory = Memory::of(pid);
        let word = |b: &[u8], at: usize| b.get(at..at + 4).map_or(0, |w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]]));
        for record in &mut self.records {
            let base = record.base;
            let Some(head) = memory.bytes::<20>(base).filter(|h| h[..8] == MAGIC.to_ne_bytes()) else {
                // Another program by now, or none.
                *self = Marks::default();
                return (Vec::new(), Vec::new(), Vec::new());
            };
            let sections = (word(&head, 12) as usize).min(SECTIONS);
            let slots = (word(&head, 16) as usize).min(SLOTS);
            while record.sections.len() < sections {
                let at = base + (NAMES_AT + record.sections.len() * NAME_BYTES) as u64;
                let name = memory.bytes::<NAME_BYTES>(at).unwrap_or([0; NAME_BYTES]);
                let len = name.iter().position(|&b| b == 0).unwrap_or(NAME_BYTES);
                record.sections.push(self.names.len());
                self.names.push(String::from_utf8_lossy(&name[..len]).into_owned());
                is_new = true;
            }
            for slot in 0..slots {
                let bytes = memory.vec(base + (SLOTS_AT + slot * size_of::<Slot>()) as u64, CELLS_AT + sections * CELL);
                let Some((tid, run, ran)) = thread(word(&bytes, 0) as i32) else { continue };
                let last = (word(&bytes, LAST_AT) as usize).checked_sub(CELLS_AT).map(|at| at / CELL);
                for (cell, &section) in record.sections.iter().enumerate().take(sections) {
                    let at = CELLS_AT + cell * CELL;
                    let seq = word(&bytes, at);
                    let before = self.known.insert((tid, section), seq).unwrap_or(0);
                    if seq != 0 && (seq & 1 == 1 || seq != before) {
                        let exits: [u32; EXITS] = std::array::from_fn(|e| word(&bytes, at + 4 + 4 * e));
                        cells.push((tid, section, seq, exits, run, ran));
                        if seq & 1 == 1 && last == Some(cell) {
                            lasts.push((tid, section));
                        }
                    }
                }
            }
        }
        (if is_new { self.names.clone() } else { Vec::new() }, cells, lasts)
    }

    /// Forgets a thread that ended.
    pub(super) fn gone(&mut self, tid: i32) {
        self.known.retain(|(of, _), _| *of != tid);
    }

    fn find(&mut self, pid: i32, scan: u64) {
        let soon = self.records.is_empty() && self.searches < SEARCHES;
        if self.records.len() >= RECORDS || scan % if soon { SEARCH_EVERY } else { SEARCH_SELDOM } != 1 {
            return;
        }
        self.searches = self.searches.saturating_add(1);
        let Ok(maps) = Maps::of_file(pid, &format!("/memfd:{NAME}")) else { return };
        for map in maps.iter().filter(|m| m.offset == 0) {
            if self.records.len() < RECORDS && !self.records.iter().any(|r| r.base == map.start) {
                self.records.push(Record { base: map.start, sections: Vec::new() });
            }
        }
    }
}
