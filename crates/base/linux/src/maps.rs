//! The mappings of a process, from `/proc/PID/maps`.
//!
//! Lines that are not understood are an error: whoever maps at a free address must know of all that
//! is not free.

use crate::procfs;
use std::io;

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// `r`, `w`, `x` as `PROT_*`.
    pub protection: i32,
    /// Shared with other processes.
    pub shared: bool,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Inode of the file, 0 for anonymous memory.
    pub inode: u64,
    /// The path, or a name such as `[vdso]`; empty for anonymous memory.
    pub name: String,
}

/// Returns the mappings of a process or thread, sorted by address. Costs about 1 us each.
///
/// # Errors
/// Those of reading the file (`ENOENT`, `ESRCH` when it has ended, `EACCES`); `InvalidData` for a
/// line that is not understood.
pub fn of(pid: i32) -> io::Result<Vec<Entry>> {
    parse(&procfs::text(format!("/proc/{pid}/maps"))?)
}

/// Parses the text of such a file.
///
/// # Errors
/// `InvalidData` for a line that is not understood.
pub fn parse(text: &str) -> io::Result<Vec<Entry>> {
    text.lines()
        .map(|l| {
            line(l).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("line {l:?} of a maps file")))
        })
        .collect()
}

/// Whether the kernel may drop the content of the mapping that begins at this address
/// (`MAP_DROPPABLE`, from Linux 6.11; glibc's state of random numbers is in one). Reads smaps,
/// which walks the page tables of the process: milliseconds for a large one.
///
/// # Errors
/// Those of reading the file.
pub fn is_droppable(pid: i32, start: u64) -> io::Result<bool> {
    Ok(has_flag(&procfs::text(format!("/proc/{pid}/smaps"))?, start, "dp"))
}

/// The private mappings of a process whose content may be zero at any time (`MAP_DROPPABLE`) or is
/// in a child of fork (`MADV_WIPEONFORK`): what programs keep there they can do without, and must
/// not use twice. Addresses of start and end.
///
/// # Errors
/// Those of reading `/proc/PID/smaps`.
pub fn not_to_be_repeated(pid: i32) -> io::Result<Vec<(u64, u64)>> {
    Ok(flagged(&procfs::text(format!("/proc/{pid}/smaps"))?, &["dp", "wf"]))
}

/// The mappings that have one of these flags, in the text of a smaps file.
fn flagged(smaps: &str, wanted: &[&str]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut last = None;
    for text in smaps.lines() {
        if let Some(flags) = text.strip_prefix("VmFlags:") {
            let has_one = flags.split_ascii_whitespace().any(|flag| wanted.contains(&flag));
            found.extend(last.take().filter(|_| has_one));
        } else if let Some(entry) = line(text) {
            last = Some((entry.start, entry.end));
        }
    }
    found
}

/// Whether the mapping that begins at this address has this flag, in the text of a smaps file.
fn has_flag(smaps: &str, start: u64, flag: &str) -> bool {
    let begins = format!("{start:08x}-");
    let flags = smaps.lines().skip_while(|l| !l.starts_with(&begins)).find_map(|l| l.strip_prefix("VmFlags:"));
    flags.is_some_and(|flags| flags.split_ascii_whitespace().any(|f| f == flag))
}

fn line(line: &str) -> Option<Entry> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let bits = fields.next()?.as_bytes();
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let _device = fields.next()?;
    let inode = fields.next()?.parse().ok()?;
    let name = fields.next().unwrap_or("").trim_start_matches(' ').to_owned();
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    if start >= end || bits.len() < 4 {
        return None;
    }
    let bit = |i: usize, letter, value| if bits[i] == letter { value } else { 0 };
    let protection = bit(0, b'r', libc::PROT_READ) | bit(1, b'w', libc::PROT_WRITE) | bit(2, b'x', libc::PROT_EXEC);
    Some(Entry { start, end, protection, shared: bits[3] == b's', offset, inode, name })
}

/// Returns the lowest address from `from` on where `len` bytes are free in all of the given address
/// spaces, ending at `until` at the latest; both are whole pages. `None` if there is no such gap.
pub fn free_in_all(spaces: &[&[Entry]], len: u64, from: u64, until: u64) -> Option<u64> {
    let mut start = from;
    loop {
        let end = start.checked_add(len).filter(|end| *end <= until)?;
        let clash = spaces
            .iter()
            .flat_map(|entries| {
                let first = entries.partition_point(|e| e.end <= start);
                entries[first..].iter().take_while(move |e| e.start < end)
            })
            .map(|e| e.end)
            .max();
        match clash {
            Some(after) => start = after,
            None => return Some(start),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
00400000-00452000 r-xp 00001000 08:02 173521      /usr/bin/a b
7f0000000000-7f0000002000 rw-s 00000000 00:00 0 
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    #[test]
    fn flags_are_those_of_the_mapping_that_begins_there() {
        let smaps = "00400000-00401000 r--p 00000000 fe:00 7  /a\nSize: 4 kB\nVmFlags: rd mr mw me\n\
            7f00a000-7f00b000 rw-p 00000000 00:00 0 \nSize: 4 kB\nVmFlags: rd wr mr mw me nr wf dd dp \n";
        let found = [0x40_0000, 0x7f00_a000, 0x7f00_b000].map(|start| has_flag(smaps, start, "dp"));
        assert_eq!(found, [false, true, false]);
        assert_eq!(flagged(smaps, &["dp", "wf"]), [(0x7f00_a000, 0x7f00_b000)]);
        assert_eq!(flagged(smaps, &["ht"]), []);
    }

    #[test]
    fn lines_are_understood() {
        let maps = parse(TEXT).expect("three lines");
        assert_eq!(maps[0].name, "/usr/bin/a b");
        assert_eq!(
            (maps[0].protection, maps[0].offset, maps[0].inode),
            (libc::PROT_READ | libc::PROT_EXEC, 0x1000, 173_521)
        );
        assert!(maps[1].shared && maps[1].name.is_empty());
        assert_eq!(maps[2].name, "[vsyscall]");
        assert!(parse("nonsense").is_err());
        assert!(of(std::process::id() as i32).expect("own").iter().any(|e| e.name == "[stack]"));
    }

    #[test]
    fn a_gap_is_free_in_all() {
        let entry =
            |start, end| Entry { start, end, protection: 0, shared: false, offset: 0, inode: 0, name: String::new() };
        let (a, b) = ([entry(0x1000, 0x3000), entry(0x5000, 0x6000)], [entry(0x3000, 0x4000)]);
        assert_eq!(free_in_all(&[&a, &b], 0x1000, 0x1000, 0x10000), Some(0x4000));
        assert_eq!(free_in_all(&[&a, &b], 0x2000, 0x1000, 0x10000), Some(0x6000));
        assert_eq!(free_in_all(&[&a, &b], 0x2000, 0x1000, 0x7000), None);
        assert_eq!(free_in_all(&[&a], 0x2000, 0x3000, 0x5000), Some(0x3000));
    }
}
