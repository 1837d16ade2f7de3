//! What is mapped where in a process: `/proc/PID/maps`.
//!
//! Promises: sorted by address; at most [`MAX_MAPPINGS`] entries are kept of however many a process
//! has.

use crate::{Error, procfs};
use std::io::Read;

/// Mappings kept of one process (the kernel's usual limit is 65530).
pub const MAX_MAPPINGS: usize = 200_000;
/// Bytes of `/proc/PID/maps` read at most.
const MAX_BYTES: u64 = 64 << 20;

/// One line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address behind.
    pub end: u64,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Device of the file, major and minor in one number.
    pub dev: u64,
    /// Inode of the file, 0 for anonymous memory.
    pub ino: u64,
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// May be run.
    pub exec: bool,
    /// Shared with other processes.
    pub shared: bool,
    /// The path or a name such as `[stack]`; empty for anonymous memory. `deleted` is not part of
    /// it.
    pub path: String,
    /// The file has no name any more.
    pub deleted: bool,
}

/// All mappings of a process, by address.
#[derive(Clone, Debug, Default)]
pub struct Maps {
    list: Vec<Mapping>,
}

impl Maps {
    /// Reads the mappings of a process. Costs about 1 us a mapping.
    pub fn of(pid: i32) -> Result<Maps, Error> {
        Ok(Maps::parse(&text(pid)?))
    }

    /// Those mappings of a process whose path begins so. Where there are none this costs half of
    /// what [`Maps::of`] does.
    pub fn of_file(pid: i32, path: &str) -> Result<Maps, Error> {
        let text = text(pid)?;
        let mut maps = if text.contains(path) { Maps::parse(&text) } else { Maps::default() };
        maps.list.retain(|m| m.path.starts_with(path));
        Ok(maps)
    }

    /// Mappings from the text of a maps file; lines that are not understood are left out.
    pub fn parse(text: &str) -> Maps {
        let mut list: Vec<Mapping> = text.lines().take(MAX_MAPPINGS).filter_map(line).collect();
        list.sort_by_key(|m| m.start);
        Maps { list }
    }

    /// The mapping that holds an address.
    pub fn at(&self, addr: u64) -> Option<&Mapping> {
        let i = self.list.partition_point(|m| m.end <= addr);
        self.list.get(i).filter(|m| m.start <= addr)
    }

    /// All mappings, sorted by address.
    pub fn iter(&self) -> std::slice::Iter<'_, Mapping> {
        self.list.iter()
    }
}

fn text(pid: i32) -> Result<String, Error> {
    let err = |e| Error::of(pid, "reading the memory map", e);
    // Room for that of most programs, which is not read in ever larger pieces then.
    let mut bytes = Vec::with_capacity(16 << 10);
    let file = std::fs::File::open(format!("/proc/{}/maps", procfs::living(pid))).map_err(err)?;
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(err)?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

fn line(l: &str) -> Option<Mapping> {
    let mut rest = l;
    let mut field = || {
        rest = rest.trim_start_matches(' ');
        let (f, r) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = r;
        f
    };
    let (start, end) = field().split_once('-')?;
    let perms = field().as_bytes();
    let offset = u64::from_str_radix(field(), 16).ok()?;
    let (major, minor) = field().split_once(':')?;
    let ino = field().parse().ok()?;
    let path = rest.trim_start_matches(' ');
    let (path, deleted) = match path.strip_suffix(" (deleted)") {
        Some(p) => (p, true),
        None => (path, false),
    };
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    (start < end && perms.len() >= 4).then(|| Mapping {
        start,
        end,
        offset,
        dev: (u64::from_str_radix(major, 16).unwrap_or(0) << 32) | u64::from_str_radix(minor, 16).unwrap_or(0),
        ino,
        read: perms[0] == b'r',
        write: perms[1] == b'w',
        exec: perms[2] == b'x',
        shared: perms[3] == b's',
        path: path.to_owned(),
        deleted,
    })
}
