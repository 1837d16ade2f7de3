//! A program's family: all processes that it made, whoever is their parent by now.
//!
//! A process whose parent ends becomes a child of the next subreaper above it, else of init, where
//! nobody knows whence it came. So a guard that is to restart its program (`orbit watch`,
//! `orbit keep`) makes itself one ([`adopt`]): then all that the program made stays below the
//! guard. Promises: processes of the
//! guard's own are neither ended nor reaped. Those (the template of its modules, the modules) are
//! copies of the guard that never ran another program, so their memory is laid out as the guard's,
//! at places drawn at random at its start; what the program made has run a program. When the guard
//! ends, however it does, orphans go to init and nothing ends them.
//!
//! Not all below the guard is the program's: a shell that becomes the guard
//! (`sidecar & exec orbit watch ..`) leaves it its children, and where the guard is process 1 the
//! orphans of all its namespace are its children (of `docker exec`). [`Others`] are those that were
//! there first. Where there are any, or may be, an orphan's ancestors do not show whose it is:
//! there the program is marked, by what its children inherit and no kernel since 2.4 heeds, its
//! limit of resident memory, and only marked orphans are taken for the program's.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use orbit_linux::rlimit::{self, Resource};
use orbit_linux::stat::Stat;
use orbit_linux::{child, pidfd, process};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// Longest wait for killed processes to end: one may be in a call that no signal ends.
const MAX_WAIT_FOR_END: Duration = Duration::from_secs(5);
/// Pause between two scans of what is left.
const SCAN_INTERVAL: Duration = Duration::from_millis(5);

/// Where the code, the stack, the arguments and the environment of a process are; zeros where it
/// has exited, or may not be inspected.
fn layout(of: &Stat) -> [u64; 5] {
    [of.code.start, of.code.end, of.stack, of.arguments.start, of.environment]
}

/// The command line of a process, its arguments separated by spaces; empty if it has none or has
/// exited.
pub fn command(pid: i32) -> String {
    let line = orbit_linux::procfs::text(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.trim_end_matches('\0').replace('\0', " ")
}

/// Whether this is a thread of the kernel, which has no program.
pub fn is_kernel_thread(pid: i32) -> bool {
    Stat::of(pid).is_ok_and(|stat| stat.is_kernel_thread())
}

/// From now on orphans of the program become the guard's children.
///
/// # Errors
/// A guard that others may not inspect (it has capabilities of its file's) could not distinguish
/// its own processes from the program's.
pub fn adopt() -> io::Result<()> {
    if !process::is_dumpable() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the guard has rights that it was not started with"));
    }
    process::adopt_orphans()
}

/// A process for ever: its number and when it began.
type Born = (i32, u64);

/// What is below the guard and is not the program's: see the module's head.
#[derive(Debug, Default)]
pub struct Others {
    /// Those that were there before the program.
    before: BTreeSet<Born>,
    mark: Option<(u64, u64)>,
}

impl Others {
    /// Those of a guard that adopts, before it has started the program.
    pub fn before_program() -> Others {
        let guard = std::process::id() as i32;
        let before = Stat::of(guard).ok().map_or_else(BTreeSet::new, |own| {
            let children = all().into_iter().filter(|(_, stat)| stat.parent == guard && layout(stat) != layout(&own));
            children.map(|(pid, stat)| (pid, stat.started_ticks)).collect()
        });
        let mark = (!before.is_empty() || guard == 1).then(|| mark(guard));
        Others { before, mark }
    }

    /// The limit of resident memory that the program is to be started with, if it is to be marked.
    pub fn mark(&self) -> Option<(u64, u64)> {
        self.mark
    }

    /// Whether a child of the guard's is one of them; of the program's family these are known.
    fn spare(&self, child: Born, known: &BTreeSet<Born>) -> bool {
        let marked = |(mark, _): (u64, u64)| resident_limit(child.0) == Some(mark);
        self.before.contains(&child) || !known.contains(&child) && !self.mark.is_none_or(marked)
    }
}

/// Gives the command this limit of resident memory, as all that it makes will have it.
pub fn marked(command: &mut Command, mark: (u64, u64)) {
    // SAFETY: only an async-signal-safe call, on a value copied beforehand.
    unsafe {
        command.pre_exec(move || {
            let _ = rlimit::set(0, Resource::Resident, mark.0, mark.1);
            Ok(())
        });
    }
}

/// A limit that no other is likely to have, next to the highest: soft and hard.
fn mark(guard: i32) -> (u64, u64) {
    // One that is unlimited has the largest number.
    let highest = rlimit::get(0, Resource::Resident).map_or(rlimit::INFINITE, |(_, hard)| hard);
    (highest.saturating_sub(1 + guard as u64), highest)
}

/// The process' limit of resident memory; nothing if it has ended.
fn resident_limit(pid: i32) -> Option<u64> {
    rlimit::resident_of(pid)
}

/// The program's family, from a scan before the program was killed.
pub struct Family {
    program: Option<Born>,
    known: BTreeSet<Born>,
}

impl Family {
    /// Of a program that has not been reaped, of a guard that adopts.
    pub fn of(program: i32, others: &Others) -> Family {
        let program = Stat::of(program).ok().map(|stat| (program, stat.started_ticks));
        let mut family = Family { program, known: program.into_iter().collect() };
        family.scan(others);
        family
    }

    /// Kills it and waits until none is left, some seconds at most; answers how many are. With the
    /// program killed: for that itself it does not wait.
    pub fn end(&mut self, others: &Others) -> usize {
        let until = Instant::now() + MAX_WAIT_FOR_END;
        loop {
            let mut made = self.scan(others);
            made.retain(|born| Some(*born) != self.program);
            let left = made.into_iter().filter(|born| kill(*born)).count();
            if left == 0 || Instant::now() > until {
                return left;
            }
            std::thread::sleep(SCAN_INTERVAL);
        }
    }

    /// The members now: the guard's children but for its own copies and for others, and all below.
    fn scan(&mut self, others: &Others) -> Vec<Born> {
        let guard = std::process::id() as i32;
        let Ok(own) = Stat::of(guard) else { return Vec::new() };
        let mut made: BTreeMap<i32, Vec<Born>> = BTreeMap::new();
        for (pid, stat) in all().into_iter().filter(|(_, stat)| layout(stat) != layout(&own)) {
            made.entry(stat.parent).or_default().push((pid, stat.started_ticks));
        }
        let mut found = made.remove(&guard).unwrap_or_default();
        found.retain(|child| !others.spare(*child, &self.known));
        let mut scanned = 0;
        while let Some((parent, _)) = found.get(scanned) {
            found.extend(made.remove(parent).unwrap_or_default());
            scanned += 1;
        }
        self.known.extend(&found);
        found
    }
}

/// All processes.
fn all() -> Vec<(i32, Stat)> {
    let names = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, Stat::of(pid).ok()?))).collect()
}

/// Sends the process its end; `false` if it has ended, or has made way for another, or may not be
/// ended by this user.
fn kill((pid, started): Born) -> bool {
    let Ok(process) = pidfd::open(pid) else { return false };
    // The number may have been given to another process before it was opened, but not after.
    let same = Stat::of(pid).is_ok_and(|stat| stat.started_ticks == started);
    same && !pidfd::has_ended(process.as_fd()) && pidfd::send_signal(process.as_fd(), libc::SIGKILL).is_ok()
}

/// The process and its copies: the template of its modules, which is nobody's child, and the
/// modules.
pub fn copies(pid: i32) -> Vec<i32> {
    let Ok(own) = Stat::of(pid) else { return Vec::new() };
    let same = |(of, stat): &(i32, Stat)| *of == pid || layout(&own) != [0; 5] && layout(stat) == layout(&own);
    all().into_iter().filter(same).map(|(of, _)| of).collect()
}

/// Whether orphans become the guard's children: it adopts them, was started as a subreaper, or is
/// the first process of its namespace, as in a container without an init.
pub fn gets_orphans() -> bool {
    std::process::id() == 1 || process::adopts_orphans()
}

/// Reaps orphans that ended. Does not wait. Leaves children whose status is `wanted` to those that
/// want it: before one of them is reaped nothing that ended after it is.
///
/// To be called in the guard's first thread. Orphans are that thread's children, as the program is;
/// processes that other threads make and wait for are not scanned at, nor the template, which ends
/// without a signal. A stop of an orphan that another thread traces is not taken.
pub fn reap(wanted: impl Fn(i32) -> bool) {
    let has_ended = |pid: i32| child::has_exited(pid).unwrap_or(false);
    while let Some(pid) = process::ended_child().filter(|pid| !wanted(*pid) && has_ended(*pid)) {
        process::reap(pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;

    #[test]
    fn a_mark_is_seen_from_outside_and_inherited() {
        let guard = std::process::id() as i32;
        let mark = mark(guard);
        let started = |is_marked: bool| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", "sleep 1000 & echo $!; wait"]).stdout(std::process::Stdio::piped());
            if is_marked {
                marked(&mut command, mark);
            }
            let mut child = command.spawn().expect("sh");
            let mut line = String::new();
            std::io::BufReader::new(child.stdout.as_mut().expect("stdout")).read_line(&mut line).expect("a line");
            let made: i32 = line.trim().parse().expect("a number");
            let of = [child.id() as i32, made].map(resident_limit);
            pidfd::send_signal(pidfd::open(made).expect("a child").as_fd(), libc::SIGKILL).expect("a child");
            child.wait().expect("a child");
            of
        };
        assert_eq!(started(true), [Some(mark.0); 2]);
        assert!(!started(false).contains(&Some(mark.0)));
    }

    #[test]
    fn a_program_is_distinguished_from_a_copy() {
        let own = Stat::of(std::process::id() as i32).expect("a stat");
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
        let other = Stat::of(child.id() as i32).expect("a stat");
        assert_eq!(other.parent, std::process::id() as i32);
        assert_ne!(layout(&other), layout(&own));
        assert!(!is_kernel_thread(child.id() as i32));
        // SAFETY: the child makes system calls only.
        let copy = unsafe { libc::fork() };
        if copy == 0 {
            loop {
                // SAFETY: no pointers are passed.
                unsafe { libc::pause() };
            }
        }
        let found = copies(std::process::id() as i32);
        // SAFETY: the child just made, which nothing else reaps; a null status is allowed.
        unsafe {
            libc::kill(copy, libc::SIGKILL);
            libc::waitpid(copy, std::ptr::null_mut(), 0);
        }
        assert!(found.contains(&(std::process::id() as i32)) && found.contains(&copy), "{found:?}");
        assert!(!found.contains(&(child.id() as i32)), "{found:?}");
        child.kill().expect("a child");
        child.wait().expect("a child");
    }
}
