//! Small files of `/proc`: read into a bounded buffer and parsed here.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Reads a small file from its start through an open descriptor (each read makes the kernel write
/// it anew).
pub(crate) fn reread<'a>(file: &File, buf: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let n = file.read_at(buf, 0)?;
    Ok(&buf[..n])
}

/// A small file as text, at most `limit` bytes of it.
pub(crate) fn text(path: &str, limit: u64) -> io::Result<String> {
    use io::Read;
    // Room for nearly all of these files, which are read by one call then, and not in ever larger
    // pieces.
    let mut v = Vec::with_capacity(4 << 10);
    File::open(path)?.take(limit).read_to_end(&mut v)?;
    Ok(String::from_utf8_lossy(&v).into_owned())
}

/// The value behind `Name:` in a file such as `status`.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Ids that are names in a directory such as `/proc` or `/proc/PID/task`, sorted.
pub(crate) fn ids(path: &str) -> io::Result<Vec<i32>> {
    let mut v: Vec<i32> = std::fs::read_dir(path)?.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
    v.sort_unstable();
    Ok(v)
}

/// The thread of a process by whose id its memory and files are found: the first one, or another if
/// that has ended (`pthread_exit` in `main`), for then `/proc/PID/maps`, `fd`, `exe` and the like
/// tell nothing.
pub(crate) fn living(pid: i32) -> i32 {
    // Behind the name, which may hold any byte.
    let ended = |tid: i32| {
        text(&format!("/proc/{pid}/task/{tid}/stat"), 1024)
            .is_ok_and(|s| s.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])))
    };
    if !ended(pid) {
        return pid;
    }
    let all = ids(&format!("/proc/{pid}/task")).unwrap_or_default();
    all.into_iter().find(|&t| !ended(t)).unwrap_or(pid)
}

/// The process a thread (of this pid namespace) belongs to.
pub(crate) fn process_of(tid: i32) -> Option<i32> {
    field(&text(&format!("/proc/{tid}/status"), 8192).ok()?, "Tgid")?.parse().ok()
}

/// The same for a thread that has not ended: one that has is there until somebody waits for its
/// process, and does nothing more.
pub(crate) fn process_of_living(tid: i32) -> Option<i32> {
    let status = text(&format!("/proc/{tid}/status"), 8192).ok()?;
    let lives = !field(&status, "State")?.starts_with(['Z', 'X']);
    lives.then(|| field(&status, "Tgid")?.parse().ok()).flatten()
}

/// The process that traces a thread, from the thread's `status`; 0 if none in sight. The kernel
/// names the tracing thread.
pub(crate) fn tracer(status: &str) -> i32 {
    let by = field(status, "TracerPid").and_then(|p| p.parse().ok()).unwrap_or(0);
    if by == 0 { 0 } else { process_of(by).unwrap_or(by) }
}
