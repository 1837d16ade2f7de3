//! What the Linux kernel offers, one file a facility, each with a `probe()` that says whether it
//! can be used here.
//!
//! This crate is the ground floor of Orbit. It owns every raw system call, ioctl number and kernel
//! structure the rest of the project needs, and holds no policy: it does what is asked, once, or
//! says why it cannot. Three rules hold throughout:
//!
//! - *Probe, never guess.* A `probe()` tries the real thing on a scrap of memory or a file of its
//!   own and cleans up after itself. Kernel version numbers are never read: distributions
//!   carry features back, containers take them away.
//! - *Errors are the kernel's.* Functions answer `std::io::Error` made of `errno`; where the number
//!   alone would mislead, the error names the facility and the way out and keeps the matching
//!   `ErrorKind`.
//! - *Nothing hidden.* No threads, no global state but what the kernel itself keeps a process, no
//!   printing. Functions that may be called in the child of a raw fork say so
//!   ("async-signal-safe"): they neither allocate nor lock.
//!
//! | file | facility | where it is missing |
//! |---|---|---|
//! | [`map`] | mappings, advice, protection | never |
//! | [`memfd`] | shared memory with seals | before Linux 3.17 |
//! | [`modules`] | modules of the kernel | without CAP_SYS_MODULE |
//! | [`descriptors`] | numbers of descriptors: listed, moved, occupied, recognised | never |
//! | [`futex`] | sleeping on a shared word | never |
//! | [`robust`] | a word that shows whether its thread lives | never |
//! | [`process`], [`pidfd`], [`child`] | raw fork, process handles | before Linux 5.4 |
//! | [`procfs`] | files of `/proc`, whatever bytes they hold | where `/proc` is not mounted |
//! | [`mod@ptrace`] | stopping threads, their calls and registers | programs of other users, where Yama forbids it; registers: other than x86-64 |
//! | [`remote`], [`maps`] | memory and mappings of another process | as [`mod@ptrace`] |
//! | [`socket`], [`eventfd`], [`timerfd`], [`mod@poll`], [`epoll`] | messages, descriptors, waiting | never |
//! | [`pressure`] | how long tasks stall for memory, CPU, I/O; events of it | its files, and for short windows `CAP_SYS_RESOURCE` |
//! | [`clock`] | time, and CPU time | never |
//! | [`cancel`] | holding back the cancellation of a thread | never |
//! | [`capabilities`] | giving up a thread's capabilities | never |
//! | [`stdio`] | what a copy of a process does not write or run for the original | never |
//! | [`stat`], [`status`] | what `/proc` says of a process or thread | where `/proc` is not mounted |
//! | [`thread`], [`socket_info`] | what `/proc` and the kernel say of threads and sockets | processes of other users |
//! | [`uffd`], [`pagemap`] | which pages were written | before Linux 6.7, under Docker's seccomp profile |
//! | [`cgroup`] | limits of a group of processes | ordinary users without delegation, most containers |
//! | [`perf`] | counters and hardware breakpoints | counters on most virtual machines; all under Docker's profile |
//! | [`bpf`] | programs that the kernel runs | ordinary users, under Docker's profile |
//! | [`calls_made`] | system calls of a process, counted by what they do | as [`bpf`]; other than x86-64 |
//! | [`uprobes`] | probes of programs, many at a time | before Linux 6.13, ordinary users, under Docker's profile |
//! | [`signals`] | blocking, ignoring, sending, receiving signals | never |
//! | [`trial`] | whether this process' filters let a call pass, tried in a child | never |
//! | [`dispatch`] | Syscall User Dispatch | before Linux 5.11, other than x86-64 |
//! | [`host`] | what the host says about itself in files | where `/proc` is not mounted |
//! | [`inotify`] | that a file was closed after writing, that folders were made | where its limits are used up |
//! | [`sched`], [`rlimit`] | processor, priority, per-process limits | never |
//! | [`seccomp`] | a model of Docker's profile, for tests | kernels without seccomp filters |
#![deny(unsafe_op_in_unsafe_fn)]
#![cfg(target_os = "linux")]

use std::io;

pub mod bpf;
pub mod calls_made;
pub mod cancel;
pub mod capabilities;
pub mod cgroup;
pub mod child;
pub mod clock;
pub mod descriptors;
pub mod dispatch;

pub mod epoll;
pub mod eventfd;
pub mod futex;
pub mod host;
pub mod inotify;
pub mod keys;
pub mod locks;
pub mod map;
pub mod maps;
pub mod memfd;
pub mod modules;
pub mod needed;
pub mod open_file;
pub mod pagemap;
pub mod perf;
pub mod pidfd;
pub mod pinned;
pub mod poll;
pub mod pressure;
pub mod process;
pub mod procfs;
pub mod ptrace;
pub mod remote;
pub mod remote_pages;
pub mod rlimit;
pub mod robust;
pub mod sched;
pub mod seccomp;
pub mod signals;
pub mod socket;
pub mod socket_info;
pub mod stat;
pub mod status;
pub mod stdio;
pub mod stream;
pub mod terminal;
pub mod thread;
pub mod timerfd;
pub mod trial;
pub mod uffd;
pub mod uname;
pub mod uprobes;

/// Whether a facility can be used by this process, here and now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Support {
    /// The probe used the facility and it did what it should.
    Yes,
    /// The probe failed. The text names the facility, what the kernel answered and, where there is
    /// one, the way out.
    No(String),
}

impl Support {
    /// True for [`Support::Yes`].
    pub fn is_yes(&self) -> bool {
        matches!(self, Support::Yes)
    }

    /// The reason why the facility cannot be used, if it cannot.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Support::Yes => None,
            Support::No(why) => Some(why),
        }
    }

    /// `Yes` for `Ok`, else `No` with the facility's name, the error, and a hint about the way out
    /// (may be empty).
    pub(crate) fn from_result<T>(
        what: &str,
        result: io::Result<T>,
        hint: impl FnOnce(&io::Error) -> String,
    ) -> Support {
        match result {
            Ok(_) => Support::Yes,
            Err(e) => {
                let hint = hint(&e);
                let sep = if hint.is_empty() { "" } else { ": " };
                Support::No(format!("{what}: {}{sep}{hint}", describe(&e)))
            }
        }
    }
}

/// An error in one word where the number has a usual name (`EPERM`), else its text.
pub(crate) fn describe(e: &io::Error) -> String {
    let name = match e.raw_os_error() {
        Some(libc::EPERM) => "EPERM",
        Some(libc::EACCES) => "EACCES",
        Some(libc::ENOSYS) => "ENOSYS",
        Some(libc::EINVAL) => "EINVAL",
        Some(libc::ENOENT) => "ENOENT",
        Some(libc::EOPNOTSUPP) => "EOPNOTSUPP",
        Some(libc::ENOTTY) => "ENOTTY",
        Some(libc::ENODEV) => "ENODEV",
        Some(libc::EROFS) => "EROFS",
        Some(libc::ENOSPC) => "ENOSPC",
        Some(libc::EBUSY) => "EBUSY",
        Some(libc::ENOMEM) => "ENOMEM",
        Some(libc::EMFILE) => "EMFILE",
        _ => return e.to_string(),
    };
    name.to_string()
}

/// -1 becomes the last error, everything else passes. Async-signal-safe.
pub(crate) fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// As [`check`], for calls that answer an `int`. Async-signal-safe.
pub(crate) fn check_int(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// An argument that was rejected before the kernel saw it.
pub(crate) fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
