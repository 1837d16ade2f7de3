//! Names of functions from an ELF file's symbol tables.
//!
//! Promises: a name is given only to addresses inside the function it belongs to, unless the symbol
//! has no size. Names are demangled on demand and cut at [`MAX_NAME`] bytes, so that a made-up name
//! cannot unfold without end.

use super::elf::{Elf, text_at, u32_at, u64_at};
use crate::Sure;
use std::fmt::Write;

/// Bytes of a demangled name at most.
pub const MAX_NAME: usize = 4096;
/// Bytes of one symbol or string table at most.
const MAX_TABLE: usize = 512 << 20;

#[derive(Debug, Clone, Copy)]
struct Symbol {
    addr: u64,
    size: u64,
    name: u32,
    dynamic: bool,
    /// It is a function, no label of assembly.
    function: bool,
}

/// The functions of one file, by address as linked.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    list: Vec<Symbol>,
    strings: Vec<u8>,
    dynamic_strings: Vec<u8>,
}

/// The full symbol table, which a stripped file lacks, and the one that the dynamic linker reads.
pub(crate) const SYMTAB: u32 = 2;
pub(crate) const DYNSYM: u32 = 11;

/// The symbol tables of these kinds that a file has, in this order: the kind, the symbols, their
/// names.
pub(crate) fn tables(elf: &Elf, kinds: [u32; 2]) -> impl Iterator<Item = (u32, Vec<u8>, Vec<u8>)> {
    kinds.into_iter().filter_map(|kind| {
        let s = elf.sections.iter().find(|s| s.kind == kind)?;
        let strings = elf.content(elf.sections.get(s.link)?, MAX_TABLE)?;
        Some((kind, elf.content(s, MAX_TABLE)?, strings))
    })
}

/// The entries of a symbol table.
pub(crate) fn entries(table: &[u8]) -> impl Iterator<Item = &[u8]> {
    table.chunks_exact(24)
}

impl Symbols {
    pub(crate) fn of(elf: &Elf) -> Symbols {
        let mut out = Symbols::default();
        for (kind, table, strings) in tables(elf, [SYMTAB, DYNSYM]) {
            let dynamic = kind == DYNSYM;
            out.list.extend(entries(&table).filter_map(|s| function(s, dynamic)));
            if dynamic {
                out.dynamic_strings = strings;
            } else {
                out.strings = strings;
            }
        }
        // Of several names for one address the last is taken: one with a size, from the full table.
        out.list.sort_by_key(|s| (s.addr, s.size != 0, !s.dynamic));
        out
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The last symbols that begin at an address or before: a function may hold smaller ones (entry
    /// points in assembly).
    fn before(&self, addr: u64) -> impl Iterator<Item = &Symbol> {
        let i = self.list.partition_point(|s| s.addr <= addr);
        self.list[..i].iter().rev().take(8)
    }

    /// The function that holds an address: its mangled name, the distance from its start, how sure.
    pub(crate) fn at(&self, addr: u64) -> Option<(&[u8], u64, Sure)> {
        let s = self.before(addr).find(|s| addr - s.addr < s.size || s.size == 0)?;
        let sure = if s.size == 0 { Sure::Likely } else { Sure::Certain };
        Some((self.name(s)?, addr - s.addr, sure))
    }

    /// Start and length of the function that holds an address.
    pub(crate) fn covers(&self, addr: u64) -> Option<(u64, u64)> {
        self.before(addr).find(|s| s.function && addr - s.addr < s.size).map(|s| (s.addr, s.size))
    }

    fn name(&self, s: &Symbol) -> Option<&[u8]> {
        let strings = if s.dynamic { &self.dynamic_strings } else { &self.strings };
        text_at(strings, s.name as usize).filter(|n| !n.is_empty())
    }
}

fn function(s: &[u8], dynamic: bool) -> Option<Symbol> {
    let kind = s[4] & 15;
    let addr = u64_at(s, 8)?;
    let defined = s[6] != 0 || s[7] != 0;
    // Functions, indirect functions and labels of assembly.
    (defined && addr != 0 && matches!(kind, 0 | 2 | 10)).then_some(Symbol {
        addr,
        size: u64_at(s, 16)?,
        name: u32_at(s, 0)?,
        dynamic,
        function: kind != 0,
    })
}

/// The value of an object (not a function) by its exact name: address as linked and size.
pub(crate) fn object(elf: &Elf, wanted: &[u8]) -> Option<(u64, u64)> {
    for (_, table, strings) in tables(elf, [DYNSYM, SYMTAB]) {
        for s in entries(&table) {
            if s[4] & 15 == 1 && u32_at(s, 0).and_then(|n| text_at(&strings, n as usize)) == Some(wanted) {
                return Some((u64_at(s, 8)?, u64_at(s, 16)?));
            }
        }
    }
    None
}

/// A text that takes no more than so much.
struct Capped(String);

impl Write for Capped {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        if self.0.len() + s.len() > MAX_NAME {
            return Err(std::fmt::Error);
        }
        self.0.push_str(s);
        Ok(())
    }
}

/// A readable name: C++ and Rust are demangled, anything else is left as it is.
pub(crate) fn readable(mangled: &[u8]) -> String {
    let short = &mangled[..mangled.len().min(MAX_NAME)];
    // `name@@VERSION` in libraries with debug information.
    let short = short.split(|&c| c == b'@').next().filter(|s| !s.is_empty()).unwrap_or(short);
    let plain = String::from_utf8_lossy(short);
    let mut out = Capped(String::new());
    // The end of a C++ variable's name may look like a hash of Rust's: `ns::head`.
    let may_be_rusts = !plain.starts_with("_Z") || plain.contains("17h");
    if let Some(d) = rustc_demangle::try_demangle(&plain).ok().filter(|_| may_be_rusts) {
        if write!(out, "{d:#}").is_ok() {
            return out.0;
        }
    } else if plain.starts_with("_Z") {
        let options = cpp_demangle::DemangleOptions::new().recursion_limit(128);
        if let Ok(symbol) = cpp_demangle::Symbol::new(short)
            && symbol.structured_demangle(&mut out, &options).is_ok()
        {
            return out.0;
        }
    }
    plain.into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_readable_and_short() {
        assert_eq!(readable(b"_ZN3foo3barEi"), "foo::bar(int)");
        assert_eq!(readable(b"_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
        assert_eq!(readable(b"_ZN3foo4headE"), "foo::head");
        assert_eq!(readable(b"main"), "main");
        assert_eq!(readable(b"\xff\xfe"), "\u{fffd}\u{fffd}");
        // Each part doubles the one before.
        let mut bomb = b"_Z1fI1AIS_S_E".to_vec();
        for c in b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ" {
            bomb.extend([b'S', b'0', b'_', b'I', b'S', *c, b'_', b'S', *c, b'_', b'E']);
        }
        bomb.push(b'E');
        assert!(readable(&bomb).len() <= MAX_NAME);
        let deep: Vec<u8> = b"_Z1f".iter().copied().chain(std::iter::repeat_n(b'P', 100_000)).collect();
        assert!(readable(&deep).len() <= MAX_NAME);
    }
}
