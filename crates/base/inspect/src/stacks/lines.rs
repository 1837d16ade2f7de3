//! Source lines and inlined functions from DWARF.
//!
//! Promises: read only when first asked for; sections larger than [`MAX_SECTION`] are left alone, a
//! line table larger than [`MAX_LINES`], too; a unit whose entries are nested deeper than
//! [`MAX_DEPTH`] gives lines but no inlined functions.

use super::elf::Elf;
use gimli::{EndianArcSlice, LittleEndian};
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of one DWARF section at most, unpacked.
const MAX_SECTION: usize = 512 << 20;
/// Bytes of the line tables at most; a row of a line takes up to 32 times its byte there.
const MAX_LINES: usize = 64 << 20;
/// Depth of entries followed, as the reader of entries calls itself.
const MAX_DEPTH: isize = 200;
/// Inlined functions reported for one address at most.
const MAX_INLINED: usize = 64;

type Bytes = EndianArcSlice<LittleEndian>;

/// The DWARF of one file.
pub(crate) struct Lines {
    context: addr2line::Context<Bytes>,
    /// Units by their place, and whether they are flat enough to be read in full.
    flat: HashMap<usize, bool>,
}

/// A place in the source. The outermost has no name here: the symbol table knows it better.
#[derive(Debug, Default, Clone)]
pub(crate) struct Place {
    pub(crate) function: Option<String>,
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
}

impl Lines {
    pub(crate) fn of(elf: &Elf) -> Option<Lines> {
        elf.section(".debug_info")?;
        elf.section(".debug_line")?;
        let load = |id: gimli::SectionId| -> Result<Bytes, gimli::Error> {
            let limit = if id == gimli::SectionId::DebugLine { MAX_LINES } else { MAX_SECTION };
            let bytes = elf.named(id.name(), limit).unwrap_or_default();
            Ok(EndianArcSlice::new(Arc::from(bytes), LittleEndian))
        };
        let dwarf = gimli::Dwarf::load(load).ok()?;
        Some(Lines { context: addr2line::Context::from_dwarf(dwarf).ok()?, flat: HashMap::new() })
    }

    /// Places of an address as linked, innermost (most inlined) first; empty if nothing is known.
    pub(crate) fn at(&mut self, addr: u64) -> Vec<Place> {
        let mut out = Vec::new();
        if self.is_flat(addr)
            && let Ok(mut frames) = self.context.find_frames(addr).skip_all_loads()
        {
            while let Ok(Some(f)) = frames.next() {
                out.push(Place {
                    function: f
                        .function
                        .and_then(|n| Some(super::symbols::readable(&n.raw_name().ok()?.into_owned().into_bytes()))),
                    file: f.location.as_ref().and_then(|l| l.file).map(str::to_owned),
                    line: f.location.and_then(|l| l.line),
                });
                if out.len() == MAX_INLINED {
                    break;
                }
            }
        }
        if out.is_empty()
            && let Ok(Some(l)) = self.context.find_location(addr)
        {
            out.push(Place { function: None, file: l.file.map(str::to_owned), line: l.line });
        }
        out
    }

    fn is_flat(&mut self, addr: u64) -> bool {
        let Some(unit) = self.context.find_dwarf_and_unit(addr).skip_all_loads() else {
            return true;
        };
        let key = match unit.header.offset() {
            gimli::UnitSectionOffset::DebugInfoOffset(o) => o.0,
            gimli::UnitSectionOffset::DebugTypesOffset(_) => return false,
        };
        *self.flat.entry(key).or_insert_with(|| {
            let Ok(mut entries) = unit.entries_raw(None) else {
                return false;
            };
            while !entries.is_empty() {
                if entries.next_depth() > MAX_DEPTH {
                    return false;
                }
                let skipped = match entries.read_abbreviation() {
                    Ok(Some(a)) => entries.skip_attributes(a.attributes()),
                    Ok(None) => Ok(()),
                    Err(e) => Err(e),
                };
                if skipped.is_err() {
                    return false;
                }
            }
            true
        })
    }
}
