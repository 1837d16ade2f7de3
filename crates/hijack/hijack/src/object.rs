//! Policy objects: a shared object that runs on the executive's side of each guest
//! (`include/orbit_hijack.h`).
//!
//! The host links it for the one address at which every guest has it, so that a guest only copies
//! bytes. What it needs beside itself may only be what the executive has: `orbit_executive` and
//! five functions of memory.

use std::fmt;
use std::path::Path;

/// Where guests have the object, and how large it may be; see `executive/abi.h`.
const ADDRESS: u64 = 0x1f00_0800_0000;
const MAX_OBJECT_BYTES: u64 = 0x10_0000;
const PAGE: u64 = 4096;
/// Version of `struct orbit_policy`.
const VERSION: u32 = 1;
/// What the executive offers by name.
const OFFERED: [&str; 6] = ["orbit_executive", "memcpy", "memmove", "memset", "memcmp", "strlen"];

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_REL: u64 = 17;
const DT_JMPREL: u64 = 23;
const DT_PLTRELSZ: u64 = 2;
const DT_HASH: u64 = 4;
const DT_NEEDED: u64 = 1;
const R_64: u32 = 1;
const R_GLOB_DAT: u32 = 6;
const R_JUMP_SLOT: u32 = 7;
const R_RELATIVE: u32 = 8;

/// A policy object, linked for guests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    pub(crate) image: Vec<u8>,
    /// These first bytes are code and constants.
    pub(crate) text_bytes: u64,
    /// Address of its `orbit_policy` in guests.
    pub(crate) policy: u64,
}

/// Why a file is no policy object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectError(String);

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ObjectError {}

fn wrong<T>(problem: impl Into<String>) -> Result<T, ObjectError> {
    Err(ObjectError(problem.into()))
}

/// Numbers of a file or image, by their offset.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn at<const N: usize>(&self, at: u64) -> Result<[u8; N], ObjectError> {
        let found = usize::try_from(at).ok().and_then(|at| self.0.get(at..)?.first_chunk::<N>());
        found.copied().ok_or_else(|| ObjectError(format!("it is cut short, or damaged: nothing at offset {at:#x}")))
    }

    fn u16(&self, at: u64) -> Result<u16, ObjectError> {
        self.at(at).map(u16::from_le_bytes)
    }

    fn u32(&self, at: u64) -> Result<u32, ObjectError> {
        self.at(at).map(u32::from_le_bytes)
    }

    fn u64(&self, at: u64) -> Result<u64, ObjectError> {
        self.at(at).map(u64::from_le_bytes)
    }

    fn text(&self, at: u64) -> Result<&str, ObjectError> {
        let rest = usize::try_from(at).ok().and_then(|at| self.0.get(at..)).unwrap_or_default();
        let end = rest.iter().position(|byte| *byte == 0);
        let text = end.and_then(|end| std::str::from_utf8(&rest[..end]).ok());
        text.ok_or_else(|| ObjectError("a name in it is damaged".into()))
    }
}

impl Object {
    /// Reads and links a policy object. Takes no memory but the object's.
    ///
    /// # Errors
    /// A sentence that names what is wrong with the file, and what to do.
    pub fn load(path: &Path) -> Result<Object, ObjectError> {
        let named = |error: &dyn fmt::Display| ObjectError(format!("policy object {}: {error}", path.display()));
        let bytes = std::fs::read(path).map_err(|error| named(&error))?;
        Object::link(&bytes).map_err(|error| named(&error))
    }

    /// Links the bytes of a policy object.
    ///
    /// # Errors
    /// As [`Object::load`].
    pub fn link(bytes: &[u8]) -> Result<Object, ObjectError> {
        let file = Bytes(bytes);
        let is_elf = bytes.starts_with(b"\x7fELF\x02\x01") && file.u16(16)? == 3 && file.u16(18)? == 62;
        if !is_elf {
            return wrong("it is not a shared object for x86-64; build it with -shared -fPIC -nostdlib");
        }
        let (headers, size, count) = (file.u64(32)?, file.u16(54)?, file.u16(56)?);
        let mut image = Vec::new();
        let (mut dynamic, mut text_end, mut data_start) = (None, 0u64, MAX_OBJECT_BYTES);
        for nth in 0..u64::from(count) {
            let at = headers.saturating_add(nth * u64::from(size));
            let (kind, flags) = (file.u32(at)?, file.u32(at + 4)?);
            let (offset, address) = (file.u64(at + 8)?, file.u64(at + 16)?);
            let (in_file, in_memory) = (file.u64(at + 32)?, file.u64(at + 40)?);
            if kind == PT_DYNAMIC {
                dynamic = Some((address, in_memory));
            }
            if kind != PT_LOAD || in_memory == 0 {
                continue;
            }
            let end = address.checked_add(in_memory).filter(|end| *end <= MAX_OBJECT_BYTES && in_file <= in_memory);
            let Some(end) = end else {
                return wrong(format!("it needs more than {} KiB of memory", MAX_OBJECT_BYTES / 1024));
            };
            let part = usize::try_from(offset).ok().and_then(|at| bytes.get(at..)?.get(..in_file as usize));
            let Some(part) = part else { return wrong("it is cut short") };
            if image.len() < end as usize {
                image.resize(end as usize, 0);
            }
            image[address as usize..][..part.len()].copy_from_slice(part);
            if flags & 2 == 0 {
                text_end = text_end.max(end);
            } else {
                data_start = data_start.min(address);
            }
        }
        let text_bytes = text_end.next_multiple_of(PAGE).min(data_start & !(PAGE - 1));
        if text_bytes < text_end {
            return wrong("code and data share pages; link it without -z nognustack, -N and linker scripts");
        }
        let Some((dynamic, dynamic_bytes)) = dynamic else { return wrong("it has no dynamic section; use -shared") };
        let tables = Tables::read(&Bytes(&image), dynamic, dynamic_bytes)?;
        tables.relocate(&mut image)?;
        let linked = Bytes(&image);
        let Some(policy) = tables.find(&linked, "orbit_policy")? else {
            return wrong("it defines no `const struct orbit_policy orbit_policy`");
        };
        let version = linked.u32(policy)?;
        if version != VERSION {
            return wrong(format!("its orbit_policy has version {version}, and this executive takes {VERSION}"));
        }
        image.resize(image.len().next_multiple_of(PAGE as usize), 0);
        Ok(Object { image, text_bytes, policy: ADDRESS + policy })
    }
}

/// What the dynamic section names.
#[derive(Default)]
struct Tables {
    strings: u64,
    symbols: u64,
    symbol_count: u64,
    relocations: Vec<(u64, u64)>,
}

impl Tables {
    fn read(image: &Bytes<'_>, at: u64, bytes: u64) -> Result<Tables, ObjectError> {
        let mut tables = Tables::default();
        let (mut rela, mut jump) = ((0, 0), (0, 0));
        for entry in (at..at.saturating_add(bytes)).step_by(16) {
            let value = image.u64(entry + 8)?;
            match image.u64(entry)? {
                0 => break,
                DT_STRTAB => tables.strings = value,
                DT_SYMTAB => tables.symbols = value,
                DT_RELA => rela.0 = value,
                DT_RELASZ => rela.1 = value,
                DT_JMPREL => jump.0 = value,
                DT_PLTRELSZ => jump.1 = value,
                // Without the old table of names the symbols are counted by where the strings
                // begin.
                DT_HASH => tables.symbol_count = image.u32(value + 4)?.into(),
                DT_NEEDED => return wrong("it needs another library; link it with -nostdlib"),
                DT_REL => return wrong("its relocations are of an unknown form"),
                _ => {}
            }
        }
        if tables.symbol_count == 0 && tables.strings > tables.symbols {
            tables.symbol_count = (tables.strings - tables.symbols) / 24;
        }
        tables.relocations = vec![rela, jump];
        Ok(tables)
    }

    /// Name, section and value of a symbol.
    fn symbol<'a>(&self, image: &'a Bytes<'_>, nth: u64) -> Result<(&'a str, u16, u64), ObjectError> {
        let at = self.symbols.saturating_add(nth.saturating_mul(24));
        let name = image.text(self.strings.saturating_add(image.u32(at)?.into()))?;
        Ok((name, image.u16(at + 6)?, image.u64(at + 8)?))
    }

    /// Offset of a symbol that the object defines.
    fn find(&self, image: &Bytes<'_>, wanted: &str) -> Result<Option<u64>, ObjectError> {
        for nth in 1..self.symbol_count.min(MAX_OBJECT_BYTES / 24) {
            let (name, section, value) = self.symbol(image, nth)?;
            if name == wanted && section != 0 {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    fn relocate(&self, image: &mut [u8]) -> Result<(), ObjectError> {
        for &(table, bytes) in &self.relocations {
            for at in (table..table.saturating_add(bytes)).step_by(24) {
                let (place, value) = self.value(&Bytes(image), at)?;
                let to = usize::try_from(place).ok().and_then(|place| image.get_mut(place..)?.get_mut(..8));
                let Some(to) = to else { return wrong(format!("a relocation names {place:#x}, outside of it")) };
                to.copy_from_slice(&value.to_le_bytes());
            }
        }
        Ok(())
    }

    /// Where a relocation writes, and what.
    fn value(&self, image: &Bytes<'_>, at: u64) -> Result<(u64, u64), ObjectError> {
        let (place, info, addend) = (image.u64(at)?, image.u64(at + 8)?, image.u64(at + 16)?);
        let value = match info as u32 {
            R_RELATIVE => ADDRESS.wrapping_add(addend),
            kind @ (R_64 | R_GLOB_DAT | R_JUMP_SLOT) => {
                let (name, section, value) = self.symbol(image, info >> 32)?;
                let base = if section != 0 { ADDRESS.wrapping_add(value) } else { offered(name)? };
                base.wrapping_add(if kind == R_64 { addend } else { 0 })
            }
            kind => return wrong(format!("it has a relocation of kind {kind}; compile it with -fPIC")),
        };
        Ok((place, value))
    }
}

/// Address of a symbol that the executive offers.
fn offered(name: &str) -> Result<u64, ObjectError> {
    let known = OFFERED.contains(&name).then(|| executive_symbol(name)).flatten();
    known.ok_or_else(|| {
        ObjectError(format!("it uses `{name}`, which the executive does not have; it has {}", OFFERED.join(", ")))
    })
}

/// Address of a symbol of the executive, by its own table.
fn executive_symbol(wanted: &str) -> Option<u64> {
    let file = Bytes(crate::session::EXECUTIVE);
    let (sections, size, count) = (file.u64(40).ok()?, file.u16(58).ok()?, file.u16(60).ok()?);
    for nth in 0..u64::from(count) {
        let at = sections + nth * u64::from(size);
        if file.u32(at + 4).ok()? != 2 {
            continue;
        }
        let (begin, bytes) = (file.u64(at + 24).ok()?, file.u64(at + 32).ok()?);
        let strings = file.u64(sections + u64::from(file.u32(at + 40).ok()?) * u64::from(size) + 24).ok()?;
        for symbol in (begin..begin + bytes).step_by(24) {
            if file.text(strings + u64::from(file.u32(symbol).ok()?)).ok()? == wanted {
                return file.u64(symbol + 8).ok();
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_executive_offers_is_in_it() {
        for name in OFFERED {
            let at = executive_symbol(name).unwrap_or_else(|| panic!("{name}"));
            assert!((0x1f00_0000_0000..ADDRESS).contains(&at), "{name} at {at:#x}");
        }
    }

    #[test]
    fn files_that_are_no_objects_are_named_so() {
        assert!(Object::link(b"#!/bin/sh\n").expect_err("a script").to_string().contains("-shared"));
        let mut header = [0u8; 64];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (header[16], header[18]) = (3, 62);
        assert!(Object::link(&header).expect_err("nothing in it").to_string().contains("dynamic section"));
        // A table of headers that lies nowhere.
        header[32..40].fill(0xff);
        (header[54], header[56]) = (56, 3);
        assert!(Object::link(&header).expect_err("damaged").to_string().contains("damaged"));
    }
}
