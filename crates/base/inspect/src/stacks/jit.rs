//! Names of code generated at run time, from the map that its maker writes for profilers:
//! `/tmp/perf-PID.map`, with a line `START SIZE NAME` for each function.
//!
//! Promises: read without blocking, and only if the process' own user, or root, wrote it; at most
//! [`MAX_BYTES`] of it. Which function was at an address when the map was written is at most likely
//! to be there now.

use super::symbols::MAX_NAME;
use crate::waits;
use orbit_linux::status::Status;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

/// Bytes of a map at most.
const MAX_BYTES: u64 = 64 << 20;

/// The functions of a process' map.
#[derive(Debug, Default)]
pub(crate) struct PerfMap {
    /// Start: length and name. Of functions at one address the last written counts.
    functions: BTreeMap<u64, (u64, String)>,
    /// What the file was when it was read: inode, bytes, time of its last change.
    version: Option<(u64, u64, i64, i64)>,
}

impl PerfMap {
    /// Reads the map again if it has changed.
    pub(crate) fn follow(&mut self, pid: i32) {
        let Some(file) = open(pid) else {
            *self = PerfMap::default();
            return;
        };
        let version = file.metadata().ok().map(|m| (m.ino(), m.size(), m.mtime(), m.mtime_nsec()));
        if version == self.version {
            return;
        }
        let mut bytes = Vec::new();
        if file.take(MAX_BYTES).read_to_end(&mut bytes).is_ok() {
            *self = PerfMap { functions: parse(&bytes), version };
        }
    }

    /// The function that holds an address: its name, and the distance from its start.
    pub(crate) fn at(&self, address: u64) -> Option<(&str, u64)> {
        let (start, (size, name)) = self.functions.range(..=address).next_back()?;
        (address - start < *size).then_some((name.as_str(), address - start))
    }
}

/// The file, in the process' own file system, under the id that it knows itself by.
fn open(pid: i32) -> Option<File> {
    let own = waits::inner_id(pid)?;
    let path = format!("/proc/{pid}/root/tmp/perf-{own}.map"); // where JITs put it, by perf's convention
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let user = Status::of(pid).ok()?.effective_user()?;
    let metadata = file.metadata().ok()?;
    (metadata.is_file() && [0, user].contains(&metadata.uid())).then_some(file)
}

fn parse(bytes: &[u8]) -> BTreeMap<u64, (u64, String)> {
    let line = |line: &[u8]| {
        let text = String::from_utf8_lossy(&line[..line.len().min(MAX_NAME)]);
        let mut words = text.trim_end().splitn(3, ' ');
        let mut number = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
        let (start, size) = (number()?, number()?);
        let name = words.next()?;
        (size > 0 && !name.is_empty()).then(|| (start, (size, name.to_owned())))
    };
    bytes.split(|&byte| byte == b'\n').filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_the_addresses_they_cover_and_nonsense_none() {
        let text = b"7f0010 20 add two\n7f0010 10 LazyCompile:~sum a.js:3\nx y z\n\n7f0040 0 none\n0x7f0050 8 last";
        let map = PerfMap { functions: parse(text), version: None };
        assert_eq!(map.at(0x7f0010), Some(("LazyCompile:~sum a.js:3", 0)));
        assert_eq!(map.at(0x7f001f), Some(("LazyCompile:~sum a.js:3", 15)));
        assert_eq!(map.at(0x7f0020), None);
        assert_eq!(map.at(0x7f0040), None);
        assert_eq!(map.at(0x7f0057), Some(("last", 7)));
        assert_eq!(map.at(0x7f000f), None);
    }
}
