//! Limits on what an orbit may use, and how they are held.
//!
//! | limit | held by a control group | without one |
//! |---|---|---|
//! | memory | exactly, all processes of the orbit together; beyond it the kernel kills the orbit | `RLIMIT_DATA`, on top of what the orbit starts with, for each process; beyond it `malloc` fails |
//! | CPU share | exactly, per 100 ms | about, and only against others that want the CPU: a `nice` value, above the program's own, of like weight |
//! | nice, CPUs | the kernel's own calls, exactly | the same |
//!
//! Where main is in a control group with a limit of memory, every orbit has one too, asked for or
//! not, below the room that is left: see [`room`].
//!
//! Main makes the group and puts the orbit in it; what no group holds, the orbit applies to itself
//! before its init function runs. Directories of groups are removed by main, or by the template if
//! main was killed, or by the next program that starts ([`sweep`]) if both were.

use std::fmt::Write;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use orbit_linux::cgroup::{self, Group, Owner};
use orbit_linux::rlimit::{self, Resource};
use orbit_linux::{sched, signals};

use crate::error::{Error, Kind, Result};

mod room;
pub(crate) use room::{LEAST_LEFT, Room, check_again_after, own_memory_of};

/// CPUs that can be named: 0 to 1023.
pub const MAX_CPUS: usize = 1024;
/// The least memory limit: 1 MiB.
pub const MIN_MEMORY: u64 = 1 << 20;
/// Names of control groups begin with this, then `-PID-`, and more of whose they are: see
/// [`Owner`].
const GROUP_PREFIX: &str = "orbit";
/// How many names that others have are passed over for a group.
const NAME_TRIES: u32 = 100;
/// Time in which what an orbit's task left running may end by itself.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// Of the [`Owner`] of this program's groups, the namespace. A template has it from main, of whom
/// nothing could be read any more.
static NAMESPACE: AtomicU64 = AtomicU64::new(0);
/// And the moment; 0: not noted yet.
static SINCE: AtomicU64 = AtomicU64::new(0);
/// The number of the next group.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// What an orbit may use; nothing is limited unless said.
///
/// ```
/// let limits = orbit::Limits::new().memory(64 << 20).cpu_percent(50).nice(19);
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

    /// Bytes of memory that are the orbit's own: what it allocates, and pages of areas that it
    /// writes to. At least [`MIN_MEMORY`]. In a control group, pages of areas that reach the orbit
    /// while it is busy count as well, for it is the first to fill them: allow for the size of its
    /// areas.
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

    /// The `nice` value, -20 (most urgent) to 19. A value below the program's own takes
    /// CAP_SYS_NICE.
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
        if let Some(percent) = self.cpu_percent {
            // Asked only if need be: it reads a file, 50 us.
            let most = 100 * cpus_there() as u32;
            if !(1..=most).contains(&percent) {
                return invalid(format!("CPU limit of {percent} percent of one CPU; this machine has 1 to {most}"));
            }
        }
        if let Some(nice) = self.nice
            && !(-20..=19).contains(&nice)
        {
            return invalid(format!("nice value {nice}; there are -20 to 19"));
        }
        if let Some(nice) = self.nice {
            may_take(nice).map_err(|error| Error::system(nice_value(nice), error))?;
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

/// What is said of a nice value that is not available.
fn nice_value(nice: i32) -> String {
    format!("nice value {nice} of an orbit (below the program's own it takes CAP_SYS_NICE)")
}

/// Whether this program may take a nice value. Below its own a thread tries, since it could not
/// take it back.
fn may_take(nice: i32) -> std::io::Result<()> {
    if nice >= sched::nice(0)? {
        return Ok(());
    }
    let thread = std::thread::Builder::new().spawn(move || sched::set_nice(0, nice))?;
    thread.join().unwrap_or(Ok(()))
}

/// CPUs of the machine, those of others included.
fn cpus_there() -> usize {
    sched::cpus_online().min(MAX_CPUS)
}

/// What an orbit applies to itself, as plain words for memory that it shares with main. Writer:
/// main; reader: the orbit.
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

/// Orbit: applies what main could not. `room` is how many bytes of replicas the orbit will map;
/// they do not count against its memory. To be called before the init function; an error means that
/// the limit does not hold.
pub(crate) fn apply_inside(wire: &LimitsWire, room: u64) -> Result<()> {
    let cpus: Vec<usize> = (0..MAX_CPUS).filter(|cpu| wire.cpus[cpu / 64] & (1 << (cpu % 64)) != 0).collect();
    if !cpus.is_empty() {
        sched::set_affinity(0, &cpus).map_err(|error| Error::system(format!("CPUs {cpus:?} of an orbit"), error))?;
    }
    if wire.has_nice != 0 {
        sched::set_nice(0, wire.nice).map_err(|error| Error::system(nice_value(wire.nice), error))?;
    }
    if wire.memory != 0 {
        let bytes = wire.memory.saturating_add(room).saturating_add(data_now("/proc/self/statm")?);
        set_data_limit(bytes)?;
    }
    Ok(())
}

/// A process beside main and its orbits: keeps its own memory below the room that is left.
pub(crate) fn keep_below_room() -> Result<()> {
    let Some(left) = Room::new().left() else { return Ok(()) };
    set_data_limit(data_now("/proc/self/statm")?.saturating_add(room::beside(left)))
}

/// Orbit: makes room for further replicas of so many bytes, if memory is held by `RLIMIT_DATA`.
pub(crate) fn make_room(wire: &LimitsWire, more: u64) -> Result<()> {
    if wire.memory == 0 {
        return Ok(());
    }
    let (soft, _) = data_limit()?;
    set_data_limit(soft.saturating_add(more))
}

/// How much a healthy orbit under these limits can always allocate; for telling, when it has
/// crashed, whether it was short of memory. 0 where no `RLIMIT_DATA` holds it.
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

/// Bytes that count against `RLIMIT_DATA` already, by a process' `statm`: private writable
/// mappings.
fn data_now(path: &str) -> Result<u64> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::system(path, error))?;
    let pages = text.split_whitespace().nth(5).and_then(|pages| pages.parse::<u64>().ok());
    let pages = pages.ok_or_else(|| Error::new(Kind::Unsupported, format!("{path} has no sixth number: {text}")))?;
    Ok(pages.saturating_mul(orbit_linux::map::page_size() as u64))
}

/// The limits of one orbit as they are held, over all its restarts. In main.
pub(crate) struct Applied {
    limits: Limits,
    /// Bytes below which the orbit is kept for main's sake, whatever is asked for.
    ceiling: Option<u64>,
    group: Option<Group>,
    /// Why there is no group, if one was wanted.
    no_group: Option<String>,
    memory_in_group: bool,
    cpu_in_group: bool,
    /// Kills by the group's memory limit that have been reported.
    oom_kills: AtomicU64,
}

impl Applied {
    /// Checks the limits, and makes a control group for those that one can hold. That there is none
    /// is no error: see [`how`](Applied::how).
    pub(crate) fn create(limits: &Limits, orbit: &str) -> Result<Applied> {
        let mut applied = Applied {
            limits: Limits::new(),
            ceiling: None,
            group: None,
            no_group: None,
            memory_in_group: false,
            cpu_in_group: false,
            oom_kills: AtomicU64::new(0),
        };
        applied.hold(limits, orbit)?;
        if !applied.memory_in_group && !applied.cpu_in_group {
            // Of no use; its drop removes it.
            applied.group = None;
        }
        Ok(applied)
    }

    /// Puts other limits in place of these, for the orbit's process too if it has one now. On an
    /// error some of the new ones may hold already.
    pub(crate) fn change(&mut self, limits: &Limits, orbit: &str, pid: Option<i32>) -> Result<()> {
        self.hold(limits, orbit)?;
        match pid.map_or(Ok(()), |pid| self.apply_to(pid)) {
            // It has just ended: the next one is started under these limits.
            Err(error) if error.kind() == Kind::System(libc::ESRCH) => Ok(()),
            applied => applied,
        }
    }

    /// Keeps the next process below what is `left` around main, besides the limits asked for. To be
    /// called while there is no process.
    pub(crate) fn keep_below(&mut self, left: Option<u64>, orbit: &str) -> Result<()> {
        if left.is_none() && self.ceiling.is_none() {
            return Ok(());
        }
        // What the group holds of the process before, pages of replicas, is in use around main
        // already.
        let held = self.group.as_ref().map_or(0, Group::memory_now);
        self.ceiling = left.map(|left| room::below(left) + held);
        let limits = self.limits.clone();
        self.hold(&limits, orbit)
    }

    /// The limit of memory that holds: of what is asked for and the ceiling, the lower.
    fn memory(&self, limits: &Limits) -> Option<u64> {
        limits.memory.into_iter().chain(self.ceiling).min()
    }

    /// Sets the group's limits, in a new group if there is none, and notes what it does not hold.
    fn hold(&mut self, limits: &Limits, orbit: &str) -> Result<()> {
        limits.check()?;
        self.restore();
        let mut refused = String::new();
        let memory = self.memory(limits);
        if self.group.is_none() && (memory.is_some() || limits.cpu_percent.is_some()) {
            match make_group(orbit) {
                Ok(group) => {
                    self.oom_kills = AtomicU64::new(group.oom_kills());
                    self.group = Some(group);
                }
                Err(error) => refused = error.to_string(),
            }
        }
        if let Some(group) = &self.group {
            let set = match memory {
                Some(bytes) => group.set_memory(bytes),
                None if self.memory_in_group => group.set_memory(u64::MAX),
                None => Ok(()),
            };
            match set {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    let what =
                        format!("memory limit of orbit \"{orbit}\", which uses more already; restart it, or set more");
                    return Err(Error::system(what, error));
                }
                // What held before holds still: the orbit need not set it.
                Err(error) if self.memory_in_group => {
                    return Err(Error::system(format!("memory limit of orbit \"{orbit}\""), error));
                }
                Err(error) => refused = format!("memory: {error}"),
                Ok(()) => self.memory_in_group = memory.is_some(),
            }
            let cpu = match limits.cpu_percent {
                Some(percent) => group.set_cpu(percent),
                None if self.cpu_in_group => group.set_cpu(100 * cpus_there() as u32),
                None => Ok(()),
            };
            match cpu {
                Err(error) if self.cpu_in_group => {
                    return Err(Error::system(format!("CPU limit of orbit \"{orbit}\""), error));
                }
                Err(error) => {
                    let _ = write!(refused, "{}cpu: {error}", if refused.is_empty() { "" } else { "; " });
                }
                Ok(()) => self.cpu_in_group = limits.cpu_percent.is_some(),
            }
        }
        if memory.is_some() && !self.memory_in_group {
            // What the orbit will need for that; without it each of its processes would end at its
            // start.
            data_now("/proc/self/statm")?;
        }
        self.no_group = Some(refused).filter(|refused| !refused.is_empty());
        self.limits = limits.clone();
        Ok(())
    }

    /// Makes a group again that somebody has removed, under the limits it had. What it cannot hold
    /// any more is left to the orbit, as where there never was a group.
    fn restore(&mut self) {
        let memory = self.memory(&self.limits).filter(|_| self.memory_in_group);
        let Some(group) = &mut self.group else { return };
        let restored = group.restore();
        if matches!(restored, Ok(false)) {
            return;
        }
        // A new group counts from 0.
        self.oom_kills.fetch_min(group.oom_kills(), Ordering::Relaxed);
        let memory = memory.map_or(Ok(()), |bytes| group.set_memory(bytes));
        let cpu =
            self.limits.cpu_percent.filter(|_| self.cpu_in_group).map_or(Ok(()), |percent| group.set_cpu(percent));
        self.memory_in_group &= memory.is_ok();
        self.cpu_in_group &= cpu.is_ok();
        if let Err(error) = restored.map(|_| ()).and(memory).and(cpu) {
            self.no_group = Some(format!("it was removed, and cannot be made again: {error}"));
        }
        if !self.memory_in_group && !self.cpu_in_group {
            self.group = None;
        }
    }

    /// What is left for the orbit to apply to itself.
    pub(crate) fn wire(&self) -> LimitsWire {
        let mut wire = LimitsWire::default();
        if let Some(bytes) = self.memory(&self.limits)
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
        let steps = self.limits.cpu_percent.filter(|_| !self.cpu_in_group).and_then(nice_for_share);
        let stand_in = steps.map(|steps| (sched::nice(0).unwrap_or(0) + steps).min(19));
        match (self.limits.nice, stand_in) {
            (Some(asked), Some(stand_in)) => Some(asked.max(stand_in)),
            (asked, stand_in) => asked.or(stand_in),
        }
    }

    /// Puts an orbit that was just started, or started again, under the group.
    /// [`wire`](Applied::wire) is to be asked after it: a group that was removed meanwhile may hold
    /// less.
    pub(crate) fn add(&mut self, pid: i32) -> Result<()> {
        self.restore();
        let Some(group) = &self.group else { return Ok(()) };
        group.add(pid).map_err(|error| Error::system(format!("control group for process {pid}"), error))
    }

    /// Puts a process that runs already under these limits, in place of earlier ones: what no group
    /// holds is set from outside, what is not limited becomes as it is in main.
    pub(crate) fn apply_to(&mut self, pid: i32) -> Result<()> {
        self.add(pid)?;
        let failed = |what: &str, error| Error::system(format!("{what} of process {pid}"), error);
        match self.nice() {
            Some(nice) => sched::set_nice(pid, nice).map_err(|error| failed("nice value", error))?,
            // An ordinary user may not take niceness back: then it stays until the orbit is started
            // again.
            None => drop(sched::nice(0).and_then(|nice| sched::set_nice(pid, nice))),
        }
        let cpus = match &self.limits.cpus {
            Some(cpus) => cpus.clone(),
            None => sched::affinity(0).map_err(|error| failed("CPUs", error))?,
        };
        sched::set_affinity(pid, &cpus).map_err(|error| failed("CPUs", error))?;
        let (own, _) = rlimit::get(0, Resource::Data).map_err(|error| failed("memory limit", error))?;
        let (soft, hard) = rlimit::get(pid, Resource::Data).map_err(|error| failed("memory limit", error))?;
        let wanted = match self.wire().memory {
            0 => own.min(hard),
            bytes => match data_now(&format!("/proc/{pid}/statm")) {
                // It has ended since.
                Err(error) if error.kind() == Kind::System(libc::ENOENT) => return Ok(()),
                now => now?.saturating_add(bytes).min(hard),
            },
        };
        if wanted != soft {
            rlimit::set(pid, Resource::Data, wanted, hard).map_err(|error| failed("memory limit", error))?;
        }
        Ok(())
    }

    /// Bytes of memory that the orbit has of its own, whose process this is.
    pub(crate) fn memory_now(&self, pid: i32) -> u64 {
        let of_group = self.group.as_ref().filter(|_| self.memory_in_group).map(Group::memory_now);
        of_group.unwrap_or_else(|| own_memory_of(pid))
    }

    /// Whether the group's memory limit has killed since this was asked last. To be asked after the
    /// orbit has ended.
    pub(crate) fn oom_killed(&self) -> bool {
        let Some(group) = &self.group else { return false };
        let now = group.oom_kills();
        self.oom_kills.swap(now, Ordering::Relaxed) < now
    }

    /// How the limits are held, in words.
    pub(crate) fn how(&self) -> String {
        let mut parts = Vec::new();
        if let Some(bytes) = self.memory(&self.limits) {
            let why = if self.limits.memory == Some(bytes) { "" } else { " (what is left around this program)" };
            parts.push(match self.memory_in_group {
                true => format!("memory {bytes} bytes by control group{why}"),
                false => format!("memory {bytes} bytes by RLIMIT_DATA, each process for itself{why}"),
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

/// How much nicer than one competitor an orbit is to be for this share. Each step is a factor of
/// 1.25 in weight. None for a whole CPU or more.
fn nice_for_share(percent: u32) -> Option<i32> {
    if percent >= 100 {
        return None;
    }
    let weight = f64::from(percent) / f64::from(100 - percent);
    Some((-weight.ln() / 1.25_f64.ln()).round().clamp(0.0, 19.0) as i32)
}

/// A name that no other group has, unless somebody meant it to be taken: it says whose the group
/// is, for [`sweep`] to see.
fn group_name(orbit: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
    let orbit: String = orbit.chars().take(40).map(plain).collect();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let owner = owner(std::process::id() as i32);
    format!("{}-{number}-{orbit}", owner.group_name(GROUP_PREFIX))
}

fn make_group(orbit: &str) -> std::io::Result<Group> {
    let mut tries = 0;
    loop {
        match Group::create(&group_name(orbit)) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && tries < NAME_TRIES => tries += 1,
            made => return made,
        }
    }
}

/// Whose the groups of main are, whose number this is.
fn owner(main: i32) -> Owner {
    if SINCE.load(Ordering::Relaxed) == 0 {
        note_owner();
    }
    Owner { pid: main, namespace: NAMESPACE.load(Ordering::Relaxed), since: SINCE.load(Ordering::Relaxed) }
}

fn note_owner() {
    let owner = Owner::current();
    NAMESPACE.store(owner.namespace, Ordering::Relaxed);
    SINCE.store(owner.since, Ordering::Relaxed);
}

/// Removes groups of programs that are gone, template and all, and notes whose those of this one
/// are. At the start of a program, before its template is made.
pub(crate) fn sweep() {
    note_owner();
    cgroup::sweep(GROUP_PREFIX);
}

/// Template: removes the control groups of main, after main and the orbits have ended.
pub(crate) fn remove_groups_of(main: i32) {
    remove_dirs(&cgroup::groups_of(GROUP_PREFIX, &owner(main)));
}

/// Removes directories of control groups. What an orbit's task started and left running in one may
/// end by itself for [`GRACE`], then it is killed, by number. Waits up to a second more for it to
/// be gone.
fn remove_dirs(dirs: &[PathBuf]) {
    let began = Instant::now();
    for dir in dirs {
        while let Err(error) = std::fs::remove_dir(dir)
            && error.raw_os_error() == Some(libc::EBUSY)
            && began.elapsed() < GRACE + Duration::from_secs(1)
        {
            if began.elapsed() > GRACE {
                kill_members(dir);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn kill_members(dir: &Path) {
    let Ok(members) = std::fs::read_to_string(dir.join("cgroup.procs")) else { return };
    for pid in members.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|&pid| pid > 1) {
        if pid != std::process::id() as i32 {
            // The group is this orbit's own, so its members are the orbit's children.
            let _ = signals::send(pid, libc::SIGKILL);
        }
    }
}

#[cfg(test)]
mod tests;
