//! Where and how eagerly a thread runs, and how much it has run.

use crate::{Support, check_int};
use std::fs;
use std::io;

/// What the scheduler has counted for a thread since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Schedstat {
    /// Nanoseconds on a processor.
    pub run_ns: u64,
    /// Nanoseconds ready but waiting for a processor.
    pub wait_ns: u64,
    /// Times it was given a processor.
    pub slices: u64,
}

/// The processors a thread may run on (0: the calling thread), in ascending order.
///
/// # Errors
/// `ESRCH`.
pub fn affinity(tid: i32) -> io::Result<Vec<usize>> {
    // SAFETY: a cpu_set_t is plain bits.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set outlives the call and has the size given.
    check_int(unsafe { libc::sched_getaffinity(tid, size_of::<libc::cpu_set_t>(), &raw mut set) })?;
    // SAFETY: CPU_ISSET reads a bit below CPU_SETSIZE.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|&c| unsafe { libc::CPU_ISSET(c, &set) }).collect())
}

/// How many processors of the machine are online, also those that the calling thread may not run
/// on; at least 1.
pub fn cpus_online() -> usize {
    // SAFETY: asks for a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1).max(1)
}

/// Bounds the processors a thread may run on (0: the calling thread). Processors beyond 1023 are
/// ignored. Async-signal-safe.
///
/// # Errors
/// `EINVAL` when none of them is there, `ESRCH`, `EPERM`.
pub fn set_affinity(tid: i32, cpus: &[usize]) -> io::Result<()> {
    // SAFETY: a cpu_set_t is plain bits.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &c in cpus.iter().filter(|&&c| c < libc::CPU_SETSIZE as usize) {
        // SAFETY: sets a bit below CPU_SETSIZE.
        unsafe { libc::CPU_SET(c, &mut set) };
    }
    // SAFETY: the set outlives the call and has the size given.
    check_int(unsafe { libc::sched_setaffinity(tid, size_of::<libc::cpu_set_t>(), &raw const set) }).map(|_| ())
}

/// Sets the niceness of a thread (0: the calling thread), -20 (eager) to 19. Ordinary users may
/// only raise it. Async-signal-safe.
///
/// # Errors
/// `EACCES` for lowering it without the right, `ESRCH`.
pub fn set_nice(tid: i32, nice: i32) -> io::Result<()> {
    // SAFETY: integers only.
    check_int(unsafe { libc::setpriority(libc::PRIO_PROCESS, tid as libc::id_t, nice) }).map(|_| ())
}

/// The niceness of a thread (0: the calling thread).
///
/// # Errors
/// `ESRCH`.
pub fn nice(tid: i32) -> io::Result<i32> {
    // The system call answers 20 - nice, so that an error and a niceness of -1 differ.
    // SAFETY: integers only.
    let r = crate::check(unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, tid) })?;
    Ok(20 - r as i32)
}

/// Lets a thread (0: the calling thread) run only when nothing else wants to (`SCHED_IDLE`).
/// Async-signal-safe.
///
/// # Errors
/// `ESRCH`, `EPERM`.
pub fn set_idle(tid: i32) -> io::Result<()> {
    // SAFETY: a sched_param is one integer.
    let param: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the struct outlives the call.
    check_int(unsafe { libc::sched_setscheduler(tid, libc::SCHED_IDLE, &raw const param) }).map(|_| ())
}

/// Gives a thread (0: the calling thread) a real-time priority, 1 to 99: it runs before all
/// ordinary threads (`SCHED_FIFO`). Async-signal-safe.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE` or a limit (`RLIMIT_RTPRIO`), and in a group without real-time
/// share; `EINVAL`, `ESRCH`.
pub fn set_fifo(tid: i32, priority: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: the struct outlives the call.
    check_int(unsafe { libc::sched_setscheduler(tid, libc::SCHED_FIFO, &raw const param) }).map(|_| ())
}

/// How a thread is scheduled: policy, niceness, real-time or deadline parameters, processors, and
/// the priority of its I/O.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The kernel's `struct sched_attr`.
    attributes: [u64; 7],
    cpus: Vec<usize>,
    io: i64,
}

/// Returns how a thread is scheduled.
///
/// # Errors
/// `ESRCH`.
pub fn schedule(tid: i32) -> io::Result<Schedule> {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    let mut attributes = [0u64; 7];
    // SAFETY: the kernel writes at most the size given to a live array of it.
    crate::check(unsafe {
        libc::syscall(libc::SYS_sched_getattr, tid, attributes.as_mut_ptr(), size_of_val(&attributes), 0)
    })?;
    // SAFETY: integers only.
    let io = crate::check(unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, tid) })?;
    Ok(Schedule { attributes, cpus: affinity(tid)?, io })
}

/// Has a thread scheduled as [`schedule`] has returned it.
///
/// # Errors
/// `EPERM` without the right to give it more than it has, `ESRCH`.
pub fn set_schedule(tid: i32, to: &Schedule) -> io::Result<()> {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    let now = schedule(tid)?;
    if now.attributes != to.attributes {
        // SAFETY: the kernel reads the struct, whose first word has its size.
        crate::check(unsafe { libc::syscall(libc::SYS_sched_setattr, tid, to.attributes.as_ptr(), 0) })?;
    }
    if now.cpus != to.cpus {
        set_affinity(tid, &to.cpus)?;
    }
    if now.io != to.io {
        // SAFETY: integers only.
        crate::check(unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, tid, to.io) })?;
    }
    Ok(())
}

/// The processor that the calling thread runs on at this moment. Async-signal-safe.
pub fn current_cpu() -> usize {
    // SAFETY: takes no arguments.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// How much a thread has run. A thread that runs on moves `run_ns` only when it is switched or
/// ticked.
///
/// # Errors
/// `ENOENT` when the thread is gone or the kernel does not count (`CONFIG_SCHED_INFO`).
pub fn schedstat(pid: i32, tid: i32) -> io::Result<Schedstat> {
    parse(&fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat"))?)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "schedstat is not three numbers"))
}

fn parse(text: &str) -> Option<Schedstat> {
    let mut n = text.split_whitespace().map(|w| w.parse::<u64>().ok());
    Some(Schedstat { run_ns: n.next()??, wait_ns: n.next()??, slices: n.next()?? })
}

/// Reads the calling thread's own schedstat.
pub fn probe() -> Support {
    let tried = fs::read_to_string("/proc/thread-self/schedstat").map(|t| parse(&t));
    Support::from_result("schedstat", tried, |_| "kernel without CONFIG_SCHED_INFO, or /proc not mounted".into())
}
