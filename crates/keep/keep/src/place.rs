//! Names for people: signals, threads, places in code.

use graft::Process;
use orbit_linux::procfs;

/// The signal's name.
pub(crate) fn signal_name(signal: i32) -> String {
    match signal {
        libc::SIGSEGV => "SIGSEGV".into(),
        libc::SIGBUS => "SIGBUS".into(),
        libc::SIGILL => "SIGILL".into(),
        libc::SIGFPE => "SIGFPE".into(),
        libc::SIGABRT => "SIGABRT".into(),
        libc::SIGTRAP => "SIGTRAP".into(),
        libc::SIGSYS => "SIGSYS".into(),
        other => format!("signal {other}"),
    }
}

/// The thread's name, `?` if it is gone.
pub(crate) fn thread_name(pid: i32, tid: i32) -> String {
    procfs::text(format!("/proc/{pid}/task/{tid}/comm")).map_or_else(|_| "?".into(), |name| name.trim().to_owned())
}

/// The file that an address is in, and its offset in that file.
pub(crate) fn of(process: &Process, address: u64) -> String {
    let mappings = process.mappings().unwrap_or_default();
    match mappings.iter().find(|e| (e.start..e.end).contains(&address)) {
        Some(entry) if !entry.name.is_empty() => {
            format!("in {}+{:#x}", entry.name, address - entry.start + entry.offset)
        }
        Some(_) => format!("at {address:#x} in anonymous memory"),
        None => format!("at {address:#x}, where nothing is mapped"),
    }
}

/// The path of the program in a process.
pub(crate) fn program_of(pid: i32) -> String {
    std::fs::read_link(format!("/proc/{pid}/exe"))
        .map_or_else(|_| "another program".into(), |path| path.display().to_string())
}

/// The name of a system call that the C library makes inside itself; its number for others.
pub(crate) fn call_name(number: u32) -> String {
    const NAMES: [(i64, &str); 12] = [
        (libc::SYS_read, "read"),
        (libc::SYS_write, "write"),
        (libc::SYS_writev, "writev"),
        (libc::SYS_openat, "openat"),
        (libc::SYS_close, "close"),
        (libc::SYS_lseek, "lseek"),
        (libc::SYS_socket, "socket"),
        (libc::SYS_connect, "connect"),
        (libc::SYS_sendto, "sendto"),
        (libc::SYS_clone, "clone"),
        (libc::SYS_wait4, "wait4"),
        (libc::SYS_exit_group, "exit_group"),
    ];
    let name = NAMES.iter().find(|(known, _)| *known == i64::from(number));
    name.map_or_else(|| format!("number {number}"), |(_, name)| (*name).to_owned())
}
