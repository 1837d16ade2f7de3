//! Facilities tried by system calls that no other part of the house makes: looking into another process, loading BPF,
//! protection keys. Each try undoes what it did.

use orbit_linux::process::{self, RawChild};
use orbit_linux::{Support, bpf};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

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
                    // SAFETY: waits for a signal.
                    unsafe { libc::pause() };
                }
            }
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let mut status = 0;
        // SAFETY: an own child that was not reaped yet, so the number is still its own.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, &raw mut status, libc::__WALL);
        }
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
        let mut copy = 0_u64;
        let local = libc::iovec { iov_base: (&raw mut copy).cast(), iov_len: 8 };
        let remote = libc::iovec { iov_base: (&raw const word).cast_mut().cast(), iov_len: 8 };
        // SAFETY: one word is written to `copy`; the address read is the child's copy of `word`.
        let read = unsafe { libc::process_vm_readv(child.pid, &raw const local, 1, &raw const remote, 1, 0) };
        match read {
            8 if copy == word => Ok(()),
            -1 => Err(io::Error::last_os_error()),
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
    const RAW_TRACEPOINT_OPEN: libc::c_long = 17;
    const TYPE_RAW_TRACEPOINT: u32 = 17;
    let program = match bpf::load(TYPE_RAW_TRACEPOINT, 0, &bpf::NOTHING) {
        Ok(program) => program,
        Err(error) => return answer::<()>("loading a program", Err(error)),
    };
    // The name's address, and the program in the low half of the second word.
    let open: [u64; 2] = [c"sched_switch".as_ptr() as u64, program.as_raw_fd() as u64];
    // SAFETY: the kernel reads the two words and the name, which live until the call returns.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, RAW_TRACEPOINT_OPEN, open.as_ptr(), size_of_val(&open)) };
    answer("attaching to sched_switch", made(fd))
}

/// Puts a probe on a function of the kernel, not started, and takes it away.
pub fn kprobe() -> Support {
    answer("a probe on kernel_clone", probe("kprobe", c"kernel_clone".as_ptr() as u64, 0))
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
        Some(offset) => answer("a probe on a function", probe("uprobe", c"/proc/self/exe".as_ptr() as u64, offset)),
        None => Support::No("/proc/self/maps does not tell where this program is".to_owned()),
    }
}

/// Opens a probe of this kind for this process, not started. `config1` is the address of a C string that lives on.
fn probe(kind: &str, config1: u64, config2: u64) -> io::Result<OwnedFd> {
    let path = format!("/sys/bus/event_source/devices/{kind}/type");
    let text = std::fs::read_to_string(&path)
        .map_err(|e| io::Error::new(e.kind(), format!("the kernel has none ({path}: {e})")))?;
    let number: u64 = text.trim().parse().map_err(io::Error::other)?;
    // `struct perf_event_attr` as words: type and size, ..., flags (disabled), ..., config1, config2.
    let mut attr = [0_u64; 16];
    attr[0] = number | (size_of_val(&attr) as u64) << 32;
    attr[5] = 1;
    (attr[7], attr[8]) = (config1, config2);
    const CLOSE_ON_EXEC: libc::c_long = 8;
    let (this, any_cpu, no_group) = (0 as libc::c_long, -1 as libc::c_long, -1 as libc::c_long);
    // SAFETY: the kernel reads `attr`, as long as it says, and the string that it points to.
    made(unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), this, any_cpu, no_group, CLOSE_ON_EXEC) })
}

fn made(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Takes a protection key and gives it back.
pub fn protection_keys() -> Support {
    // SAFETY: numbers only.
    let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0usize, 0usize) };
    if key < 0 {
        let why = "the processor has none, or the hypervisor hides them";
        return Support::No(format!("pkey_alloc: {}: {why}", io::Error::last_os_error()));
    }
    // SAFETY: the key is ours and no page has it.
    unsafe { libc::syscall(libc::SYS_pkey_free, key) };
    Support::Yes
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
