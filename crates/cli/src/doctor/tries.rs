//! Facilities tried as no other part of the house uses them: reading another process, loading BPF,
//! probes. Each try undoes what it did.

use orbit_linux::cgroup::Enclosing;
use orbit_linux::process::{self, RawChild};
use orbit_linux::{Support, bpf, perf, pidfd, remote, signals};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;

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

/// A process that this one makes can be marked as the first to be killed when the kernel is out of
/// memory, and is one rather than this one.
pub fn killed_first() -> Support {
    const OWN: &str = "/proc/self/oom_score_adj";
    let own = match std::fs::read_to_string(OWN) {
        Ok(own) => own,
        Err(error) => return Support::No(format!("{OWN}: {error}")),
    };
    if own.trim() == "1000" {
        return Support::No("oom_score_adj of this program is 1000 itself: nothing is killed before it".to_owned());
    }
    // SAFETY: the child makes system calls, allocates nothing and ends.
    match unsafe { process::raw_fork(0) } {
        Ok(None) => process::end(i32::from(process::be_killed_first().is_err())),
        Ok(Some(child)) => {
            let ended = match &child.pidfd {
                Some(fd) => pidfd::wait(fd.as_fd(), false).ok().flatten().map(|ended| ended.status),
                None => {
                    process::wait_child(child.pid);
                    None
                }
            };
            match ended {
                Some(0) => Support::Yes,
                _ => Support::No(format!("a child cannot write {OWN}")),
            }
        }
        Err(error) => Support::No(format!("making a child: {error}")),
    }
}

/// No control group around this process is killed as a whole.
pub fn killed_alone() -> Support {
    match Enclosing::all().into_iter().find(Enclosing::is_killed_as_a_whole) {
        Some(group) => Support::No(format!(
            "memory.oom.group of {} is 1: the kernel kills this program together with an orbit",
            group.dir().display()
        )),
        None => Support::Yes,
    }
}

/// The unit of systemd that this process is in, if any, is not stopped when one process of it was
/// killed for want of memory.
pub fn goes_on_after_a_kill() -> Support {
    let groups = orbit_linux::procfs::own_text("cgroup").unwrap_or_default();
    let Some(unit) = unit_of(&groups) else { return Support::Yes };
    let asked = Command::new("systemctl").args(["show", "--value", "--property=OOMPolicy", "--", unit]).output();
    let policy = match asked {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Ok(output) => return Support::No(format!("{unit}: systemctl says {}", output.status)),
        Err(error) => return Support::No(format!("{unit}: systemctl: {error}")),
    };
    policy_allows(unit, &policy)
}

fn policy_allows(unit: &str, policy: &str) -> Support {
    match policy {
        "continue" => Support::Yes,
        "stop" => Support::No(format!("OOMPolicy of {unit} is stop: systemd stops the service after such a kill")),
        other => Support::No(format!("OOMPolicy of {unit} is \"{other}\": the service ends with such a kill")),
    }
}

/// The innermost service or scope in the text of `/proc/PID/cgroup`.
fn unit_of(groups: &str) -> Option<&str> {
    let paths = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.flat_map(|path| path.rsplit('/')).find(|part| part.ends_with(".service") || part.ends_with(".scope"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_their_policies() {
        assert_eq!(unit_of("1:name=systemd:/system.slice/a.service/x\n0::/\n"), Some("a.service"));
        assert_eq!((unit_of("0::/user.slice\n"), unit_of("")), (None, None));
        assert!(policy_allows("a.service", "continue").is_yes());
        assert!(policy_allows("a.service", "stop").reason().is_some_and(|why| why.contains("a.service is stop")));
        assert!(policy_allows("a.service", "kill").reason().is_some_and(|why| why.contains("kill")));
    }
}
