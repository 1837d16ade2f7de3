//! The kinds of faults that a campaign injects, and the calls that each may meet.

/// A kind of fault and the calls that it may meet.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// As it is named on the command line.
    pub name: &'static str,
    /// The action of its rule.
    pub action: &'static str,
    /// Conditions of its rule, in parentheses, or nothing.
    pub conditions: &'static str,
    /// Names of calls.
    pub calls: &'static [&'static str],
}

/// All kinds of faults.
pub const FAULTS: [Fault; 6] = [
    Fault {
        name: "eintr",
        action: "EINTR",
        conditions: "",
        calls: &[
            "read",
            "readv",
            "write",
            "writev",
            "open",
            "openat",
            "connect",
            "accept",
            "accept4",
            "recvfrom",
            "sendto",
            "recvmsg",
            "sendmsg",
            "poll",
            "ppoll",
            "select",
            "pselect6",
            "epoll_wait",
            "epoll_pwait",
            "wait4",
            "waitid",
            "nanosleep",
            "clock_nanosleep",
            "flock",
        ],
    },
    Fault {
        name: "enomem",
        action: "ENOMEM",
        conditions: "",
        calls: &[
            "mmap",
            "mremap",
            "mprotect",
            "brk",
            "fork",
            "vfork",
            "clone",
            "clone3",
            "execve",
            "poll",
            "epoll_ctl",
        ],
    },
    Fault {
        name: "short-read",
        action: "size=1",
        conditions: "(size>1)",
        calls: &["read", "pread64", "recvfrom", "getrandom"],
    },
    Fault { name: "short-write", action: "size=1", conditions: "(size>1)", calls: &["write", "pwrite64", "sendto"] },
    Fault {
        name: "enospc",
        action: "ENOSPC",
        conditions: "",
        calls: &[
            "write",
            "pwrite64",
            "writev",
            "mkdir",
            "mkdirat",
            "rename",
            "renameat2",
            "ftruncate",
            "fallocate",
            "fsync",
            "fdatasync",
        ],
    },
    Fault {
        name: "emfile",
        action: "EMFILE",
        conditions: "",
        calls: &[
            "open",
            "openat",
            "socket",
            "accept",
            "accept4",
            "pipe",
            "pipe2",
            "dup",
            "dup3",
            "epoll_create1",
            "eventfd2",
            "memfd_create",
        ],
    },
];
