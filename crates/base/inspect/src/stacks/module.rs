//! One file mapped into a process: its unwind tables, names and lines.
//!
//! Promises: opened without blocking (a name may lead to a FIFO by now) and used only if it is the
//! file that is mapped. Refuses: files on FUSE, whose server could keep the reader waiting for
//! ever.

use super::elf::{Elf, Room, Source};
use super::go::GoTable;
use super::lines::Lines;
use super::symbols::Symbols;
use super::unwind::Tables;
use crate::{Mapping, Memory, procfs};
use gimli::BaseAddresses;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of unwind tables read of one file at most.
const MAX_TABLES: usize = 256 << 20;
/// Bytes of a module that is read out of memory.
const MAX_IMAGE: usize = 1 << 20;

/// What is known of a file.
pub(crate) struct Module {
    elf: Elf,
    pub(crate) tables: Tables,
    pub(crate) symbols: Symbols,
    pub(crate) go: Option<GoTable>,
    lines: Option<Option<Lines>>,
    /// It is the C library's.
    c_library: bool,
    /// The file with the debug information that was split off, searched for when first needed.
    debug: Option<Option<Elf>>,
    room: Room,
    /// That file is searched for below these directories.
    roots: [PathBuf; 2],
}

impl Module {
    /// Reads what unwinding and naming need; nothing if the file is not available or is no ELF
    /// file.
    pub(crate) fn load(pid: i32, m: &Mapping, room: &Room) -> Option<Module> {
        let source = if m.path == "[vdso]" {
            let size = usize::try_from(m.end - m.start).ok()?.min(MAX_IMAGE);
            Source::Bytes(Memory::of(pid).vec(m.start, size))
        } else {
            Source::File(open(pid, m)?)
        };
        let elf = Elf::open(source, room)?;
        let mut bases = BaseAddresses::default();
        let mut content = |name: &str| {
            if let Some(s) = elf.section(name) {
                bases = match name {
                    ".eh_frame" => bases.clone().set_eh_frame(s.addr),
                    ".eh_frame_hdr" => bases.clone().set_eh_frame_hdr(s.addr),
                    ".text" => bases.clone().set_text(s.addr),
                    _ => bases.clone(),
                };
            }
            if name == ".text" { Vec::new() } else { elf.named(name, MAX_TABLES).unwrap_or_default() }
        };
        content(".text");
        let mut tables = Tables {
            eh_frame: content(".eh_frame"),
            eh_frame_hdr: content(".eh_frame_hdr"),
            debug_frame: content(".debug_frame"),
            ..Tables::default()
        };
        tables.bases = bases;
        tables.index();
        let symbols = Symbols::of(&elf);
        let go = GoTable::of(&elf);
        let roots = roots(pid);
        let room = room.clone();
        let mut module = Module {
            elf,
            tables,
            symbols,
            go,
            lines: None,
            c_library: of_c_library(&m.path),
            debug: None,
            room,
            roots,
        };
        if module.go.is_none()
            && module.elf.section(".symtab").is_none()
            && let Some(more) = module.debug_file()
        {
            let full = Symbols::of(more);
            if !full.is_empty() {
                module.symbols = full;
            }
        }
        Some(module)
    }

    fn debug_file(&mut self) -> Option<&Elf> {
        let (elf, room, roots) = (&self.elf, &self.room, &self.roots);
        self.debug.get_or_insert_with(|| debug_file(elf, room, roots)).as_ref()
    }

    /// Start and length of the function that holds an address as linked, by the unwind tables, Go's
    /// own table or the symbols.
    pub(crate) fn function(&self, addr: u64) -> Option<(u64, u64)> {
        let go = || self.go.as_ref()?.covers(addr);
        self.tables.covers(addr).or_else(go).or_else(|| self.symbols.covers(addr))
    }

    /// Address as linked of an address in the process, where `m` is the mapping that holds it.
    pub(crate) fn linked(&self, m: &Mapping, addr: u64) -> Option<u64> {
        if m.path == "[vdso]" {
            let first = self.elf.segments.first().map_or(0, |s| s.addr);
            return Some(addr - m.start + first);
        }
        self.elf.linked(addr - m.start + m.offset)
    }

    /// Source lines, read from the file when first asked for. The C library's are not searched
    /// for elsewhere: every stack has frames of its, hardly anybody has its source, and they take
    /// longer to read than all else.
    pub(crate) fn lines(&mut self) -> Option<&mut Lines> {
        if self.lines.is_none() {
            let own = Lines::of(&self.elf);
            self.lines = Some(own.or_else(|| if self.c_library { None } else { Lines::of(self.debug_file()?) }));
        }
        self.lines.as_mut()?.as_mut()
    }
}

/// Whether a file is the C library or the dynamic linker, by its name.
pub fn of_c_library(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or_default();
    ["libc.so", "libc-", "ld-", "libc.musl"].iter().any(|begin| file.starts_with(begin))
}

/// The file behind a mapping, its headers read.
pub(crate) fn open_elf(pid: i32, m: &Mapping, room: &Room) -> Option<Elf> {
    Elf::open(Source::File(open(pid, m)?), room)
}

/// The file with the debug information that was split off a file of a process.
pub(crate) fn split_off(pid: i32, elf: &Elf, room: &Room) -> Option<Elf> {
    debug_file(elf, room, &roots(pid))
}

/// Where such files are searched for.
fn roots(pid: i32) -> [PathBuf; 2] {
    [PathBuf::from("/"), PathBuf::from(format!("/proc/{}/root", procfs::living(pid)))]
}

/// A plain file, opened so that nothing can block.
fn plain(path: impl AsRef<Path>) -> Option<File> {
    let f = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).ok()?;
    f.metadata().ok()?.is_file().then_some(f)
}

/// The file behind a mapping: also when its name is gone, and by the names of the process' own root
/// directory.
fn open(pid: i32, m: &Mapping) -> Option<File> {
    let pid = procfs::living(pid);
    if m.ino == 0 || on_fuse(pid, m) {
        return None;
    }
    let same = |f: &File| f.metadata().is_ok_and(|s| s.ino() == m.ino);
    plain(format!("/proc/{pid}/map_files/{:x}-{:x}", m.start, m.end))
        .or_else(|| plain(format!("/proc/{pid}/root{}", m.path)).filter(same))
        .or_else(|| plain(format!("/proc/{pid}/exe")).filter(same))
}

/// Whether the file system of a mapping is served by a program.
fn on_fuse(pid: i32, m: &Mapping) -> bool {
    let dev = format!("{}:{}", m.dev >> 32, m.dev & 0xffff_ffff);
    let mounts = procfs::text(&format!("/proc/{pid}/mountinfo"), 16 << 20).unwrap_or_default();
    mounts.lines().any(|l| {
        l.split(' ').nth(2) == Some(&dev) && l.split_once(" - ").is_some_and(|(_, kind)| kind.starts_with("fuse"))
    })
}

/// The file with the debug information that was split off, found by build id.
fn debug_file(elf: &Elf, room: &Room, roots: &[PathBuf; 2]) -> Option<Elf> {
    let id = elf.build_id()?;
    let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
    let (dir, rest) = hex.split_at(2);
    let path = format!("usr/lib/debug/.build-id/{dir}/{rest}.debug");
    let found = roots.iter().find_map(|r| plain(r.join(&path)))?;
    let found = Elf::open(Source::File(found), room)?;
    (found.build_id()? == id).then_some(found)
}
