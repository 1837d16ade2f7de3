//! Memory of the calling process that the kernel or a device may write to at any time, without a
//! thread of the process: buffers that are registered, and input on its way.

use crate::{maps, procfs};
use std::io;

/// How many bytes of the process are pinned for good (`VmPin`): registered buffers of io_uring,
/// RDMA. Input by `O_DIRECT` on its way is not among them.
///
/// # Errors
/// Those of reading `/proc/self/status`; `InvalidData` if it has no such line.
pub fn bytes() -> io::Result<usize> {
    let status = procfs::own("status", |path| procfs::record(path))?;
    pinned(&status).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/self/status has no VmPin line"))
}

fn pinned(status: &str) -> Option<usize> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"))?;
    line.split_whitespace().next()?.parse::<usize>().ok().map(|kib| kib << 10)
}

/// Whether something may write to the process' memory at any return from a system call: an io_uring
/// that it has open, or a context of `io_submit`.
///
/// # Errors
/// Those of reading `/proc`.
pub fn may_be_written() -> io::Result<bool> {
    if !rings()?.is_empty() {
        return Ok(true);
    }
    // The whole system's.
    if procfs::text("/proc/sys/fs/aio-nr").is_ok_and(|contexts| contexts.trim() == "0") {
        return Ok(false);
    }
    Ok(maps::parse(&procfs::own_text("maps")?)?.iter().any(|entry| entry.name.starts_with("/[aio]")))
}

/// The numbers of its descriptors of io_urings, as text.
fn rings() -> io::Result<Vec<String>> {
    let mut rings = Vec::new();
    for entry in procfs::own("fd", |path| std::fs::read_dir(path))? {
        let entry = entry?;
        // One that is closed meanwhile is none.
        if std::fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == "anon_inode:[io_uring]") {
            rings.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(rings)
}

/// The buffers `(start, bytes)` that the process' io_urings have registered, as far as they say so.
///
/// # Errors
/// Those of reading `/proc`.
pub fn registered() -> io::Result<Vec<(usize, usize)>> {
    let mut found = Vec::new();
    for ring in rings()? {
        if let Ok(text) = procfs::own_text(&format!("fdinfo/{ring}")) {
            found.extend(buffers(&text));
        }
    }
    Ok(found)
}

/// Those in the text of an io_uring's `fdinfo`: `    0: 0x7f0000000000/4096` after `UserBufs:`.
fn buffers(text: &str) -> impl Iterator<Item = (usize, usize)> {
    let after = text.split_once("\nUserBufs:").map_or("", |(_, after)| after);
    let rest = after.split_once('\n').map_or("", |(_, rest)| rest);
    rest.lines()
        .map_while(|line| {
            let (_, buffer) = line.trim_start().split_once(": ")?;
            buffer.split_once('/').or(Some((buffer, "")))
        })
        .filter_map(|(start, bytes)| {
            let start = usize::from_str_radix(start.strip_prefix("0x")?, 16).ok()?;
            Some((start, bytes.parse().ok()?))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_kernel() {
        let text = "SqMask:\t0x3\nUserFiles:\t1\n    0: pipe:[17]\nUserBufs:\t3\n    0: 0x7f5500001000/4096\n    1: \
            <none>\n    \
                    2: 0x7f5500003000/64\nPollList:\n  op=6, task_works=0\n";
        assert_eq!(buffers(text).collect::<Vec<_>>(), [(0x7f55_0000_1000, 4096), (0x7f55_0000_3000, 64)]);
        assert_eq!(buffers("SqMask:\t0x3\n").count(), 0);
        assert_eq!(pinned("VmLck:\t  0 kB\nVmPin:\t      12 kB\n"), Some(12 << 10));
        assert_eq!(pinned("VmLck:\t  0 kB\n"), None);
        assert_eq!(bytes().expect("status"), 0);
    }
}
