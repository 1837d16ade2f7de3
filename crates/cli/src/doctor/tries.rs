//! Facilities tried as no other part of the house uses them: reading another process, loading BPF,
//! probes. Each try undoes what it did.

use orbit_linux::process::{self, RawChild};
use orbit_linux::{Support, bpf, perf, remote, signals};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A child that does nothing until it is dropped.
struct Sleeper {
    pid: i32,
    pidfd: Option<OwnedFd>,
}

impl Sleeper {
    fn start() -> io::Result<Sleeper> {
        // SAFETY: the child sleeps and calls nothing that allocates or locks.
        match unsafe { process::raw_fork(0) }? {
            Some(RawChild { pid, pidfd }) => Ok(Sleeper { pid, pidfd }),
            None => {
                let _ = process::set_parent_death_signal(libc::SIGKILL);
                loop {
                    signals::pause();
                }
            }
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        process::kill_child(self.pid);
        self.pidfd = None;
    }
}

fn answer<T>(what: &str, result: io::Result<T>) -> Support {
    match result {
        Ok(_) => Support::Yes,
        Err(error) => Support::No(format!("{what}: {error}")),
    }
}

/// Reads a word of a child's memory.
pub fn process_vm_readv() -> Support {
    let word = 0x1234_5678_u64;
    let tried = Sleeper::start().and_then(|child| {
        let mut copy = [0_u8; 8];
        // The child's copy of `word`.
        match remote::read(child.pid, (&raw const word).addr() as u64, &mut copy)? {
            8 if u64::from_ne_bytes(copy) == word => Ok(()),
            _ => Err(io::Error::other("a wrong word was read")),
        }
    });
    answer("process_vm_readv", tried)
}

/// Loads a program of two instructions for tracepoints.
pub fn bpf() -> Support {
    const TYPE_TRACEPOINT: u32 = 5;
    answer("loading a program", bpf::load(TYPE_TRACEPOINT, 0, &bpf::NOTHING))
}

/// Attaches a program of two instructions to the tracepoint of context switches, and takes it away.
pub fn tracepoint() -> Support {
    const TYPE_RAW_TRACEPOINT: u32 = 17;
    let program = match bpf::load(TYPE_RAW_TRACEPOINT, 0, &bpf::NOTHING) {
        Ok(program) => program,
        Err(error) => return answer::<()>("loading a program", Err(error)),
    };
    answer("attaching to sched_switch", bpf::attach_raw_tracepoint(program.as_fd(), c"sched_switch"))
}

/// Puts a probe on a function of the kernel, not started, and takes it away.
pub fn kprobe() -> Support {
    answer("a probe on kernel_clone", probe("kprobe", c"kernel_clone", 0))
}

/// Puts a probe on a function of this program, not started, and takes it away.
pub fn uprobe() -> Support {
    let here = uprobe as *const () as u64;
    let maps = orbit_linux::procfs::text("/proc/self/maps").unwrap_or_default();
    let offset = maps.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end, offset) = (hex(start)?, hex(end)?, hex(words.nth(1)?)?);
        (start..end).contains(&here).then_some(here - start + offset)
    });
    match offset {
        Some(offset) => answer("a probe on a function", probe("uprobe", c"/proc/self/exe", offset)),
        None => Support::No("/proc/self/maps does not show where this program is".to_owned()),
    }
}

/// Opens a probe of this kind for this thread, not started.
fn probe(kind: &str, name: &CStr, offset: u64) -> io::Result<OwnedFd> {
    let path = format!("/sys/bus/event_source/devices/{kind}/type");
    let text = std::fs::read_to_string(&path)
        .map_err(|e| io::Error::new(e.kind(), format!("the kernel has none ({path}: {e})")))?;
    perf::open_stopped_probe(text.trim().parse().map_err(io::Error::other)?, name, offset)
}

/// Which bounds a control group of one's own can hold: memory, CPU.
pub fn group_bounds() -> io::Result<(bool, bool)> {
    let group = orbit_linux::cgroup::Group::create(&format!("orbit-doctor-{}", std::process::id()))?;
    let memory = group.has_memory() && group.set_memory(64 << 20).is_ok();
    let cpu = group.has_cpu() && group.set_cpu(50).is_ok();
    group.remove()?;
    Ok((memory, cpu))
}

/// A sealed memory file rejects a writable mapping and a write, and keeps the one it had.
pub fn seals() -> Support {
    let tried = orbit_linux::memfd::create("orbit-doctor", 4096, true).and_then(|file| {
        orbit_linux::memfd::seal_size(file.as_fd())?;
        orbit_linux::memfd::seal_future_write(file.as_fd())?;
        match orbit_linux::map::Mapping::shared(file.as_fd(), 4096, true, false) {
            Err(_) => Ok(()),
            Ok(_) => Err(io::Error::other("a sealed file could be mapped for writing")),
        }
    });
    answer("memfd seals", tried)
}
