//! A function of a process, found by name or address: where it is in its file and in memory, and
//! its code.
//!
//! Owns: what a function may be called ([`Wanted`]). Promises: a name that fits several functions
//! is not guessed at; one that fits none comes back with the files that were searched and names
//! that are near. A part that the compiler split off as seldom run (`.cold`) is found by its own
//! full symbol only: it is a piece of its function, not another one. Bytes of code are the file's.
//! Refuses: inlined copies (they are no functions any more), indirect functions (their symbol is
//! that of the code that chooses).

use crate::stacks::elf::{Elf, Room, text_at, u32_at, u64_at};
use crate::stacks::go::GoTable;
use crate::stacks::module::{Module, open_elf, split_off};
use crate::stacks::readable;
use crate::stacks::symbols::{DYNSYM, SYMTAB, entries, tables};
use crate::{Mapping, Maps, procfs};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Bytes of one symbol or string table at most, and of all that is read for one search.
const MAX_TABLE: usize = 512 << 20;
/// Longest function whose code is read, bytes.
const MAX_CODE: usize = 1 << 20;
/// Code read of a function of unknown length.
const CODE_BYTES_OF_UNKNOWN_LENGTH: usize = 16;
/// Names reported of near matches, or of several that fit.
const MAX_NAMES: usize = 5;

/// What to search for: `[FILE:]NAME` or `[FILE:]0xADDRESS`. FILE is the end of a path, such as
/// `libssl.so.3`; without it the program itself comes first, then its libraries. NAME is a symbol,
/// mangled or readable, with or without its parameters (`ns::Store::get`). ADDRESS is as linked, as
/// `nm` and reports show it, anywhere in the function; without FILE in the program itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// End of the file's path.
    pub file: Option<String>,
    /// Name, or address.
    pub name: String,
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Wanted, String> {
        // A single colon ends the file; `::` belongs to names.
        let bytes = text.as_bytes();
        let colon = (0..bytes.len())
            .find(|&i| bytes[i] == b':' && bytes.get(i + 1) != Some(&b':') && (i == 0 || bytes[i - 1] != b':'));
        let (file, name) = match colon {
            Some(i) => (Some(text[..i].to_owned()), &text[i + 1..]),
            None => (None, text),
        };
        let wanted = Wanted { file, name: name.trim().to_owned() };
        // Of a long text its beginning says what is meant.
        let quoted = |text: &str| text.chars().take(100).collect::<String>();
        if wanted.name.is_empty() || wanted.file.as_ref().is_some_and(String::is_empty) {
            return Err(format!("`{}` names no function: write FUNCTION, FILE:FUNCTION or 0xADDRESS", quoted(text)));
        }
        if wanted.name.starts_with("0x") && wanted.address().is_none() {
            return Err(format!("`{}` is no address: write 0x and hexadecimal digits", quoted(&wanted.name)));
        }
        Ok(wanted)
    }
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{file}:{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl Wanted {
    fn address(&self) -> Option<u64> {
        u64::from_str_radix(self.name.strip_prefix("0x")?, 16).ok()
    }
}

/// A function that was found.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its readable name; of a nameless one `FILE+0xADDRESS`.
    pub name: String,
    /// The file, by the name the process knows it.
    pub module: String,
    /// A name of the file that this process can open.
    pub file: PathBuf,
    /// Device and inode of the file.
    pub identity: (u64, u64),
    /// Its first byte's offset in the file.
    pub offset: u64,
    /// Its first byte's address in the process.
    pub address: u64,
    /// Bytes of code; 0 if not known.
    pub size: u64,
    /// The code, whole if the size is known, else its first bytes.
    pub code: Vec<u8>,
    /// The file is a Go program: its functions move between threads.
    pub go: bool,
}

impl Function {
    /// Whether it holds this address of the process. Of a function of unknown size: only its first
    /// byte.
    pub fn holds(&self, address: u64) -> bool {
        address.checked_sub(self.address).is_some_and(|o| o < self.size.max(1))
    }
}

/// Why a function was not found. Its words continue a sentence that begins with the function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Files that were searched.
    pub searched: Vec<String>,
    /// Names that are near.
    pub near: Vec<String>,
    /// Several functions have this name: name and address as linked of each.
    pub several: Vec<(String, u64)>,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files = match self.searched.as_slice() {
            [] => "no file of the process fits".to_owned(),
            some if some.len() <= MAX_NAMES => format!("searched {}", some.join(", ")),
            some => format!("searched {} and {} more", some[..MAX_NAMES].join(", "), some.len() - MAX_NAMES),
        };
        if !self.several.is_empty() {
            let each: Vec<String> = self.several.iter().map(|(n, a)| format!("{n} at {a:#x}")).collect();
            return write!(f, "is the name of several functions: {}; give the address of one", each.join(", "));
        }
        match self.near.as_slice() {
            [] => write!(f, "was not found ({files})"),
            near => write!(f, "was not found ({files}); names near it: {}", near.join(", ")),
        }
    }
}

/// Finds a function in what a process has mapped now. Takes some milliseconds for a large program.
///
/// # Errors
/// [`Missing`], with what was searched.
pub fn find(pid: i32, maps: &Maps, wanted: &Wanted) -> Result<Function, Missing> {
    let mut search = Search::new(wanted.clone());
    search.look(pid, maps).ok_or(search.missing)
}

/// A search in a process that may load more files: each file is read once.
#[derive(Clone, Debug)]
pub struct Search {
    wanted: Wanted,
    /// Device and inode of the files that were read.
    read: BTreeSet<(u64, u64)>,
    missing: Missing,
}

impl Search {
    /// Of this function.
    pub fn new(wanted: Wanted) -> Search {
        Search { wanted, read: BTreeSet::new(), missing: Missing::default() }
    }

    /// Whether a file that is loaded later may have it, rather than that the name is mistaken: so
    /// far there is none near it and not several of it, and the file that has to have it was not
    /// read.
    pub fn may_still_come(&self) -> bool {
        let in_any_file = self.wanted.file.is_none() && self.wanted.address().is_none();
        self.missing.near.is_empty() && self.missing.several.is_empty() && (in_any_file || self.read.is_empty())
    }

    /// What was read so far in vain.
    pub fn missing(&self) -> &Missing {
        &self.missing
    }

    /// Reads what is mapped now and was not read before: the program itself, then its libraries in
    /// the order of their addresses. Ends at a file that has the name more than once.
    pub fn look(&mut self, pid: i32, maps: &Maps) -> Option<Function> {
        let exe = std::fs::read_link(format!("/proc/{}/exe", procfs::living(pid))).unwrap_or_default();
        let exe = exe.to_string_lossy().trim_end_matches(" (deleted)").to_owned();
        let mut files: BTreeMap<(u64, u64), &Mapping> = BTreeMap::new();
        for m in maps.iter().filter(|m| m.exec && m.ino != 0 && !self.read.contains(&(m.dev, m.ino))) {
            files.entry((m.dev, m.ino)).or_insert(m);
        }
        let fits = |m: &Mapping| match &self.wanted.file {
            Some(end) => is_called(&m.path, end),
            None => self.wanted.address().is_none() || m.path == exe,
        };
        let mut files: Vec<&Mapping> = files.into_values().filter(|m| fits(m)).collect();
        files.sort_by_key(|m| (m.path != exe, m.start));
        for m in files {
            let room = Room::of(MAX_TABLE);
            self.read.insert((m.dev, m.ino));
            self.missing.searched.push(m.path.clone());
            let found = match self.wanted.address() {
                Some(at) => Module::load(pid, m, &room).and_then(|module| {
                    let (start, size) = module.function(at)?;
                    Some((name(m, start), start, size))
                }),
                None => by_name(pid, m, &room, &self.wanted.name, &mut self.missing),
            };
            if let Some((name, linked, size)) = found
                && let Some(f) = place(pid, maps, m, &room, name, linked, size)
            {
                return Some(f);
            }
            if !self.missing.several.is_empty() {
                break;
            }
        }
        None
    }
}

/// The function that holds an address of a process, by its file's unwind tables, Go's own table, or
/// symbols that have a size; nothing if none of these says. Takes some milliseconds for a large
/// program.
pub fn at(pid: i32, maps: &Maps, address: u64) -> Option<Function> {
    let m = maps.at(address).filter(|m| m.exec && m.ino != 0)?;
    let room = Room::of(MAX_TABLE);
    let module = Module::load(pid, m, &room)?;
    let (start, size) = module.function(module.linked(m, address)?)?;
    place(pid, maps, m, &room, name(m, start), start, size)
}

/// What a nameless function is called.
fn name(m: &Mapping, start: u64) -> String {
    format!("{}+{start:#x}", m.path.rsplit('/').next().unwrap_or_default())
}

/// A function's name, address as linked, and size.
type Named = (String, u64, u64);

fn by_name(pid: i32, m: &Mapping, room: &Room, wanted: &str, missing: &mut Missing) -> Option<Named> {
    let mut elf = open_elf(pid, m, room)?;
    if !elf.sections.iter().any(|s| s.kind == SYMTAB)
        && let Some(debug) = split_off(pid, &elf, room)
    {
        // Symbols that were split off have the same addresses.
        elf = debug;
    }
    let last = wanted.rsplit("::").next().unwrap_or(wanted);
    let last = last.split(['(', '<']).next().unwrap_or(last).as_bytes();
    let mut best: (u8, BTreeMap<u64, (String, u64)>) = (u8::MAX, BTreeMap::new());
    let mut near: Vec<(usize, String)> = Vec::new();
    each(&elf, |name, addr, size| {
        let holds = name.windows(last.len().max(1)).any(|w| w == last);
        if !holds {
            if let Some(d) = distance(name, wanted.as_bytes()) {
                near.push((d, String::from_utf8_lossy(name).into_owned()));
            }
            return;
        }
        let readable = readable(name);
        let Some(rank) = rank(name, &readable, wanted) else {
            near.push((3, readable));
            return;
        };
        if rank < best.0 {
            best = (rank, BTreeMap::new());
        }
        if rank == best.0 {
            // Aliases share an address; the size may be given with one of them only.
            let entry = best.1.entry(addr).or_insert((readable, 0));
            entry.1 = entry.1.max(size);
        }
    });
    if best.1.len() > 1 {
        missing.several = best.1.into_iter().take(MAX_NAMES).map(|(a, (n, _))| (n, a)).collect();
        return None;
    }
    if let Some((addr, (name, size))) = best.1.into_iter().next() {
        return Some((name, addr, size));
    }
    near.sort();
    near.dedup();
    missing.near.extend(near.into_iter().map(|(_, n)| n).take(MAX_NAMES));
    missing.near.truncate(MAX_NAMES);
    None
}

const FUNCTION: u8 = 2;

/// Calls `f` with name, address and size of each function that the file defines; of a stripped
/// program of Go's by the table that it keeps itself.
fn each(elf: &Elf, mut f: impl FnMut(&[u8], u64, u64)) {
    if !elf.sections.iter().any(|s| s.kind == SYMTAB)
        && let Some(table) = GoTable::of(elf)
    {
        table.all().for_each(|(name, addr, size)| f(name, addr, size));
    }
    for (_, table, strings) in tables(elf, [SYMTAB, DYNSYM]) {
        for s in entries(&table) {
            let name = u32_at(s, 0).and_then(|n| text_at(&strings, n as usize)).unwrap_or_default();
            let (Some(addr), Some(size)) = (u64_at(s, 8), u64_at(s, 16)) else {
                continue;
            };
            if s[4] & 15 == FUNCTION && (s[6] != 0 || s[7] != 0) && addr != 0 && !name.is_empty() {
                f(name.split(|&c| c == b'@').next().unwrap_or(name), addr, size);
            }
        }
    }
}

/// Whether a file is called so: by the end of its path, of a library also without the rest of its
/// version (`libz.so.1` for `/lib/libz.so.1.2.13`).
fn is_called(path: &str, end: &str) -> bool {
    let is_version = |rest: &str| rest.starts_with('.') && rest.chars().all(|c| c == '.' || c.is_ascii_digit());
    let of_library = || end.contains(".so") && path.rsplit_once(end).is_some_and(|(_, rest)| is_version(rest));
    path.ends_with(end) || of_library()
}

/// How well a symbol fits, 0 best; nothing if not.
fn rank(mangled: &[u8], readable: &str, wanted: &str) -> Option<u8> {
    // C++ writes what an instance of a template returns before its name.
    let called = without_return(readable);
    let bare = without_parameters(called);
    // Copies that the compiler made for special arguments.
    let copy = |n: &str| {
        let (head, tail) = n.split_once('.')?;
        let of = ["isra", "constprop", "llvm", "lto_priv"].iter().any(|k| tail.starts_with(k));
        (of && head == wanted).then_some(())
    };
    let ends = |n: &str| n.strip_suffix(wanted).is_some_and(|head| head.ends_with("::"));
    let template = without_arguments(bare);
    if mangled == wanted.as_bytes() || readable == wanted || called == wanted {
        Some(0)
    } else if cold_part(mangled) {
        // It has its function's name, with which the function is meant.
        None
    } else if bare == wanted || template == Some(wanted) {
        Some(1)
    } else if copy(readable).is_some() {
        Some(2)
    } else if ends(bare) || ends(called) || template.is_some_and(ends) {
        Some(3)
    } else {
        None
    }
}

/// Whether it is the part of a function that is seldom run: `f.cold`, `f.cold.0`.
fn cold_part(mangled: &[u8]) -> bool {
    let number = mangled.iter().rposition(|&c| c == b'.').filter(|&i| mangled[i + 1..].iter().all(u8::is_ascii_digit));
    mangled[..number.unwrap_or(mangled.len())].ends_with(b".cold")
}

/// `ns::f` of `ns::f(int)`.
fn without_parameters(name: &str) -> &str {
    // `operator()` has brackets of its own.
    let from = name.find("operator()").map_or(0, |i| i + "operator()".len());
    name[from..].find('(').filter(|&i| from + i > 0).map_or(name, |i| &name[..from + i])
}

/// `ns::f<int>(int)` of `long ns::f<int>(int)`.
fn without_return(name: &str) -> &str {
    // Names of operators may have a space of their own.
    if name.contains("operator") {
        return name;
    }
    let (mut depth, mut from) = (0usize, 0);
    for (i, c) in name.char_indices() {
        match c {
            // Behind the parameters there may be `const`.
            '(' if depth == 0 && i > from => break,
            '<' | '(' | '[' | '{' => depth += 1,
            '>' | ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ' ' if depth == 0 => from = i + 1,
            _ => {}
        }
    }
    &name[from..]
}

/// `ns::f` of `ns::f<int>`.
fn without_arguments(name: &str) -> Option<&str> {
    let mut depth = 0usize;
    for (i, c) in name.char_indices().rev() {
        match c {
            '>' => depth += 1,
            '<' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            // Not of `f`, `operator>` or a Rust method such as `<A as B>::f`.
            return (c == '<' && i > 0 && !name[..i].ends_with("operator")).then(|| &name[..i]);
        }
    }
    None
}

/// Letters that differ, if few: 0 with another case, at most 2.
fn distance(name: &[u8], wanted: &[u8]) -> Option<usize> {
    if name.len().abs_diff(wanted.len()) > 2 || name.len() > 128 {
        return None;
    }
    let mut row: Vec<usize> = (0..=wanted.len()).collect();
    for (i, a) in name.iter().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in wanted.iter().enumerate() {
            let here = if a.eq_ignore_ascii_case(b) { before } else { 1 + before.min(row[j]).min(row[j + 1]) };
            before = std::mem::replace(&mut row[j + 1], here);
        }
    }
    row.last().copied().filter(|&d| d <= 2 && d * 3 < wanted.len().max(1))
}

fn place(
    pid: i32,
    maps: &Maps,
    first: &Mapping,
    room: &Room,
    name: String,
    linked: u64,
    size: u64,
) -> Option<Function> {
    // From the file that is mapped: one with debug information only has no code.
    let elf = open_elf(pid, first, room)?;
    let segment = elf.segments.iter().find(|s| linked.checked_sub(s.addr).is_some_and(|o| o < s.size))?;
    let offset = linked - segment.addr + segment.offset;
    let same = |m: &&Mapping| (m.dev, m.ino) == (first.dev, first.ino) && m.exec;
    let m = maps.iter().filter(same).find(|m| (m.offset..m.offset + (m.end - m.start)).contains(&offset))?;
    let len =
        if size == 0 { CODE_BYTES_OF_UNKNOWN_LENGTH } else { usize::try_from(size).unwrap_or(MAX_CODE).min(MAX_CODE) };
    let code = elf.bytes(offset, len);
    let whole = size != 0 && code.len() as u64 == size;
    Some(Function {
        name,
        module: m.path.clone(),
        file: reachable(pid, m),
        identity: (m.dev, m.ino),
        offset,
        address: offset - m.offset + m.start,
        size: if whole { size } else { 0 },
        code,
        go: elf.section(".gopclntab").is_some(),
    })
}

/// A name by which this process can open the file of a mapping.
fn reachable(pid: i32, m: &Mapping) -> PathBuf {
    use std::os::unix::fs::MetadataExt;
    let pid = procfs::living(pid);
    let by_name = format!("/proc/{pid}/root{}", m.path);
    match std::fs::metadata(&by_name) {
        Ok(s) if s.ino() == m.ino && !m.deleted => by_name.into(),
        _ => Path::new(&format!("/proc/{pid}/map_files/{:x}-{:x}", m.start, m.end)).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_asked_for() {
        let w = |s: &str| s.parse::<Wanted>().map(|w| (w.file, w.name));
        assert_eq!(w("f"), Ok((None, "f".into())));
        assert_eq!(w("ns::Store::get"), Ok((None, "ns::Store::get".into())));
        assert_eq!(w("libx.so.3:ns::get(int)"), Ok((Some("libx.so.3".into()), "ns::get(int)".into())));
        assert_eq!(w("libx.so:0x10"), Ok((Some("libx.so".into()), "0x10".into())));
        assert!(w("").is_err() && w(":f").is_err() && w("lib:").is_err() && w("0xg").is_err());
    }

    #[test]
    fn how_well_names_fit() {
        let fit = |mangled: &str, wanted| rank(mangled.as_bytes(), &readable(mangled.as_bytes()), wanted);
        assert_eq!(fit("_ZN3foo3barEi", "foo::bar(int)"), Some(0));
        assert_eq!(fit("_ZN3foo3barEi", "_ZN3foo3barEi"), Some(0));
        assert_eq!(fit("_ZN3foo3barEi", "foo::bar"), Some(1));
        assert_eq!(fit("_ZN3foo3barEi", "bar"), Some(3));
        assert_eq!(fit("_ZN3foo3barEi", "ar"), None);
        assert_eq!(fit("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"), Some(0));
        // long Server::go<long>(long)
        let template = "_ZN6Server2goIlEET_S1_";
        for (wanted, rank) in [("Server::go<long>(long)", 0), ("Server::go<long>", 1), ("Server::go", 1), ("go", 3)] {
            assert_eq!(fit(template, wanted), Some(rank), "{wanted}");
        }
        assert_eq!(fit(template, "Server::go<int>"), None);
        assert_eq!(fit("_ZN1ShsEi", "S::operator>>"), None);
        assert_eq!(fit("_ZN1SgtEi", "S::operator>"), Some(1));
        assert_eq!(without_return("int (anonymous namespace)::f<int>(int)"), "(anonymous namespace)::f<int>(int)");
        assert_eq!(without_return("(anonymous namespace)::f(int) const"), "(anonymous namespace)::f(int) const");
        assert_eq!(without_return("<a::B as c::D<e, f>>::g"), "<a::B as c::D<e, f>>::g");
        assert_eq!(fit("work.constprop.0", "work"), Some(2));
        for (part, name) in [
            ("work.cold", "work"),
            ("work.constprop.0.cold", "work"),
            ("_Z7throweri.cold", "thrower"),
            ("_Z7throweri.cold.1", "thrower"),
            ("_ZN2ns7throweriE.cold", "thrower"),
        ] {
            assert_eq!(fit(part, name), None, "{part}");
            assert_eq!(fit(part, part), Some(0), "by its own symbol");
        }
        assert_eq!(fit("_Z7throweri.cold", "thrower(int) [clone .cold]"), Some(0));
        assert_eq!(fit("_Z7throweri.part.0", "thrower"), Some(1), "code of its own");
        assert_eq!(fit("main.cold", "main.cold"), Some(0), "Go's function cold");
        assert!(distance(b"handel_request", b"handle_request").is_some());
        assert!(distance(b"other", b"handle_request").is_none());
    }

    #[test]
    fn libraries_without_the_rest_of_their_version() {
        for end in ["libz.so", "libz.so.1", "libz.so.1.2.13", "lib/libz.so"] {
            assert!(is_called("/usr/lib/libz.so.1.2.13", end), "{end}");
        }
        for end in ["libz", "libz.so.2", "libz.so.1.2.1", "liby.so"] {
            assert!(!is_called("/usr/lib/libz.so.1.2.13", end), "{end}");
        }
    }

    #[test]
    fn this_very_program() {
        let pid = std::process::id() as i32;
        let maps = Maps::of(pid).unwrap();
        let malloc = find(pid, &maps, &"libc.so.6:malloc".parse().unwrap());
        if let Ok(f) = &malloc {
            assert!(f.module.ends_with("libc.so.6") && f.size > 0 && !f.go);
            let here = crate::Memory::of(pid).vec(f.address, f.code.len());
            assert_eq!(here, f.code, "what is in the file is what is in memory");
            assert!(f.holds(f.address + f.size - 1) && !f.holds(f.address + f.size));
            let again = find(pid, &maps, &format!("libc.so.6:{:#x}", linked(&maps, f) + 1).parse().unwrap()).unwrap();
            assert_eq!(again.address, f.address, "by an address inside it");
            let held = at(pid, &maps, f.address + 1).expect("the C library has unwind tables");
            assert_eq!(
                (held.address, held.size, held.offset, held.code),
                (f.address, f.size, f.offset, f.code.clone())
            );
            assert!(at(pid, &maps, 1).is_none());
        }
        let none = find(pid, &maps, &"libc.so.6:mallok".parse().unwrap()).unwrap_err();
        assert!(none.searched.is_empty() == malloc.is_err(), "{none}");
        if malloc.is_ok() {
            assert!(none.near.iter().any(|n| n == "malloc"), "{none}");
        }
        let none = find(pid, &maps, &"nosuchfile:main".parse().unwrap()).unwrap_err();
        assert!(none.to_string().contains("no file of the process fits"));
    }

    /// In the C library addresses as linked are counted from its first mapping.
    fn linked(maps: &Maps, f: &Function) -> u64 {
        let base = maps.iter().find(|m| (m.dev, m.ino) == f.identity && m.offset == 0).unwrap();
        f.address - base.start
    }
}
