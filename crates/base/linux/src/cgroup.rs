//! Control groups: a bound on the memory and the processor time of a few processes, and the truth
//! about processes killed for lack of memory.
//!
//! A [`Group`] lies below the control group the caller is in, so the caller's own limits hold for
//! it too. With version 2 that needs the `memory` and `cpu` controllers enabled for children there,
//! which the kernel rejects for a group that holds processes itself (all but the root); then the
//! parent group is tried, which is where a delegated service manager (`DelegateSubgroup=`) or root
//! may make one. With version 1 the `memory` and `cpu` hierarchies are used, either alone if need
//! be; a process is put into the latter only once its time is bounded, for where the kernel has
//! `RT_GROUP_SCHED` nothing in a new group there can have real-time priority. Groups are
//! directories: [`Group::remove`], also done on drop, takes them away; [`sweep`] takes away those
//! of programs that could not.
//!
//! Enabling a controller for children (version 2) stays when the group goes. Nothing else does.

use crate::process::{RawChild, raw_fork};
use crate::stat::Stat;
use crate::status::Status;
use crate::{Support, invalid, procfs};
use std::collections::HashSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

mod enclosing;
pub use enclosing::Enclosing;

/// The period over which processor time is bounded, in microseconds: the kernel's own default.
const PERIOD_US: u64 = 100_000;
/// How long [`Group::remove`] waits for processes that have ended to leave, in steps of a
/// millisecond.
const REMOVE_TRIES: u32 = 100;
/// The inode of the first PID namespace, the same on every kernel (`PID_NS_INIT_INO`).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// Milliseconds of a tick in which the kernel counts start times: `USER_HZ` is 100.
const TICK_MS: u64 = 10;

/// A control group of its own for a few processes. Removed on drop. May be used from any thread.
#[derive(Debug)]
pub struct Group {
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
    unified: bool,
    /// Processes belong into `cpu` too, where that is another directory.
    cpu_bounded: AtomicBool,
}

impl Group {
    /// Makes an empty group without limits. `name` becomes the directory's name: no slash, not
    /// empty.
    ///
    /// # Errors
    /// `Unsupported` where there is no control group with `memory` or `cpu` that the caller may
    /// make children in (the text says what was tried); `AlreadyExists`; `InvalidInput` for the
    /// name.
    pub fn create(name: &str) -> io::Result<Group> {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\n', '\0']) {
            return Err(invalid(format!("control group name {name:?}: must be one directory name")));
        }
        let (bases, mut why) = Bases::find();
        for dir in &bases.unified {
            match create_unified(dir, name) {
                Ok(group) => return Ok(group),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => return Err(e),
                Err(e) => why.push(format!("{}: {e}", dir.display())),
            }
        }
        let mut group = Group { memory: None, cpu: None, unified: false, cpu_bounded: AtomicBool::new(false) };
        for (base, slot) in [(&bases.memory, &mut group.memory), (&bases.cpu, &mut group.cpu)] {
            let Some(base) = base else { continue };
            let dir = base.join(name);
            match fs::create_dir(&dir) {
                Ok(()) => *slot = Some(dir),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => return Err(e),
                Err(e) => why.push(format!("{}: {e}", dir.display())),
            }
        }
        if group.memory.is_none() && group.cpu.is_none() {
            let why = why.join("; ");
            let way_out = "run as root, or delegate one to this user (systemd: Delegate=, DelegateSubgroup=)";
            let text = format!("none is available ({why}): {way_out}");
            return Err(io::Error::new(ErrorKind::Unsupported, text));
        }
        Ok(group)
    }

    /// The directories of the group: one, or one a hierarchy.
    pub fn dirs(&self) -> Vec<PathBuf> {
        let mut dirs: Vec<PathBuf> = self.memory.iter().chain(&self.cpu).cloned().collect();
        dirs.dedup();
        dirs
    }

    /// Whether memory can be bounded.
    pub fn has_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Whether processor time can be bounded.
    pub fn has_cpu(&self) -> bool {
        self.cpu.is_some()
    }

    /// Bounds the memory of the group, swap included where it is accounted. More than that and the
    /// kernel kills the whole group (version 2, Linux 4.19) or a process of it. Pages of shared
    /// memory count for the group that touches them first.
    ///
    /// # Errors
    /// `Unsupported` without the memory controller; `EBUSY` when more is in use already (version 1:
    /// and cannot be reclaimed).
    pub fn set_memory(&self, bytes: u64) -> io::Result<()> {
        let dir = self.memory_dir()?;
        let value = bytes.to_string();
        if self.unified {
            // Version 2 would not reject, but kill at once.
            if self.memory_now() > bytes {
                return Err(io::Error::from_raw_os_error(libc::EBUSY));
            }
            ignore_missing(write(dir, "memory.oom.group", "1"))?;
            write(dir, "memory.max", &value)?;
            return ignore_missing(write(dir, "memory.swap.max", "0"));
        }
        // Memory and swap together must never be below memory alone, so raising and lowering need
        // opposite orders.
        let both = "memory.memsw.limit_in_bytes";
        match write(dir, "memory.limit_in_bytes", &value) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                ignore_missing(write(dir, both, &value))?;
                write(dir, "memory.limit_in_bytes", &value)
            }
            Err(e) => Err(e),
            Ok(()) => ignore_missing(write(dir, both, &value)),
        }
    }

    /// Bounds the processor time of the group: 100 is one whole processor, 250 two and a half.
    ///
    /// # Errors
    /// `Unsupported` without the cpu controller or without bandwidth control; `InvalidInput` for 0.
    pub fn set_cpu(&self, percent_of_one_cpu: u32) -> io::Result<()> {
        if percent_of_one_cpu == 0 {
            return Err(invalid("a processor bound of 0 %: 1 is the least".into()));
        }
        let Some(dir) = &self.cpu else {
            return Err(unsupported("the control group has no cpu controller"));
        };
        let quota = PERIOD_US * u64::from(percent_of_one_cpu) / 100;
        let done = if self.unified {
            write(dir, "cpu.max", &format!("{quota} {PERIOD_US}"))
        } else {
            write(dir, "cpu.cfs_period_us", &PERIOD_US.to_string())
                .and_then(|()| write(dir, "cpu.cfs_quota_us", &quota.to_string()))
        };
        done.map_err(|e| match e.kind() {
            ErrorKind::NotFound if dir.is_dir() => unsupported("kernel without CFS_BANDWIDTH"),
            _ => e,
        })?;
        if !self.unified && !self.cpu_bounded.swap(true, Ordering::Relaxed) {
            let members = self.memory.as_ref().and_then(|m| fs::read_to_string(m.join("cgroup.procs")).ok());
            for pid in members.unwrap_or_default().lines() {
                // One that has ended meanwhile needs no bound.
                match write(dir, "cgroup.procs", pid) {
                    Err(e) if e.raw_os_error() != Some(libc::ESRCH) => return Err(e),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Moves a process, with all its threads, into the group.
    ///
    /// # Errors
    /// `ESRCH` when there is no such process, `EACCES` when the caller may not move it there.
    pub fn add(&self, pid: i32) -> io::Result<()> {
        let mut dirs = self.dirs();
        // Two directories: one a hierarchy.
        dirs.truncate(if self.cpu_bounded.load(Ordering::Relaxed) { 2 } else { 1 });
        for dir in dirs {
            write(&dir, "cgroup.procs", &pid.to_string())?;
        }
        Ok(())
    }

    /// Makes what somebody has removed of the group again, without bounds and empty; says whether
    /// there was anything to make. A controller whose directory is not available any more is one
    /// that the group has no more.
    ///
    /// # Errors
    /// Those of making a directory.
    pub fn restore(&mut self) -> io::Result<bool> {
        let mut restored = Ok(false);
        for dir in self.dirs().into_iter().filter(|dir| !dir.is_dir()) {
            if self.cpu.as_ref() == Some(&dir) {
                self.cpu_bounded = AtomicBool::new(false);
            }
            match fs::create_dir(&dir) {
                Ok(()) => restored = restored.map(|_| true),
                Err(e) => {
                    for slot in [&mut self.memory, &mut self.cpu] {
                        *slot = slot.take().filter(|kept| *kept != dir);
                    }
                    restored = Err(e);
                }
            }
        }
        restored
    }

    /// Grows whenever the kernel kills processes of the group for lack of memory, by one or more;
    /// stays 0 where it does not count them.
    pub fn oom_kills(&self) -> u64 {
        let file = if self.unified { "memory.events" } else { "memory.oom_control" };
        let text = self.memory.as_ref().and_then(|d| fs::read_to_string(d.join(file)).ok()).unwrap_or_default();
        text.lines().find_map(|l| l.strip_prefix("oom_kill ")).and_then(|n| n.trim().parse().ok()).unwrap_or(0)
    }

    /// Bytes in use by the group now; 0 where they are not counted.
    pub fn memory_now(&self) -> u64 {
        let file = if self.unified { "memory.current" } else { "memory.usage_in_bytes" };
        let text = self.memory.as_ref().and_then(|d| fs::read_to_string(d.join(file)).ok()).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// Takes the group away. Its processes must have ended; the kernel is given up to 0.1 s to let
    /// go of them. Done already is fine.
    ///
    /// # Errors
    /// `EBUSY` while a process is in it.
    pub fn remove(&self) -> io::Result<()> {
        let mut result = Ok(());
        for dir in self.dirs() {
            let mut tries = 0;
            loop {
                match fs::remove_dir(&dir) {
                    Ok(()) => break,
                    Err(e) if e.kind() == ErrorKind::NotFound => break,
                    Err(e) if e.raw_os_error() == Some(libc::EBUSY) && tries < REMOVE_TRIES => {
                        tries += 1;
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err(e) => {
                        result = Err(e);
                        break;
                    }
                }
            }
        }
        result
    }

    fn memory_dir(&self) -> io::Result<&Path> {
        self.memory.as_deref().ok_or_else(|| unsupported("the control group has no memory controller"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process still in it keeps the group alive: `sweep` finds it later.
        let _ = self.remove();
    }
}

/// Whose a group is: a program, as distinguished from all others that ever have the number of its
/// process, here or in another PID namespace. Programs in several namespaces may see one tree of
/// control groups, and process 1 is one in each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The process, by its number in its own PID namespace.
    pub pid: i32,
    /// Inode of that namespace; 0 where it cannot be read.
    pub namespace: u64,
    /// A moment of the program's life, in milliseconds since boot: a process that was started later
    /// is another one.
    pub since: u64,
}

impl Owner {
    /// This process, from now on: after exec, the program that it has become is another owner.
    pub fn current() -> Owner {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes a timespec.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
        let since = now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000;
        Owner { pid: std::process::id() as i32, namespace: own_pid_namespace(), since }
    }

    /// What its groups' names begin with: `prefix-PID-NAMESPACE-SINCE`, the latter two in
    /// hexadecimal.
    pub fn group_name(&self, prefix: &str) -> String {
        format!("{prefix}-{}-{:x}-{:x}", self.pid, self.namespace, self.since)
    }

    /// Reads what follows upon `prefix-` in a group's name.
    fn parse(rest: &str) -> Option<Owner> {
        let mut words = rest.split('-');
        let pid = words.next()?.parse().ok()?;
        let mut number = || u64::from_str_radix(words.next()?, 16).ok();
        Some(Owner { pid, namespace: number()?, since: number()? })
    }

    /// Whether the process is there, its namespace being this process' own; true also where that is
    /// not known.
    fn is_there(&self) -> bool {
        // SAFETY: sends nothing.
        if unsafe { libc::kill(self.pid, 0) } < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) {
            return false;
        }
        // Times since boot are those of the reader's time namespace.
        let same_clock = || inode(format!("/proc/{}/ns/time", self.pid)) == own_inode("ns/time");
        start_of(self.pid).is_none_or(|started| started <= self.since || !proc_is_own() || !same_clock())
    }
}

fn inode(path: impl AsRef<Path>) -> Option<u64> {
    fs::metadata(path).ok().map(|file| file.ino())
}

fn own_inode(file: &str) -> Option<u64> {
    procfs::own(file, |path| fs::metadata(path)).ok().map(|file| file.ino())
}

fn own_pid_namespace() -> u64 {
    own_inode("ns/pid").unwrap_or(0)
}

/// Whether the numbers in `/proc` are those of this process' PID namespace: it may show those of
/// one further out.
fn proc_is_own() -> bool {
    Status::own().is_ok_and(|status| status.nested_pids().len() == 1)
}

/// When a process was started, in milliseconds since boot.
fn start_of(pid: i32) -> Option<u64> {
    Some(Stat::of(pid).ok()?.started_ticks * TICK_MS)
}

/// The PID namespaces that have processes now. `None` where not all processes can be seen: that
/// takes the first namespace, and the right to read every process. A namespace exists as long as
/// its process 1, which a scan of all processes cannot miss.
fn pid_namespaces() -> Option<HashSet<u64>> {
    let mounts = procfs::own_text("mountinfo").ok()?;
    let hides = |m: Mount| m.kind == "proc" && m.options.contains("hidepid=");
    if own_pid_namespace() != FIRST_PID_NAMESPACE || mounts.lines().filter_map(Mount::parse).any(hides) {
        return None;
    }
    let mut found = HashSet::from([FIRST_PID_NAMESPACE]);
    for entry in fs::read_dir("/proc").ok()? {
        let process = entry.ok()?.path();
        let number: Option<i32> = process.file_name().and_then(|name| name.to_str()?.parse().ok());
        // Process 1 may be out of reach even for root, and is in the first namespace.
        if number.is_none_or(|number| number == 1) {
            continue;
        }
        match inode(process.join("ns/pid")) {
            Some(namespace) => drop(found.insert(namespace)),
            // It has ended.
            None if !process.exists() => {}
            None => return None,
        }
    }
    Some(found)
}

/// Takes away empty groups named as [`Owner::group_name`] does, followed by anything, whose owner
/// is gone: what programs leave that were killed. Searches where [`Group::create`] would make them.
/// Answers how many directories went.
///
/// An owner in this process' PID namespace is gone when no process has his number, or only one that
/// was started later. Groups of other namespaces are left alone, unless this process can see that
/// the namespace is gone: in the first one, as root. So what is left by a container that is gone
/// stays until a program sweeps that runs as root outside of any, or in a namespace that was given
/// the same inode.
pub fn sweep(prefix: &str) -> usize {
    let own = own_pid_namespace();
    let mut namespaces = None;
    let mut gone = 0;
    // Listed before namespaces are, so that the maker of one of these is seen if it is alive.
    for (rest, dir) in groups_below(prefix) {
        let Some(owner) = Owner::parse(&rest).filter(|owner| owner.namespace != 0) else { continue };
        let is_over = if owner.namespace == own {
            !owner.is_there()
        } else {
            let living = namespaces.get_or_insert_with(pid_namespaces);
            living.as_ref().is_some_and(|living| !living.contains(&owner.namespace))
        };
        if is_over && fs::remove_dir(dir).is_ok() {
            gone += 1;
        }
    }
    gone
}

/// The directories of groups of this owner, whether it runs or not.
pub fn groups_of(prefix: &str, owner: &Owner) -> Vec<PathBuf> {
    let groups = groups_below(prefix).into_iter();
    groups.filter(|(rest, _)| Owner::parse(rest).as_ref() == Some(owner)).map(|(_, dir)| dir).collect()
}

/// The directories whose names begin with `prefix-`, where groups may be made, with what follows
/// upon that.
fn groups_below(prefix: &str) -> Vec<(String, PathBuf)> {
    let (bases, _) = Bases::find();
    let bases = bases.unified.iter().chain(&bases.memory).chain(&bases.cpu);
    let entries = bases.filter_map(|base| fs::read_dir(base).ok()).flat_map(|dir| dir.flatten());
    let rest = |name: &str| Some(name.strip_prefix(prefix)?.strip_prefix('-')?.to_owned());
    entries.filter_map(|entry| Some((rest(entry.file_name().to_str()?)?, entry.path()))).collect()
}

/// The directories below which groups may be made.
#[derive(Default)]
struct Bases {
    /// Version 2, in the order they are tried.
    unified: Vec<PathBuf>,
    /// Version 1.
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
}

impl Bases {
    /// Finds them by where control groups are mounted and which of them this process is in; and
    /// says what is missing.
    fn find() -> (Bases, Vec<String>) {
        let mut bases = Bases::default();
        let mut why = Vec::new();
        // The group of the process, which the kernel shows after its first thread has ended too: a
        // thread may be in one of its own.
        let (Ok(mounts), Ok(own)) = (procfs::own_text("mountinfo"), procfs::text("/proc/self/cgroup")) else {
            why.push("/proc/self/mountinfo or /proc/self/cgroup cannot be read".into());
            return (bases, why);
        };
        for line in mounts.lines() {
            let Some(m) = Mount::parse(line) else { continue };
            let has = |c: &str| m.options.split(',').any(|o| o == c);
            if m.kind == "cgroup2" && bases.unified.is_empty() {
                if let Some(dir) = m.dir_of(own_path(&own, "")) {
                    if let Some(parent) = dir.parent().filter(|p| p.starts_with(&m.at)) {
                        bases.unified.push(parent.to_path_buf());
                    }
                    bases.unified.insert(0, dir);
                }
            } else if m.kind == "cgroup" {
                if has("memory") && bases.memory.is_none() {
                    bases.memory = m.dir_of(own_path(&own, "memory"));
                }
                if has("cpu") && bases.cpu.is_none() {
                    bases.cpu = m.dir_of(own_path(&own, "cpu"));
                }
            }
        }
        if bases.unified.is_empty() && bases.memory.is_none() && bases.cpu.is_none() {
            why.push("no cgroup file system is mounted".into());
        }
        (bases, why)
    }
}

/// One line of `/proc/self/mountinfo`.
struct Mount<'a> {
    root: &'a str,
    at: PathBuf,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Mount<'a>> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, at) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        Some(Mount { root, at: PathBuf::from(at), kind, options })
    }

    /// Where the group with this path shows below the mount, which may begin at a group other than
    /// the root.
    fn dir_of(&self, path: Option<&str>) -> Option<PathBuf> {
        let below = path?.strip_prefix(self.root.trim_end_matches('/')).unwrap_or("");
        let dir = self.at.join(below.trim_start_matches('/'));
        if dir.is_dir() { Some(dir) } else { Some(self.at.clone()) }
    }
}

/// This process' group in the hierarchy with the given controller ("" for version 2), from
/// `/proc/self/cgroup`.
fn own_path<'a>(own: &'a str, controller: &str) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (id, list, path) = (parts.next()?, parts.next()?, parts.next()?);
        let hit =
            if controller.is_empty() { id == "0" && list.is_empty() } else { list.split(',').any(|c| c == controller) };
        hit.then_some(path)
    })
}

fn create_unified(base: &Path, name: &str) -> io::Result<Group> {
    const CONTROLLERS: [&str; 2] = ["memory", "cpu"];
    let enabled = || CONTROLLERS.iter().filter(|c| lists(&base.join("cgroup.subtree_control"), c)).count();
    let wanted: Vec<_> = CONTROLLERS.iter().filter(|c| lists(&base.join("cgroup.controllers"), c)).collect();
    if enabled() < wanted.len() {
        // A group with processes of its own, unless it is the root (which alone has no type), takes
        // no controllers for children; it would take cpu, but then become "threaded", where
        // children cannot hold processes: never asked for.
        if base.join("cgroup.type").exists()
            && fs::read_to_string(base.join("cgroup.procs")).is_ok_and(|p| !p.is_empty())
        {
            return Err(unsupported("it holds processes itself, so its children can have no controllers"));
        }
        for controller in &wanted {
            // What cannot be enabled shows below, when the new group lacks it.
            let _ = write(base, "cgroup.subtree_control", &format!("+{controller}"));
        }
    }
    if enabled() == 0 {
        return Err(unsupported("neither memory nor cpu is, or can be, enabled for children"));
    }
    let dir = base.join(name);
    fs::create_dir(&dir)?;
    let has = |c: &str| lists(&dir.join("cgroup.controllers"), c).then(|| dir.clone());
    let cpu_bounded = AtomicBool::new(false);
    let group = Group { memory: has("memory"), cpu: has("cpu"), unified: true, cpu_bounded };
    match fs::read_to_string(dir.join("cgroup.type")) {
        Ok(kind) if kind.trim() != "domain" => {
            group.remove()?;
            Err(unsupported("it is a threaded group, whose children hold threads only"))
        }
        _ => Ok(group),
    }
}

/// Whether a file with a list of words has this one.
fn lists(file: &Path, word: &str) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.split_whitespace().any(|w| w == word))
}

fn write(dir: &Path, file: &str, value: &str) -> io::Result<()> {
    fs::OpenOptions::new()
        .write(true)
        .open(dir.join(file))
        .and_then(|mut f| io::Write::write_all(&mut f, value.as_bytes()))
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn unsupported(why: &str) -> io::Error {
    io::Error::new(ErrorKind::Unsupported, why)
}

/// Makes a group, sets a bound, moves a child into it, and removes all of it.
pub fn probe() -> Support {
    let tried = (|| {
        let group = Group::create(&format!("{}-{}", Owner::current().group_name("orbit-probe"), unique()))?;
        if group.has_memory() {
            group.set_memory(64 << 20)?;
        }
        // SAFETY: the child only sleeps; it calls nothing that allocates or locks.
        let Some(RawChild { pid, pidfd }) = (unsafe { raw_fork(0) })? else {
            loop {
                // SAFETY: pause takes nothing.
                unsafe { libc::pause() };
            }
        };
        let added = group.add(pid);
        if let Some(fd) = pidfd {
            crate::pidfd::send_signal(fd.as_fd(), libc::SIGKILL)?;
            crate::pidfd::wait(fd.as_fd(), false)?;
        } else {
            let mut status = 0;
            // SAFETY: an own child that was not reaped yet.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, &raw mut status, libc::__WALL);
            }
        }
        added?;
        group.remove()
    })();
    Support::from_result("control groups", tried, |_| "limits fall back to rlimits, affinity and nice".into())
}

/// A number no other probe of this process has.
fn unique() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_restored_is_done_without() {
        let base = std::env::temp_dir().join(format!("orbit-restore-{}", std::process::id()));
        let at = |name: &str| base.join(name).join("group");
        let (memory, cpu) = (at("memory"), at("cpu"));
        fs::create_dir_all(base.join("memory")).expect("a directory");
        let cpu_bounded = AtomicBool::new(true);
        let mut group = Group { memory: Some(memory.clone()), cpu: Some(cpu), unified: false, cpu_bounded };
        let first = group.restore().map_err(|e| e.kind());
        let second = group.restore().ok();
        let there = (memory.is_dir(), group.dirs());
        drop(group);
        let _ = fs::remove_dir_all(&base);
        assert_eq!((first, second), (Err(ErrorKind::NotFound), Some(false)));
        assert_eq!(there, (true, vec![memory]));
    }
}
