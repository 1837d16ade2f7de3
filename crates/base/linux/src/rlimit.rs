//! Limits of one process (`prlimit`): what bounds an orbit where there are no control groups.

use crate::{Support, check_int};
use std::io;
use std::ptr;

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Bytes of address space; beyond it allocation fails.
    AddressSpace,
    /// Bytes of private writable memory and heap.
    Data,
    /// Seconds of processor time: SIGXCPU at the soft limit, SIGKILL at the hard one.
    CpuSeconds,
    /// Bytes of a core file.
    Core,
    /// Bytes of a file it writes.
    FileSize,
    /// One more than the highest descriptor.
    Files,
    /// Bytes locked in memory.
    Locked,
    /// Processes and threads of the user.
    Processes,
    /// Resident memory: no kernel since 2.4 heeds it.
    Resident,
    /// Microseconds of processor time at a real-time priority without a sleep.
    RealTime,
    /// Bytes of the main thread's stack.
    Stack,
}

impl Resource {
    fn number(self) -> libc::__rlimit_resource_t {
        match self {
            Resource::AddressSpace => libc::RLIMIT_AS,
            Resource::Data => libc::RLIMIT_DATA,
            Resource::CpuSeconds => libc::RLIMIT_CPU,
            Resource::Core => libc::RLIMIT_CORE,
            Resource::FileSize => libc::RLIMIT_FSIZE,
            Resource::Files => libc::RLIMIT_NOFILE,
            Resource::Locked => libc::RLIMIT_MEMLOCK,
            Resource::Processes => libc::RLIMIT_NPROC,
            Resource::Resident => libc::RLIMIT_RSS,
            Resource::RealTime => libc::RLIMIT_RTTIME,
            Resource::Stack => libc::RLIMIT_STACK,
        }
    }
}

/// No limit.
pub const INFINITE: u64 = libc::RLIM_INFINITY;

/// The soft and the hard limit of a process (0: the calling one). Async-signal-safe.
///
/// # Errors
/// `ESRCH`, `EPERM` for another user's process.
pub fn get(pid: i32, what: Resource) -> io::Result<(u64, u64)> {
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: nothing is set; the struct outlives the call.
    check_int(unsafe { libc::prlimit(pid, what.number(), ptr::null(), &raw mut old) })?;
    Ok((old.rlim_cur, old.rlim_max))
}

/// Sets the soft and the hard limit of a process (0: the calling one). Async-signal-safe.
///
/// # Errors
/// `EINVAL` for a soft limit above the hard one, `EPERM` for raising the hard one without the
/// right, `ESRCH`.
pub fn set(pid: i32, what: Resource, soft: u64, hard: u64) -> io::Result<()> {
    let new = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the struct outlives the call.
    check_int(unsafe { libc::prlimit(pid, what.number(), &raw const new, ptr::null_mut()) }).map(|_| ())
}

/// Kinds of limits that Linux has.
pub const KINDS: usize = 16;

/// The soft and the hard limits of a process (0: the calling one), by the kernel's numbers.
///
/// # Errors
/// As [`get`].
pub fn all(pid: i32) -> io::Result<[(u64, u64); KINDS]> {
    let mut limits = [(0, 0); KINDS];
    for (number, limit) in limits.iter_mut().enumerate() {
        let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: nothing is set; the struct outlives the call.
        check_int(unsafe { libc::prlimit(pid, number as libc::__rlimit_resource_t, ptr::null(), &raw mut old) })?;
        *limit = (old.rlim_cur, old.rlim_max);
    }
    Ok(limits)
}

/// Sets the limits of one of the kernel's numbers.
///
/// # Errors
/// As [`set`].
pub fn set_number(pid: i32, number: usize, (soft, hard): (u64, u64)) -> io::Result<()> {
    let new = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the struct outlives the call.
    check_int(unsafe { libc::prlimit(pid, number as libc::__rlimit_resource_t, &raw const new, ptr::null_mut()) })
        .map(|_| ())
}

/// The soft limit of a process' resident memory, as anybody may read it in `/proc`; `None` if it
/// has ended.
pub fn resident_of(pid: i32) -> Option<u64> {
    let limits = crate::procfs::text(format!("/proc/{pid}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max resident set"))?;
    let soft = line.split_whitespace().next()?;
    if soft == "unlimited" { Some(INFINITE) } else { soft.parse().ok() }
}

/// Reads one limit and sets it to what it is.
pub fn probe() -> Support {
    let tried = get(0, Resource::Core).and_then(|(soft, hard)| set(0, Resource::Core, soft, hard));
    Support::from_result("prlimit", tried, |_| String::new())
}

/// The limit of address space (`ulimit -v`) and what of it is in use, bytes; none where there is no
/// limit.
pub fn address_space() -> Option<(u64, u64)> {
    let (limit, _) = get(0, Resource::AddressSpace).ok().filter(|(soft, _)| *soft != INFINITE)?;
    let statm = crate::procfs::own_text("statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').next().and_then(|pages| pages.parse().ok()).unwrap_or(0);
    Some((limit, pages * crate::map::page_size() as u64))
}
