//! Why the kernel does not permit tracing a process: the first reason that is found, in the order
//! in which the kernel checks.

use crate::Error;
use orbit_linux::procfs;
use orbit_linux::status::Status;
use std::io;
use std::os::unix::fs::MetadataExt;

/// A reason why a process may not be traced, and by `Display` what would lift it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// It belongs to another user, or has changed its user (`setuid`).
    OtherUser {
        /// Real, effective and saved user id of the process.
        theirs: [u32; 3],
        /// The caller's user id.
        ours: u32,
    },
    /// It is not dumpable: it ran a file with set-user-ID or capabilities, changed its user, or
    /// asked for it by `prctl`.
    NotDumpable,
    /// It has capabilities that the caller lacks.
    MoreCapable {
        /// Those capabilities, a bit each.
        missing: u64,
    },
    /// Yama (`kernel.yama.ptrace_scope`) restricts tracing.
    Yama {
        /// The value of the setting, 1 to 3.
        scope: u32,
    },
    /// None of these: a seccomp filter on the caller, or a security module.
    Other,
}

impl std::fmt::Display for Denial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Denial::OtherUser { theirs: [real, effective, saved], ours } => write!(
                f,
                "it runs as user {real} (effective {effective}, saved {saved}), the caller as {ours}: needs \
                 CAP_SYS_PTRACE or that user"
            ),
            Denial::NotDumpable => write!(
                f,
                "it is not dumpable (set-user-ID, file capabilities, or PR_SET_DUMPABLE 0): needs CAP_SYS_PTRACE, or \
                 PR_SET_DUMPABLE 1 in it"
            ),
            Denial::MoreCapable { missing } => {
                write!(f, "it has capabilities that the caller lacks ({missing:#x}): needs these, or CAP_SYS_PTRACE")
            }
            Denial::Yama { scope: 3 } => {
                write!(f, "kernel.yama.ptrace_scope is 3, which forbids all tracing until the next boot")
            }
            Denial::Yama { scope: 2 } => write!(f, "kernel.yama.ptrace_scope is 2: needs CAP_SYS_PTRACE"),
            Denial::Yama { scope } => write!(
                f,
                "kernel.yama.ptrace_scope is {scope} and it is no descendant of the caller: needs CAP_SYS_PTRACE, \
                 the value 0, or PR_SET_PTRACER in it"
            ),
            Denial::Other => write!(
                f,
                "a seccomp filter of the caller or a security module forbids it: needs CAP_SYS_PTRACE in the user \
                 namespace of the process, or an exception there"
            ),
        }
    }
}

/// The error for a call about a thread of `pid` that the kernel rejected with `source`.
pub(crate) fn explain(pid: i32, tid: i32, what: &'static str, source: io::Error) -> Error {
    if !matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES)) {
        return Error::of(tid, what, source);
    }
    let Ok(theirs) = Status::of_thread(pid, tid) else { return Error::Gone { id: tid } };
    if theirs.has_ended() {
        return Error::Gone { id: tid };
    }
    if let Some(tracer) = theirs.tracer().filter(|tracer| *tracer != 0) {
        // The kernel names the tracing thread.
        let by = Status::of(tracer).ok().and_then(|status| status.process()).unwrap_or(tracer);
        return Error::Traced { tid, by };
    }
    let ours = Status::own().unwrap_or_default();
    // `/proc/PID` belongs to root, not to the process' user, if it is not dumpable; its `mem` does
    // so even where the directory does not.
    let owner = std::fs::metadata(format!("/proc/{pid}/mem")).map(|m| m.uid()).ok();
    let scope = procfs::text("/proc/sys/kernel/yama/ptrace_scope").ok().and_then(|s| s.trim().parse().ok());
    Error::NotPermitted { pid, what, reason: judge(&theirs, &ours, owner, scope.unwrap_or(0)) }
}

/// Judges by the `status` files of both, the owner of the process' files in `/proc`, and Yama's
/// setting (0 where there is no Yama).
fn judge(theirs: &Status, ours: &Status, owner: Option<u32>, scope: u32) -> Denial {
    let users = |status: &Status| {
        let mut ids = status.field("Uid")?.split_whitespace().filter_map(|id| id.parse::<u32>().ok());
        Some([ids.next()?, ids.next()?, ids.next()?])
    };
    let caps = |status: &Status| status.field("CapPrm").and_then(|c| u64::from_str_radix(c, 16).ok()).unwrap_or(0);
    let caller = users(ours).map_or(0, |ids| ids[0]);
    let others = users(theirs).filter(|ids| ids.iter().any(|id| *id != caller));
    let missing = caps(theirs) & !caps(ours);
    match others {
        Some(theirs) => Denial::OtherUser { theirs, ours: caller },
        None if owner.is_some_and(|owner| owner != caller) => Denial::NotDumpable,
        None if missing != 0 => Denial::MoreCapable { missing },
        None if scope > 0 => Denial::Yama { scope },
        None => Denial::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(uid: u32, caps: u64) -> Status {
        Status::parse(format!("Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapPrm:\t{caps:016x}\n"))
    }

    #[test]
    fn each_reason_is_found() {
        let user = status(1000, 0);
        let denied = |theirs: &Status, owner, scope| judge(theirs, &user, owner, scope);
        assert_eq!(denied(&status(0, 0), Some(0), 0), Denial::OtherUser { theirs: [0; 3], ours: 1000 });
        assert_eq!(denied(&user, Some(0), 1), Denial::NotDumpable);
        assert_eq!(denied(&status(1000, 0x400), Some(1000), 1), Denial::MoreCapable { missing: 0x400 });
        assert_eq!(denied(&user, Some(1000), 1), Denial::Yama { scope: 1 });
        assert_eq!(denied(&user, Some(1000), 0), Denial::Other);
        let setuid = Status::parse("Uid:\t1000\t0\t0\t0\n");
        assert_eq!(denied(&setuid, Some(0), 0), Denial::OtherUser { theirs: [1000, 0, 0], ours: 1000 });
    }
}
