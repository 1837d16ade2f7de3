//! The victim's object file: where its functions lie, and which of their bytes are its own. A byte
//! that the loader fills in (a relocation) is not: the kernel rejects a module that has something
//! there already.
//!
//! The file is our own build, so a wrong one ends the program; nothing is read beyond its end.

use std::ops::Range;

const R_X86_64_64: u32 = 1;
const FUNCTION: u8 = 2;

/// A function of `.text`: its name and where in the file it is.
pub struct Function {
    pub name: String,
    pub at: Range<usize>,
}

/// The functions, in the order of the file, and the file offsets of the bytes that may be altered.
pub struct Code {
    pub functions: Vec<Function>,
    pub bytes: Vec<usize>,
}

struct Section {
    name: usize,
    at: usize,
    size: usize,
}

fn number(file: &[u8], at: usize, bytes: usize) -> usize {
    file[at..at + bytes].iter().rev().fold(0, |all, &byte| all << 8 | usize::from(byte))
}

fn text(file: &[u8], at: usize) -> &str {
    let end = file[at..].iter().position(|&byte| byte == 0).map_or(file.len(), |length| at + length);
    std::str::from_utf8(&file[at..end]).unwrap_or("")
}

impl Code {
    /// Of a 64-bit little-endian object file.
    pub fn of(file: &[u8]) -> Code {
        let (table, count, names) = (number(file, 0x28, 8), number(file, 0x3c, 2), number(file, 0x3e, 2));
        let sections: Vec<Section> = (0..count)
            .map(|n| table + n * 64)
            .map(|at| Section {
                name: number(file, at, 4),
                at: number(file, at + 24, 8),
                size: number(file, at + 32, 8),
            })
            .collect();
        let find = |name: &str| {
            let place = sections.iter().position(|one| text(file, sections[names].at + one.name) == name);
            place.unwrap_or_else(|| panic!("the victim has no section {name}"))
        };
        let code = find(".text");
        let (symbols, strings) = (&sections[find(".symtab")], &sections[find(".strtab")]);
        let start = sections[code].at;
        let mut functions: Vec<Function> = (0..symbols.size / 24)
            .map(|n| symbols.at + n * 24)
            .filter(|&at| file[at + 4] & 15 == FUNCTION && number(file, at + 6, 2) == code)
            .map(|at| {
                let from = start + number(file, at + 8, 8);
                let name = text(file, strings.at + number(file, at, 4)).to_owned();
                Function { name, at: from..from + number(file, at + 16, 8) }
            })
            .collect();
        functions.sort_by_key(|one| one.at.start);
        let fixed = &sections[find(".rela.text")];
        let mut filled = vec![false; sections[code].size + 8];
        for at in (0..fixed.size / 24).map(|n| fixed.at + n * 24) {
            let (place, kind) = (number(file, at, 8), number(file, at + 8, 4) as u32);
            filled[place..place + if kind == R_X86_64_64 { 8 } else { 4 }].fill(true);
        }
        let bytes = functions.iter().flat_map(|one| one.at.clone()).filter(|&at| !filled[at - start]).collect();
        Code { functions, bytes }
    }

    /// `function+0x12`, of a byte of the file.
    pub fn name(&self, byte: usize) -> String {
        let inside = self.functions.iter().find(|one| one.at.contains(&byte));
        inside.map_or("?".into(), |one| format!("{}+{:#x}", one.name, byte - one.at.start))
    }
}
