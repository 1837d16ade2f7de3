//! Files of `/proc` as text, whatever bytes they hold.
//!
//! The kernel writes names there as they are: a program's name is cut after 15 bytes, in the middle
//! of a character too, and paths, sockets and devices may be named with any bytes. To reject such a
//! file would lose the numbers beside the name.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The inode of the first pid namespace, the same on every kernel since Linux 3.8.
const FIRST_PID_NAMESPACE: u64 = 0xefff_fffc;

/// The whole file. What is no UTF-8 in it becomes U+FFFD; lines, spaces and numbers stay what they
/// are.
///
/// # Errors
/// Those of reading it: `ENOENT`, or `ESRCH` where it ends meanwhile, for a process that is gone;
/// `EACCES`.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = fs::read(path)?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

/// Longest file that [`record`] reads at once.
const RECORD: usize = 4096;

/// As [`text`], of a file that the kernel writes as one record (`status`, `stat`, `syscall`, `io`):
/// one read has it whole, where [`text`] takes two and asks for its size.
///
/// # Errors
/// As [`text`].
pub fn record(path: impl AsRef<Path>) -> io::Result<String> {
    let mut bytes = [0; RECORD];
    let n = File::open(path.as_ref())?.read(&mut bytes)?;
    if n == RECORD { text(path) } else { Ok(String::from_utf8_lossy(&bytes[..n]).into_owned()) }
}

/// A file that the kernel keeps about the calling process (`maps`, `pagemap`, `ns/pid`): `read` is
/// given its path.
///
/// It is read by the calling thread: `/proc/self` is the first thread, which has no memory left
/// once it has ended, as after `pthread_exit` in `main`. A thread has all of the files but
/// `map_files`; where its path is not available (old kernels, rules that name `/proc/PID` alone)
/// the process' is.
///
/// # Errors
/// Those of `read` with `/proc/self`.
pub fn own<R>(file: &str, read: impl Fn(&str) -> io::Result<R>) -> io::Result<R> {
    read(&format!("/proc/thread-self/{file}")).or_else(|_| read(&format!("/proc/self/{file}")))
}

/// Such a file as [`text`].
///
/// # Errors
/// Those of reading it: `ENOENT` where `/proc` is not mounted.
pub fn own_text(file: &str) -> io::Result<String> {
    own(file, |path| text(path))
}

/// Numbers that are names in a directory such as `/proc` or `/proc/PID/task`, sorted.
///
/// # Errors
/// `ENOENT` where there is no such directory, as of a process that is gone; `EACCES`.
pub fn ids_in(path: impl AsRef<Path>) -> io::Result<Vec<i32>> {
    let names = fs::read_dir(path)?.flatten();
    let mut ids: Vec<i32> = names.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    ids.sort_unstable();
    Ok(ids)
}

/// The same; none where that fails.
pub fn ids(path: impl AsRef<Path>) -> Vec<i32> {
    ids_in(path).unwrap_or_default()
}

/// The descriptors of a process with what each leads to (`pipe:[17]`), sorted.
///
/// # Errors
/// `EACCES` if the process may not be read, `ENOENT` if there is none. One that is closed
/// meanwhile is left out.
pub fn descriptors_of(pid: i32) -> io::Result<Vec<(i32, String)>> {
    let one = |e: io::Result<fs::DirEntry>| {
        let e = e.ok()?;
        let to = fs::read_link(e.path()).ok()?;
        Some((e.file_name().to_str()?.parse().ok()?, to.to_string_lossy().into_owned()))
    };
    let mut all: Vec<(i32, String)> = fs::read_dir(format!("/proc/{pid}/fd"))?.filter_map(one).collect();
    all.sort_unstable();
    Ok(all)
}

/// The same; none where that fails.
pub fn descriptors(pid: i32) -> Vec<(i32, String)> {
    descriptors_of(pid).unwrap_or_default()
}

/// Whether the calling process is in the first pid namespace, from which all processes are seen.
/// False also where `/proc` does not show it.
pub fn in_first_pid_namespace() -> bool {
    own("ns/pid", |path| fs::metadata(path)).is_ok_and(|m| m.ino() == FIRST_PID_NAMESPACE)
}

/// Returns device and inode of this process' PID namespace, by which a program in the kernel asks
/// for numbers of it; zeros for the first one, whose numbers need no translation.
pub fn nested_pid_namespace() -> (u64, u64) {
    if in_first_pid_namespace() {
        return (0, 0);
    }
    own("ns/pid", |path| fs::metadata(path)).map_or((0, 0), |m| (m.dev(), m.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cut_in_mid_character() {
        let text = std::thread::spawn(|| {
            crate::process::set_name(c"\xd0\xb0 x) \xff\xd0").expect("a name");
            text("/proc/thread-self/stat")
        });
        let text = text.join().expect("no panic").expect("stat");
        let (before, after) = text.rsplit_once(") ").expect("a name in brackets");
        assert!(before.ends_with("(а x) \u{fffd}\u{fffd}"), "{text}");
        assert!(after.starts_with("R ") && after.split_whitespace().count() > 40, "{text}");
    }

    #[test]
    fn a_file_that_is_not_there() {
        assert_eq!(text("/proc/self/nothing").map_err(|e| e.kind()), Err(io::ErrorKind::NotFound));
        assert_eq!(own_text("nothing").map_err(|e| e.kind()), Err(io::ErrorKind::NotFound));
    }

    #[test]
    fn what_only_the_process_has() {
        let kind = own("map_files", |path| fs::metadata(path)).expect("the process'").file_type();
        assert!(kind.is_dir());
    }
}
