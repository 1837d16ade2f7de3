//! Limits on what an orbit may use, and how they are held.
//!
//! | limit | held by a control group | without one |
//! |---|---|---|
//! | memory | exactly, all processes of the orbit together; beyond it the kernel kills the orbit | `RLIMIT_DATA`, on top of what the orbit starts with, for each process; beyond it `malloc` fails |
//! | CPU share | exactly, per 100 ms | about, and only against others that want the CPU: a `nice` value of like weight |
//! | nice, CPUs | the kernel's own calls, exactly | the same |
//!
//! Main makes the group and puts the orbit in it; what no group holds, the orbit applies to itself before its init
//! function runs. Directories of groups are removed by main, or by the template if main was killed, or by the next
//! program that starts ([`sweep`]) if both were.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use orbit_linux::cgroup::{self, Group};
use orbit_linux::rlimit::{self, Resource};
use orbit_linux::sched;

use crate::error::{Error, Kind, Result};

/// CPUs that can be named: 0 to 1023.
pub const MAX_CPUS: usize = 1024;
/// The least memory limit: 1 MiB.
pub const MIN_MEMORY: u64 = 1 << 20;
/// Names of control groups begin with this, then `-PID-`.
const GROUP_PREFIX: &str = "orbit";

/// What an orbit may use; nothing is limited unless said.
///
/// ```
/// let limits = orbit::Limits::new().memory(64 << 20).cpu_percent(50).nice(5);
/// assert!(limits.check().is_ok());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    memory: Option<u64>,
    cpu_percent: Option<u32>,
    nice: Option<i32>,
    cpus: Option<Vec<usize>>,
}

impl Limits {
    /// No limits.
    pub fn new() -> Limits {
        Limits::default()
    }

    /// Bytes of memory that are the orbit's own: what it allocates, and pages of areas that it writes to. At least
    /// [`MIN_MEMORY`].
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Limits {
        self.memory = Some(bytes);
        self
    }

    /// Share of CPU time, in percent of one CPU: 50 is half a CPU, 200 two CPUs.
    #[must_use]
    pub fn cpu_percent(mut self, percent: u32) -> Limits {
        self.cpu_percent = Some(percent);
        self
    }

    /// The `nice` value, -20 (most urgent) to 19. A value below the program's own takes CAP_SYS_NICE.
    #[must_use]
    pub fn nice(mut self, nice: i32) -> Limits {
        self.nice = Some(nice);
        self
    }

    /// The CPUs the orbit may run on.
    #[must_use]
    pub fn cpus(mut self, cpus: impl IntoIterator<Item = usize>) -> Limits {
        self.cpus = Some(cpus.into_iter().collect());
        self
    }

    /// Whether every limit makes sense on this machine; the error names the one that does not.
    pub fn check(&self) -> Result<()> {
        let invalid = |what: String| Err(Error::new(Kind::Invalid, what));
        if let Some(bytes) = self.memory
            && bytes < MIN_MEMORY
        {
            return invalid(format!("memory limit of {bytes} bytes; the least is {MIN_MEMORY}, 1 MiB"));
        }
        let most = 100 * cpus_there() as u32;
        if let Some(percent) = self.cpu_percent
            && !(1..=most).contains(&percent)
        {
            return invalid(format!("CPU limit of {percent} percent of one CPU; this machine has 1 to {most}"));
        }
        if let Some(nice) = self.nice
            && !(-20..=19).contains(&nice)
        {
            return invalid(format!("nice value {nice}; there are -20 to 19"));
        }
        if let Some(cpus) = &self.cpus {
            if let Some(cpu) = cpus.iter().find(|&&cpu| cpu >= MAX_CPUS) {
                return invalid(format!("CPU number {cpu}; the highest is {}", MAX_CPUS - 1));
            }
            let usable = sched::affinity(0).map_err(|error| Error::system("CPUs of this program", error))?;
            if !cpus.iter().any(|cpu| usable.contains(cpu)) {
                return invalid(format!("none of the CPUs {cpus:?} is among those of this program, {usable:?}"));
            }
        }
        Ok(())
    }
}

/// CPUs of the machine, those of others included.
fn cpus_there() -> usize {
    // SAFETY: asks for a number.
    (unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).clamp(1, MAX_CPUS as i64) as usize
}

/// What an orbit applies to itself, as plain words for memory that it shares with main. Writer: main; reader: the orbit.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitsWire {
    /// Bytes for `RLIMIT_DATA`, on top of what there is; 0: no limit.
    pub memory: u64,
    /// 1: `nice` is to be set.
    pub has_nice: u32,
    /// The nice value.
    pub nice: i32,
    /// Bit by bit; all zeros: any CPU.
    pub cpus: [u64; MAX_CPUS / 64],
}

/// Orbit: applies what main could not. `room` is how many bytes of replicas the orbit will map; they do not count
/// against its memory. To be called before the init function; an error means that the limit does not hold.
pub(crate) fn apply_inside(wire: &LimitsWire, room: u64) -> Result<()> {
    let cpus: Vec<usize> = (0..MAX_CPUS).filter(|cpu| wire.cpus[cpu / 64] & (1 << (cpu % 64)) != 0).collect();
    if !cpus.is_empty() {
        sched::set_affinity(0, &cpus).map_err(|error| Error::system(format!("CPUs {cpus:?} of an orbit"), error))?;
    }
    if wire.has_nice != 0 {
        let doing = || format!("nice value {} of an orbit (below the program's own it takes CAP_SYS_NICE)", wire.nice);
        sched::set_nice(0, wire.nice).map_err(|error| Error::system(doing(), error))?;
    }
    if wire.memory != 0 {
        let bytes = wire.memory.saturating_add(room).saturating_add(data_now()?);
        set_data_limit(bytes)?;
    }
    Ok(())
}

/// Orbit: makes room for further replicas of so many bytes, if memory is held by `RLIMIT_DATA`.
pub(crate) fn make_room(wire: &LimitsWire, more: u64) -> Result<()> {
    if wire.memory == 0 {
        return Ok(());
    }
    let (soft, _) = data_limit()?;
    set_data_limit(soft.saturating_add(more))
}

/// How much a healthy orbit under these limits can always allocate; for telling, when it has crashed, whether it was short
/// of memory. 0 where no `RLIMIT_DATA` holds it.
pub(crate) fn probe_bytes(wire: &LimitsWire) -> usize {
    if wire.memory == 0 { 0 } else { (wire.memory / 8).clamp(128 << 10, 8 << 20) as usize }
}

fn data_limit() -> Result<(u64, u64)> {
    rlimit::get(0, Resource::Data).map_err(|error| Error::system("memory limit of an orbit", error))
}

/// Sets the soft limit only, so that there can be room for areas that come later.
fn set_data_limit(bytes: u64) -> Result<()> {
    let (_, hard) = data_limit()?;
    let set = rlimit::set(0, Resource::Data, bytes.min(hard), hard);
    set.map_err(|error| Error::system(format!("memory limit of {bytes} bytes for an orbit"), error))
}

/// Bytes that count against `RLIMIT_DATA` already: private writable mappings.
fn data_now() -> Result<u64> {
    let path = "/proc/self/statm";
    let text = std::fs::read_to_string(path).map_err(|error| Error::system(path, error))?;
    Ok(data_in(&text))
}

/// The same out of a `statm` file; 0 if it makes no sense.
fn data_in(statm: &str) -> u64 {
    let pages = statm.split_whitespace().nth(5).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    pages.saturating_mul(orbit_linux::map::page_size() as u64)
}

/// The limits of one orbit as they are held, over all its restarts. In main.
pub(crate) struct Applied {
    limits: Limits,
    group: Option<Group>,
    /// Why there is no group, if one was wanted.
    no_group: Option<String>,
    memory_in_group: bool,
    cpu_in_group: bool,
    /// Kills by the group's memory limit that have been told.
    oom_kills: AtomicU64,
}

impl Applied {
    /// Checks the limits, and makes a control group for those that one can hold. That there is none is no error: see
    /// [`how`](Applied::how).
    pub(crate) fn create(limits: &Limits, orbit: &str) -> Result<Applied> {
        limits.check()?;
        let mut applied = Applied {
            limits: limits.clone(),
            group: None,
            no_group: None,
            memory_in_group: false,
            cpu_in_group: false,
            oom_kills: AtomicU64::new(0),
        };
        if limits.memory.is_none() && limits.cpu_percent.is_none() {
            return Ok(applied);
        }
        let group = match Group::create(&group_name(orbit)) {
            Ok(group) => group,
            Err(error) => {
                applied.no_group = Some(error.to_string());
                return Ok(applied);
            }
        };
        let mut refused = String::new();
        if let Some(bytes) = limits.memory {
            match group.set_memory(bytes) {
                Ok(()) => applied.memory_in_group = true,
                Err(error) => refused = format!("memory: {error}"),
            }
        }
        if let Some(percent) = limits.cpu_percent {
            match group.set_cpu(percent) {
                Ok(()) => applied.cpu_in_group = true,
                Err(error) => {
                    let _ = write!(refused, "{}cpu: {error}", if refused.is_empty() { "" } else { "; " });
                }
            }
        }
        applied.no_group = Some(refused).filter(|refused| !refused.is_empty());
        if applied.memory_in_group || applied.cpu_in_group {
            applied.oom_kills = AtomicU64::new(group.oom_kills());
            applied.group = Some(group);
        } else {
            // Its drop removes it.
            drop(group);
        }
        Ok(applied)
    }

    /// What is left for the orbit to apply to itself.
    pub(crate) fn wire(&self) -> LimitsWire {
        let mut wire = LimitsWire::default();
        if let Some(bytes) = self.limits.memory
            && !self.memory_in_group
        {
            wire.memory = bytes;
        }
        if let Some(nice) = self.nice() {
            (wire.has_nice, wire.nice) = (1, nice);
        }
        for &cpu in self.limits.cpus.iter().flatten() {
            if let Some(word) = wire.cpus.get_mut(cpu / 64) {
                *word |= 1 << (cpu % 64);
            }
        }
        wire
    }

    /// The nice value asked for, or the one that stands in for a CPU share that no group holds.
    fn nice(&self) -> Option<i32> {
        let stand_in = self.limits.cpu_percent.filter(|_| !self.cpu_in_group).and_then(nice_for_share);
        match (self.limits.nice, stand_in) {
            (Some(asked), Some(stand_in)) => Some(asked.max(stand_in)),
            (asked, stand_in) => asked.or(stand_in),
        }
    }

    /// Puts an orbit that was just started, or started again, under the group.
    pub(crate) fn add(&self, pid: i32) -> Result<()> {
        let Some(group) = &self.group else { return Ok(()) };
        group.add(pid).map_err(|error| Error::system(format!("control group for process {pid}"), error))
    }

    /// Puts a process that runs already under these limits, in place of earlier ones: what no group holds is set from
    /// outside, as far as this user may.
    pub(crate) fn apply_to(&self, pid: i32) -> Result<()> {
        self.add(pid)?;
        let wire = self.wire();
        let doing = |what: &str| format!("{what} of process {pid}");
        if wire.has_nice != 0 {
            sched::set_nice(pid, wire.nice).map_err(|error| Error::system(doing("nice value"), error))?;
        }
        if let Some(cpus) = &self.limits.cpus {
            sched::set_affinity(pid, cpus).map_err(|error| Error::system(doing("CPUs"), error))?;
        }
        if wire.memory != 0 {
            let (_, hard) = rlimit::get(pid, Resource::Data).map_err(|error| Error::system(doing("limit"), error))?;
            let path = format!("/proc/{pid}/statm");
            let text = std::fs::read_to_string(&path).map_err(|error| Error::system(&path, error))?;
            let bytes = data_in(&text).saturating_add(wire.memory).min(hard);
            rlimit::set(pid, Resource::Data, bytes, hard).map_err(|error| Error::system(doing("limit"), error))?;
        }
        Ok(())
    }

    /// The group's directories, for the template to remove if main cannot.
    pub(crate) fn dirs(&self) -> Vec<PathBuf> {
        self.group.as_ref().map(Group::dirs).unwrap_or_default()
    }

    /// Whether the group's memory limit has killed since this was asked last. To be asked after the orbit has ended.
    pub(crate) fn oom_killed(&self) -> bool {
        let Some(group) = &self.group else { return false };
        let now = group.oom_kills();
        self.oom_kills.swap(now, Ordering::Relaxed) < now
    }

    /// How the limits are held, in words.
    pub(crate) fn how(&self) -> String {
        let mut parts = Vec::new();
        if let Some(bytes) = self.limits.memory {
            parts.push(match self.memory_in_group {
                true => format!("memory {bytes} bytes by control group"),
                false => format!("memory {bytes} bytes by RLIMIT_DATA, each process for itself"),
            });
        }
        if let Some(percent) = self.limits.cpu_percent {
            parts.push(match (self.cpu_in_group, self.nice()) {
                (true, _) => format!("CPU {percent} % by control group"),
                (false, Some(nice)) => format!("CPU {percent} % only approximated, by nice {nice}"),
                (false, None) => format!("CPU {percent} % not held: a whole CPU or more has no nice value"),
            });
        }
        if let Some(nice) = self.limits.nice {
            parts.push(format!("nice {nice}"));
        }
        if let Some(cpus) = &self.limits.cpus {
            parts.push(format!("CPUs {cpus:?}"));
        }
        if parts.is_empty() {
            return "no limits".into();
        }
        let reason = self.no_group.as_ref().map(|reason| format!(" (no control group: {reason})"));
        parts.join(", ") + &reason.unwrap_or_default()
    }

    /// Removes the group, once its processes have ended; else drop does. May be called again.
    pub(crate) fn remove(&self) {
        if let Some(group) = &self.group
            && group.remove().is_err()
        {
            remove_dirs(&group.dirs());
        }
    }
}

/// How limits would be held here, for `orbit doctor`.
pub fn support() -> String {
    match cgroup::probe() {
        orbit_linux::Support::Yes => "memory and CPU by control group".into(),
        orbit_linux::Support::No(why) => {
            format!("memory by RLIMIT_DATA for each process, CPU only approximated by nice ({why})")
        }
    }
}

/// The nice value whose weight gives this share against one competitor of nice 0. Each step is a factor of 1.25 in
/// weight. None for a whole CPU or more.
fn nice_for_share(percent: u32) -> Option<i32> {
    if percent >= 100 {
        return None;
    }
    let weight = f64::from(percent) / f64::from(100 - percent);
    Some((-weight.ln() / 1.25_f64.ln()).round().clamp(0.0, 19.0) as i32)
}

/// A name that no other group has: the program's number lets [`sweep`] see whose it is.
fn group_name(orbit: &str) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
    let orbit: String = orbit.chars().take(40).map(plain).collect();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("{GROUP_PREFIX}-{}-{number}-{orbit}", std::process::id())
}

/// Removes groups of programs that are gone, template and all. At the start of a program.
pub(crate) fn sweep() {
    cgroup::sweep(GROUP_PREFIX);
}

/// Template: removes the directories of control groups, after main and the orbits have ended. What an orbit's task
/// started and left running in its group is killed, by number. Waits up to a second for it to be gone.
pub(crate) fn remove_dirs(dirs: &[PathBuf]) {
    for dir in dirs {
        for _ in 0..100 {
            match std::fs::remove_dir(dir) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => kill_members(dir),
                _ => break,
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

fn kill_members(dir: &Path) {
    let Ok(members) = std::fs::read_to_string(dir.join("cgroup.procs")) else { return };
    for pid in members.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|&pid| pid > 1) {
        if pid != std::process::id() as i32 {
            // SAFETY: the group is this orbit's own, so its members are the orbit's children.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_named() {
        let cases = [
            (Limits::new().memory(5), "memory limit of 5 bytes"),
            (Limits::new().cpu_percent(0), "CPU limit of 0 percent"),
            (Limits::new().cpu_percent(1_000_000), "CPU limit of 1000000 percent"),
            (Limits::new().nice(20), "nice value 20"),
            (Limits::new().cpus([MAX_CPUS]), "CPU number 1024"),
            (Limits::new().cpus([]), "none of the CPUs []"),
        ];
        for (limits, what) in cases {
            let error = limits.check().expect_err("nonsense");
            assert!(error.kind() == Kind::Invalid && error.to_string().contains(what), "{error}");
        }
    }

    #[test]
    fn shares_become_weights() {
        assert_eq!(nice_for_share(100), None);
        assert_eq!(nice_for_share(50), Some(0));
        assert_eq!(nice_for_share(1), Some(19));
        let values: Vec<i32> = (1..100).filter_map(nice_for_share).collect();
        assert!(values.is_sorted_by(|a, b| a >= b), "less share, more nice");
    }

    #[test]
    fn group_names_tell_program_and_orbit() {
        let name = group_name("dead/lock ..\u{e9}");
        assert!(name.starts_with(&format!("orbit-{}-", std::process::id())) && name.ends_with("-dead_lock____"));
        assert_ne!(group_name("a"), group_name("a"));
    }

    /// Applies limits in a child; returns what the child answered.
    fn in_child(body: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child only runs the body and ends by itself.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let answer = body();
            // SAFETY: ends the child.
            unsafe { libc::_exit(answer) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "status {status:#x}");
        libc::WEXITSTATUS(status)
    }

    fn try_map(bytes: usize) -> bool {
        // SAFETY: a fresh mapping, anywhere, that the child keeps.
        let at = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        at != libc::MAP_FAILED
    }

    #[test]
    fn memory_is_held_inside_and_areas_do_not_count() {
        let wire = LimitsWire { memory: 16 << 20, ..LimitsWire::default() };
        let answer = in_child(|| {
            if apply_inside(&wire, 64 << 20).is_err() {
                return 1;
            }
            // 64 MiB of replicas and 8 of the task's own fit; 32 more do not, until there is room for another replica.
            if !try_map(64 << 20) || !try_map(8 << 20) {
                return 2;
            }
            if try_map(32 << 20) {
                return 3;
            }
            if make_room(&wire, 32 << 20).is_err() || !try_map(32 << 20) {
                return 4;
            }
            0
        });
        assert_eq!(answer, 0);
    }

    #[test]
    fn nice_and_cpus_are_held_inside() {
        let cpu = sched::affinity(0).expect("CPUs")[0];
        let applied = Applied::create(&Limits::new().nice(7).cpus([cpu]), "nice").expect("limits");
        assert_eq!(applied.how(), format!("nice 7, CPUs [{cpu}]"));
        let wire = applied.wire();
        let answer = in_child(|| {
            if apply_inside(&wire, 0).is_err() {
                return 1;
            }
            let held = sched::nice(0).is_ok_and(|nice| nice == 7) && sched::affinity(0).is_ok_and(|cpus| cpus == [cpu]);
            if held { 0 } else { 2 }
        });
        assert_eq!(answer, 0);
    }

    #[test]
    fn group_or_stand_in_and_nothing_left_behind() {
        let applied = Applied::create(&Limits::new().memory(64 << 20).cpu_percent(25), "held").expect("limits");
        let dirs = applied.dirs();
        let wire = applied.wire();
        assert_eq!(wire.memory != 0, !applied.memory_in_group);
        assert_eq!(wire.has_nice != 0, !applied.cpu_in_group);
        assert!(applied.how().contains("CPU 25 %"), "{}", applied.how());
        if dirs.is_empty() {
            println!("SKIP: needs control groups ({})", applied.how());
            return;
        }
        assert!(dirs.iter().all(|dir| dir.is_dir()));
        drop(applied);
        assert!(dirs.iter().all(|dir| !dir.exists()));
    }

    #[test]
    fn memory_kill_in_a_group_is_seen() {
        let applied = Applied::create(&Limits::new().memory(16 << 20), "greedy").expect("limits");
        if !applied.memory_in_group {
            println!("SKIP: needs a control group with memory ({})", applied.how());
            return;
        }
        // SAFETY: the child waits to be told, then writes to memory of its own until it is killed.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: a mapping of its own; the writes stay inside.
            unsafe {
                libc::raise(libc::SIGSTOP);
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                let bytes = 256 << 20;
                let at = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
                if at == libc::MAP_FAILED {
                    libc::_exit(1);
                }
                libc::memset(at, 1, bytes);
                libc::_exit(0);
            }
        }
        let mut status = 0;
        // SAFETY: waits for the child made above, lets it go on, and waits for its end.
        unsafe {
            assert_eq!(libc::waitpid(child, &raw mut status, libc::WUNTRACED), child);
            assert!(!applied.oom_killed());
            let added = applied.add(child);
            libc::kill(child, libc::SIGCONT);
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            added.expect("in the group");
        }
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "status {status:#x}");
        assert!(applied.oom_killed(), "the kill is told");
        assert!(!applied.oom_killed(), "once");
        let dirs = applied.dirs();
        remove_dirs(&dirs);
        assert!(dirs.iter().all(|dir| !dir.exists()));
    }
}
