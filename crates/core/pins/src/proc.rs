//! What /proc tells of a process, for the pins that need it. A thread or process that ends
//! meanwhile is left out, not an error; a process that is not there at all is one.

use orbit_linux::{maps, procfs, sched, stat::Stat};
use orbit_rmk::{CallNow, InterruptCount, PinError, Region, ThreadTime};
use std::{fs, io};

/// The threads of a process.
pub(super) fn threads(pid: u32) -> Result<Vec<u32>, PinError> {
    let dir = fs::read_dir(format!("/proc/{pid}/task"))
        .map_err(|error| PinError::of(format!("threads of process {pid}"), error))?;
    Ok(dir.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// How each thread of a process was scheduled so far.
pub(super) fn thread_times(pid: u32) -> Result<Vec<ThreadTime>, PinError> {
    let one = |tid: u32| {
        let sched::Schedstat { run_ns, wait_ns, slices } = sched::schedstat(pid as i32, tid as i32).ok()?;
        let state = Stat::of_thread(pid as i32, tid as i32).ok()?.state as u8;
        Some(ThreadTime { tid, state, ran_ns: run_ns, waited_ns: wait_ns, slices })
    };
    Ok(threads(pid)?.into_iter().filter_map(one).collect())
}

/// The system call that each thread of a process is in.
pub(super) fn calls_now(pid: u32) -> Result<Vec<CallNow>, PinError> {
    let one = |tid: u32| {
        let text = match fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")) {
            Ok(text) => text,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) || error.kind() == io::ErrorKind::NotFound => {
                return None;
            }
            Err(error) => {
                return Some(Err(PinError::of(
                    format!("the call of thread {tid} (needs the right to trace it)"),
                    error,
                )));
            }
        };
        let mut words = text.split_whitespace();
        let first = words.next()?;
        if first == "running" {
            return Some(Ok(CallNow { tid, number: -2, arguments: Vec::new() }));
        }
        let number = first.parse().ok()?;
        let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
        let arguments = if number < 0 { Vec::new() } else { words.take(6).filter_map(hex).collect() };
        Some(Ok(CallNow { tid, number, arguments }))
    };
    threads(pid)?.into_iter().filter_map(one).collect()
}

/// Interrupts and soft interrupts since boot, on all CPUs together.
pub(super) fn interrupt_counts() -> Result<Vec<InterruptCount>, PinError> {
    let mut counts = Vec::new();
    for (path, soft) in [("/proc/interrupts", false), ("/proc/softirqs", true)] {
        let text = procfs::text(path).map_err(|error| PinError::of(path, error))?;
        for line in text.lines() {
            let Some((name, rest)) = line.split_once(':') else { continue };
            let count = rest.split_whitespace().map_while(|word| word.parse::<u64>().ok()).sum();
            counts.push(InterruptCount { name: name.trim().into(), soft, count });
        }
    }
    Ok(counts)
}

/// The parts of a process' address space.
pub(super) fn regions(pid: u32) -> Result<Vec<Region>, PinError> {
    let maps = maps::of(pid as i32).map_err(|error| PinError::of(format!("address space of process {pid}"), error))?;
    let region = |entry: maps::Entry| {
        // PROT_READ, PROT_WRITE and PROT_EXEC are 1, 2 and 4.
        let access = entry.protection as u32 | if entry.shared { 8 } else { 0 };
        Region { start: entry.start, end: entry.end, access, name: entry.name }
    };
    Ok(maps.into_iter().map(region).collect())
}
