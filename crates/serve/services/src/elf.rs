//! The loader of native services: an ELF shared object becomes the bytes of a slot's public and
//! protected part.
//!
//! Pure: it reads a file's bytes and answers bytes. The file is anybody's, so every offset is
//! checked before it is used. It rejects what services may not have: thread-local storage,
//! constructors, relocations of code, segments that are writable and executable, and imports that
//! the library does not export.

use crate::error::{Error, Kind, Result};
use orbit_sandbox_lib::abi;
use std::collections::HashMap;

/// Where a service's data begins, after its code.
const DATA: u64 = abi::PUBLIC_LEN as u64;
/// Bytes that a service's data may have: what stack and record leave.
const DATA_MAX: usize = abi::STACK_AT;
/// Program headers, relocations and symbols at most.
const MAX_ENTRIES: u64 = 4096;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_TLS: u32 = 7;
const R_64: u32 = 1;
const R_GLOB_DAT: u32 = 6;
const R_JUMP_SLOT: u32 = 7;
const R_RELATIVE: u32 = 8;

/// A loaded object, with the addresses of its slot.
#[derive(Debug)]
pub struct Image {
    /// Bytes of the slot's public part.
    pub code: Vec<u8>,
    /// Bytes of the slot's protected part, from its start.
    pub data: Vec<u8>,
    /// Addresses of what it exports.
    pub exports: HashMap<String, u64>,
}

/// The tables that the dynamic section names, by address in the object.
#[derive(Default)]
struct Tables {
    symbols: Option<u64>,
    strings: Option<u64>,
    hash: Option<u64>,
    relocations: [(u64, u64); 2],
}

/// A symbol of the object.
struct Symbol {
    name: String,
    /// 0: an import.
    section: u16,
    value: u64,
}

/// Loads `file`, called `name` in errors, for a slot. `library`: what it may import.
///
/// # Errors
/// `BadObject`, with what is wrong and what to do.
pub fn load(name: &str, file: &[u8], slot: usize, library: &HashMap<String, u64>) -> Result<Image> {
    let wrong = |why: String| Error::new(Kind::BadObject, format!("service {name:?}: {why}"));
    let header = Bytes(file);
    let is_ours = file.starts_with(b"\x7fELF\x02\x01") && header.u16(16) == Some(3) && header.u16(18) == Some(62);
    if !is_ours {
        return Err(wrong("not an ELF shared object for x86-64: build it with -shared -fPIC".into()));
    }
    let truncated = || wrong("the file is truncated".into());
    let (at, size, count) = (header.u64(32), header.u16(54), header.u16(56));
    let (Some(at), Some(56), Some(count)) = (at, size, count) else { return Err(truncated()) };
    let mut image = Image { code: Vec::new(), data: Vec::new(), exports: HashMap::new() };
    let mut dynamic = None;
    for nth in 0..u64::from(count) {
        let field = |offset: u64| at.checked_add(nth * 56 + offset).and_then(|at| header.u64(at));
        let (Some(kind), Some(offset), Some(address), Some(in_file), Some(in_memory)) =
            (field(0), field(8), field(16), field(32), field(40))
        else {
            return Err(truncated());
        };
        let (kind, flags) = (kind as u32, (kind >> 32) as u32);
        match kind {
            PT_TLS if in_memory > 0 => {
                return Err(wrong(
                    "it uses thread-local storage, which a thread that it interrupts has not got".into(),
                ));
            }
            PT_DYNAMIC => dynamic = Some((address, in_memory)),
            PT_LOAD => {
                segment(&mut image, header, (offset, address, in_file, in_memory), flags & 2 != 0, flags & 1 != 0)
                    .map_err(&wrong)?
            }
            _ => {}
        }
    }
    let (address, length) = dynamic.ok_or_else(|| wrong("it has no dynamic section: link it with -shared".into()))?;
    let tables = tables(&image, address, length).map_err(&wrong)?;
    let symbols = symbols(&image, &tables).map_err(&wrong)?;
    let base = (abi::PUBLIC + slot * abi::SLOT) as u64;
    for (table, length) in tables.relocations {
        relocate(&mut image, (table, length), &symbols, base, library).map_err(&wrong)?;
    }
    image.exports = symbols
        .into_iter()
        .filter(|symbol| symbol.section != 0 && !symbol.name.is_empty())
        .map(|symbol| (symbol.name, base.wrapping_add(symbol.value)))
        .collect();
    Ok(image)
}

/// Places one segment.
fn segment(
    image: &mut Image,
    file: Bytes<'_>,
    (offset, address, in_file, in_memory): (u64, u64, u64, u64),
    is_writable: bool,
    is_code: bool,
) -> std::result::Result<(), String> {
    if is_writable && is_code {
        return Err("a segment is writable and executable".into());
    }
    let (part, start, max, what) =
        if is_writable { (&mut image.data, DATA, DATA_MAX, "data") } else { (&mut image.code, 0, abi::SLOT, "code") };
    let begin = address.checked_sub(start).filter(|begin| *begin < max as u64);
    let end = begin.and_then(|begin| begin.checked_add(in_memory)).filter(|end| *end <= max as u64);
    let (Some(begin), Some(end)) = (begin, end) else {
        return Err(format!(
            "{what} at {address:#x} of {in_memory} bytes is not within {max} bytes from {start:#x}: link it with \
             -Wl,-T,orbit_service.ld, or make it smaller"
        ));
    };
    let bytes = file.slice(offset, in_file).ok_or("the file is truncated")?;
    if in_file > in_memory {
        return Err(format!("{what} has more bytes in the file than in memory"));
    }
    let (begin, end) = (begin as usize, end as usize);
    if part.len() < end {
        part.resize(end, 0);
    }
    part[begin..begin + bytes.len()].copy_from_slice(bytes);
    Ok(())
}

impl Image {
    /// The bytes from an address of the object to the end of its part.
    fn from(&self, address: u64) -> Bytes<'_> {
        let (part, at) = if address >= DATA { (&self.data, address - DATA) } else { (&self.code, address) };
        Bytes(usize::try_from(at).ok().and_then(|at| part.get(at..)).unwrap_or_default())
    }
}

/// Reads the dynamic section.
fn tables(image: &Image, address: u64, length: u64) -> std::result::Result<Tables, String> {
    let mut tables = Tables::default();
    let entries = image.from(address);
    for nth in 0..(length / 16).min(MAX_ENTRIES) {
        let (Some(tag), Some(value)) = (entries.u64(nth * 16), entries.u64(nth * 16 + 8)) else { break };
        match tag {
            0 => break,
            1 => return Err("it needs another library: link it with -nostdlib".into()),
            2 => tables.relocations[1].1 = value,
            4 => tables.hash = Some(value),
            5 => tables.strings = Some(value),
            6 => tables.symbols = Some(value),
            7 => tables.relocations[0].0 = value,
            8 => tables.relocations[0].1 = value,
            23 => tables.relocations[1].0 = value,
            // DT_INIT and DT_FINI; the sizes of DT_INIT_ARRAY, DT_FINI_ARRAY and DT_PREINIT_ARRAY.
            12 | 13 | 27 | 28 | 33 if value > 0 => {
                return Err("it has constructors or destructors, which nobody would run".into());
            }
            22 => return Err("its code would have to be relocated: build it with -fPIC".into()),
            _ => {}
        }
    }
    Ok(tables)
}

/// Reads the symbols.
fn symbols(image: &Image, tables: &Tables) -> std::result::Result<Vec<Symbol>, String> {
    let (Some(symbols), Some(strings), Some(hash)) = (tables.symbols, tables.strings, tables.hash) else {
        return Err("it has no symbol table with a count: link it with -Wl,--hash-style=sysv".into());
    };
    let count = image.from(hash).u32(4).ok_or("its symbol table is truncated")?;
    if u64::from(count) > MAX_ENTRIES {
        return Err(format!("it has {count} symbols, of at most {MAX_ENTRIES}"));
    }
    let (table, names) = (image.from(symbols), image.from(strings));
    let of = |nth: u64| {
        let name = names.string(u64::from(table.u32(nth * 24)?))?;
        Some(Symbol { name, section: table.u16(nth * 24 + 6)?, value: table.u64(nth * 24 + 8)? })
    };
    (0..u64::from(count)).map(|nth| of(nth).ok_or_else(|| "its symbol table is truncated".to_owned())).collect()
}

/// Applies one table of relocations.
fn relocate(
    image: &mut Image,
    (table, length): (u64, u64),
    symbols: &[Symbol],
    base: u64,
    library: &HashMap<String, u64>,
) -> std::result::Result<(), String> {
    if length / 24 > MAX_ENTRIES {
        return Err(format!("it has {} relocations, of at most {MAX_ENTRIES}", length / 24));
    }
    for nth in 0..length / 24 {
        let entry = image.from(table);
        let (Some(place), Some(info), Some(addend)) =
            (entry.u64(nth * 24), entry.u64(nth * 24 + 8), entry.u64(nth * 24 + 16))
        else {
            return Err("its relocations are truncated".into());
        };
        let kind = info as u32;
        let value = match kind {
            R_RELATIVE => base.wrapping_add(addend),
            R_64 | R_GLOB_DAT | R_JUMP_SLOT => {
                let symbol = symbols.get((info >> 32) as usize).ok_or("a relocation names a symbol that is none")?;
                let found = match symbol.section {
                    0 => *library.get(&symbol.name).ok_or_else(|| {
                        format!("it imports {:?}, which services have not got: see orbit_service.h", symbol.name)
                    })?,
                    _ => base.wrapping_add(symbol.value),
                };
                if kind == R_64 { found.wrapping_add(addend) } else { found }
            }
            other => return Err(format!("it has a relocation of kind {other}, which services may not have")),
        };
        let at = place.checked_sub(DATA).and_then(|at| usize::try_from(at).ok());
        let word = at.and_then(|at| image.data.get_mut(at..at.checked_add(8)?));
        word.ok_or("a relocation is outside its data: build it with -fPIC")?.copy_from_slice(&value.to_le_bytes());
    }
    Ok(())
}

/// Bytes of anybody's, read with checks.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn slice(self, at: u64, length: u64) -> Option<&'a [u8]> {
        let (at, length) = (usize::try_from(at).ok()?, usize::try_from(length).ok()?);
        self.0.get(at..at.checked_add(length)?)
    }

    fn u16(self, at: u64) -> Option<u16> {
        Some(u16::from_le_bytes(self.slice(at, 2)?.try_into().ok()?))
    }

    fn u32(self, at: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.slice(at, 4)?.try_into().ok()?))
    }

    fn u64(self, at: u64) -> Option<u64> {
        Some(u64::from_le_bytes(self.slice(at, 8)?.try_into().ok()?))
    }

    /// A text that ends with a zero, of at most 255 bytes.
    fn string(self, at: u64) -> Option<String> {
        let rest = self.0.get(usize::try_from(at).ok()?..)?;
        let end = rest.iter().take(256).position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(&rest[..end]).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> &'static [u8] {
        crate::objects::CPU
    }

    fn library() -> HashMap<String, u64> {
        load("library", crate::objects::LIBRARY, abi::LIBRARY, &HashMap::new()).expect("our own").exports
    }

    #[test]
    fn a_service_is_bound_to_the_library_only() {
        let library = library();
        let image = load("cpu", own(), 2, &library).expect("our own");
        let handler = image.exports["orbit_handler"];
        let slot = (abi::PUBLIC + 2 * abi::SLOT) as u64;
        assert!((slot..slot + abi::SLOT as u64).contains(&handler));
        let error = load("cpu", own(), 2, &HashMap::new()).expect_err("nothing to import");
        assert!(error.to_string().contains("it imports \"orbit_"), "{error}");
    }

    #[test]
    fn every_truncation_and_every_changed_byte_is_refused_or_stays_in_its_slot() {
        let (library, file) = (library(), own());
        for length in 0..file.len() {
            let _ = load("cut", &file[..length], 2, &library);
        }
        let mut random = orbit_testing::Random::new(1);
        for at in 0..file.len() {
            let mut changed = file.to_vec();
            changed[at] = random.draw() as u8;
            if let Ok(image) = load("changed", &changed, 2, &library) {
                assert!(image.code.len() <= abi::SLOT && image.data.len() <= DATA_MAX);
            }
        }
    }

    #[test]
    fn other_files_are_refused_with_what_to_do() {
        for (file, hint) in [(&b"#!/bin/sh"[..], "-shared"), (&[][..], "-shared")] {
            let error = load("x", file, 2, &HashMap::new()).expect_err("no service");
            assert!(error.kind() == Kind::BadObject && error.to_string().contains(hint), "{error}");
        }
    }
}
