//! Small files of `/proc`: read into a bounded buffer and parsed here.

use orbit_linux::procfs::ids;
use orbit_linux::stat::Stat;
use orbit_linux::status::Status;
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

/// The thread of a process by whose id its memory and files are found: the first one, or another if
/// that has ended (`pthread_exit` in `main`), for then `/proc/PID/maps`, `fd`, `exe` and the like
/// say nothing.
pub(crate) fn living(pid: i32) -> i32 {
    let ended = |tid: i32| Stat::of_thread(pid, tid).is_ok_and(|stat| matches!(stat.state, 'Z' | 'X'));
    if !ended(pid) {
        return pid;
    }
    ids(format!("/proc/{pid}/task")).into_iter().find(|&t| !ended(t)).unwrap_or(pid)
}

/// The process a thread (of this pid namespace) belongs to.
pub(crate) fn process_of(tid: i32) -> Option<i32> {
    Status::of(tid).ok()?.process()
}

/// The same for a thread that has not ended: one that has is there until its process is waited for,
/// and does nothing more.
pub(crate) fn process_of_living(tid: i32) -> Option<i32> {
    let status = Status::of(tid).ok()?;
    if status.has_ended() { None } else { status.process() }
}

/// The process that traces a thread; 0 if none in sight. The kernel names the tracing thread.
pub(crate) fn tracer(status: &Status) -> i32 {
    let by = status.tracer().unwrap_or(0);
    if by == 0 { 0 } else { process_of(by).unwrap_or(by) }
}
