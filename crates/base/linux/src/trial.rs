//! Whether the filters of this process let a system call pass, found by making it in a child that
//! ends at once.
//!
//! A filter sees the number and the arguments as they are, and follows no pointer. So a call whose
//! arguments make no sense otherwise is judged like one that does something, and does nothing.

use crate::status::Status;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// A call: its number, and its arguments.
type Call = (i64, [u64; 6]);

static KNOWN: Mutex<BTreeMap<Call, bool>> = Mutex::new(BTreeMap::new());

/// The same call, judged alike by filters, that does nothing.
fn harmless(number: i64, arguments: [u64; 6]) -> Call {
    const NONE: u64 = u64::MAX;
    let [a, b, c, d, _, _] = arguments;
    let kept = match number {
        // Without a file: EBADF.
        libc::SYS_mmap => [0, 4096, c, d & !((libc::MAP_FIXED | libc::MAP_ANONYMOUS) as u64), NONE, 0],
        // No page begins there: EINVAL.
        libc::SYS_mprotect | libc::SYS_madvise => [1, 4096, c, 0, 0, 0],
        libc::SYS_munmap => [1, 4096, 0, 0, 0, 0],
        // The child's own end, if it is let through: with the status that says so.
        libc::SYS_brk | libc::SYS_exit | libc::SYS_exit_group => [0; 6],
        libc::SYS_prctl => [a, NONE, NONE, NONE, NONE, NONE],
        libc::SYS_openat => [NONE, NONE, c, d, 0, 0],
        libc::SYS_personality => [a, 0, 0, 0, 0, 0],
        libc::SYS_rt_sigprocmask => [a, NONE, NONE, b.min(8), 0, 0],
        _ => [NONE; 6],
    };
    (number, kept)
}

/// Whether a call is let through: not if the child is killed for it, or fails with `ENOSYS` or
/// `EPERM`. Takes as long as a fork the first time, and is known from then on.
pub fn passes(number: i64, arguments: [u64; 6]) -> bool {
    let call = harmless(number, arguments);
    if let Some(known) = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get(&call) {
        return *known;
    }
    let passes = tried(call);
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).insert(call, passes);
    passes
}

fn tried((number, [a, b, c, d, e, f]): Call) -> bool {
    // SAFETY: the child makes system calls only, of which the first does nothing, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: see above; errno is this thread's.
        unsafe {
            let result = libc::syscall(number, a, b, c, d, e, f);
            let errno = if result == -1 { *libc::__errno_location() } else { 0 };
            libc::_exit(i32::from(matches!(errno, libc::ENOSYS | libc::EPERM)));
        }
    }
    let mut status = 0;
    // SAFETY: waits for the child made above, and writes a local.
    while child > 0 && unsafe { libc::waitpid(child, &raw mut status, 0) } == -1 {
        if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return false;
        }
    }
    child > 0 && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

/// Whether the filters that judge a thread are those of this process: it descends from this one,
/// which inherits them, and has no more. A filter cannot be taken off.
pub fn has_the_same_filters(pid: i32, tid: i32) -> bool {
    const GENERATIONS: usize = 64;
    let own = std::process::id() as i32;
    let count = |status: Option<Status>| status?.field("Seccomp_filters")?.parse::<u32>().ok();
    let mut parent = Some(pid);
    for _ in 0..GENERATIONS {
        match parent {
            Some(at) if at == own => break,
            Some(at) if at > 1 => parent = Status::of(at).ok().and_then(|s| s.field("PPid")?.parse().ok()),
            _ => return false,
        }
    }
    let ours = count(Status::own().ok());
    parent == Some(own) && ours.is_some() && ours == count(Status::of_thread(pid, tid).ok())
}

/// Whether a filter judges the calls of this process.
pub fn is_filtered() -> bool {
    Status::own().is_ok_and(|status| status.field("Seccomp").is_some_and(|mode| mode != "0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_exist_pass_and_others_do_not() {
        let rights = libc::PROT_READ as u64;
        assert!(passes(libc::SYS_close, [9, 0, 0, 0, 0, 0]));
        assert!(passes(libc::SYS_mmap, [0, 4096, rights, libc::MAP_PRIVATE as u64, 0, 0]));
        assert!(passes(libc::SYS_exit, [7, 0, 0, 0, 0, 0]), "threads are ended by it");
        assert!(!passes(1000, [0; 6]), "there is no such call");
    }

    #[test]
    fn only_descendants_have_our_filters() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().expect("sleep");
        let pid = child.id() as i32;
        assert!(has_the_same_filters(pid, pid));
        assert!(!has_the_same_filters(1, 1), "it is an ancestor");
        child.kill().expect("an own child");
        child.wait().expect("an own child");
    }
}
