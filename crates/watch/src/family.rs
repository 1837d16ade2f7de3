//! The program's family: all processes that it made, whoever is their parent by now.
//!
//! A process whose parent ends becomes a child of the next subreaper above it, else of init, where nobody knows whence it came. So
//! a guard that is to restart its program makes itself one ([`adopt`]): then all that the program made stays below the guard.
//! Promises: processes of the guard's own are neither ended nor reaped. Those (the template of its modules, the modules) are copies
//! of the guard that never ran another program, so their memory is laid out as the guard's, at places drawn by chance at its start;
//! what the program made has run a program. When the guard ends, however it does, orphans go to init and nothing ends them.
//!
//! Not all below the guard is the program's: a shell that becomes the guard (`sidecar & exec orbit watch ..`) leaves it its children,
//! and where the guard is process 1 the orphans of all its namespace are its children (of `docker exec`). [`Others`] are those that were there
//! first. Where there are any, or may be, an orphan's ancestors do not tell whose it is: there the program is marked, by what its
//! children inherit and no kernel since 2.4 heeds, its limit of resident memory, and only marked orphans are taken for the program's.

use orbit_linux::{pidfd, procfs};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Longest wait for killed processes to end: one may be in a call that no signal ends.
const LONGEST: Duration = Duration::from_secs(5);
/// Pause between two looks at what is left.
const LOOK: Duration = Duration::from_millis(5);
/// The flag of a thread of the kernel.
const KERNEL_THREAD: u64 = 0x20_0000;

/// A process as its stat has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent: i32,
    flags: u64,
    /// Ticks since the machine's start.
    started: u64,
    /// Where its code, its stack, its arguments and its environment are; zeros where it has ended, or may not be looked into.
    layout: [u64; 5],
}

impl Stat {
    fn of(pid: i32) -> Option<Stat> {
        Stat::parse(&procfs::text(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Stat> {
        // Behind the name, which is in brackets and may hold any character, stands field 3.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let layout = [field(26)?, field(27)?, field(28)?, field(48)?, field(50)?];
        Some(Stat { parent: field(4)? as i32, flags: field(9)?, started: field(22)?, layout })
    }
}

/// Whether this is a thread of the kernel, which has no program.
pub fn is_kernel_thread(pid: i32) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.flags & KERNEL_THREAD != 0)
}

/// From now on orphans of the program become the guard's children.
///
/// # Errors
/// A guard that others may not look into (it has capabilities of its file's) could not tell its own processes from the program's.
pub fn adopt() -> io::Result<()> {
    // SAFETY: numbers only.
    if unsafe { libc::prctl(libc::PR_GET_DUMPABLE) } != 1 {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the guard has rights that it was not started with"));
    }
    // SAFETY: numbers only.
    match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A process for ever: its number and when it began.
type Born = (i32, u64);

/// What is below the guard and is not the program's: see the module's head.
#[derive(Default)]
pub struct Others {
    /// Those that were there before the program.
    before: BTreeSet<Born>,
    mark: Option<libc::rlimit>,
}

impl Others {
    /// Those of a guard that adopts, before it has started the program.
    pub fn before_program() -> Others {
        let guard = std::process::id() as i32;
        let before = Stat::of(guard).map_or_else(BTreeSet::new, |own| {
            let children = all().into_iter().filter(|(_, stat)| stat.parent == guard && stat.layout != own.layout);
            children.map(|(pid, stat)| (pid, stat.started)).collect()
        });
        let mark = (!before.is_empty() || guard == 1).then(|| mark(guard));
        Others { before, mark }
    }

    /// The limit of resident memory that the program is to be started with, if it is to be marked.
    pub fn mark(&self) -> Option<libc::rlimit> {
        self.mark
    }

    /// Whether a child of the guard's is one of them; of the program's family these are known.
    fn spare(&self, child: Born, known: &BTreeSet<Born>) -> bool {
        let marked = |mark: libc::rlimit| resident_limit(child.0) == Some(mark.rlim_cur);
        self.before.contains(&child) || !known.contains(&child) && !self.mark.is_none_or(marked)
    }
}

/// A limit that no other is likely to have, next to the highest.
fn mark(guard: i32) -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the answer.
    unsafe { libc::getrlimit(libc::RLIMIT_RSS, &raw mut limit) };
    // One that is unlimited has the largest number.
    libc::rlimit { rlim_cur: limit.rlim_max.saturating_sub(1 + guard as u64), ..limit }
}

/// The process' limit of resident memory; nothing if it has none, or has ended.
fn resident_limit(pid: i32) -> Option<u64> {
    let limits = procfs::text(format!("/proc/{pid}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max resident set"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The program's family, from a look before the program was killed.
pub struct Family {
    program: Option<Born>,
    known: BTreeSet<Born>,
}

impl Family {
    /// Of a program that has not been reaped, of a guard that adopts.
    pub fn of(program: i32, others: &Others) -> Family {
        let program = Stat::of(program).map(|stat| (program, stat.started));
        let mut family = Family { program, known: program.into_iter().collect() };
        family.look(others);
        family
    }

    /// Kills it and waits until none is left, some seconds at most; answers how many are. With the program killed: for that itself it does not wait.
    pub fn end(&mut self, others: &Others) -> usize {
        let until = Instant::now() + LONGEST;
        loop {
            let mut made = self.look(others);
            made.retain(|born| Some(*born) != self.program);
            let left = made.into_iter().filter(|born| kill(*born)).count();
            if left == 0 || Instant::now() > until {
                return left;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Who is of it now: the guard's children but for its own copies and for others, and all below.
    fn look(&mut self, others: &Others) -> Vec<Born> {
        let guard = std::process::id() as i32;
        let Some(own) = Stat::of(guard) else { return Vec::new() };
        let mut made: BTreeMap<i32, Vec<Born>> = BTreeMap::new();
        for (pid, stat) in all().into_iter().filter(|(_, stat)| stat.layout != own.layout) {
            made.entry(stat.parent).or_default().push((pid, stat.started));
        }
        let mut found = made.remove(&guard).unwrap_or_default();
        found.retain(|child| !others.spare(*child, &self.known));
        let mut looked = 0;
        while let Some((parent, _)) = found.get(looked) {
            found.extend(made.remove(parent).unwrap_or_default());
            looked += 1;
        }
        self.known.extend(&found);
        found
    }
}

/// All processes.
fn all() -> Vec<(i32, Stat)> {
    let names = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, Stat::of(pid)?))).collect()
}

/// Sends the process its end; `false` if it has ended, or has made way for another, or may not be ended by this user.
fn kill((pid, started): Born) -> bool {
    let Ok(process) = pidfd::open(pid) else { return false };
    // The number may have been given to another process before it was opened, but not after.
    let same = Stat::of(pid).is_some_and(|stat| stat.started == started);
    same && !pidfd::has_ended(process.as_fd()) && pidfd::send_signal(process.as_fd(), libc::SIGKILL).is_ok()
}

/// The process and its copies: the template of its modules, which is nobody's child, and the modules.
pub fn copies(pid: i32) -> Vec<i32> {
    let Some(own) = Stat::of(pid) else { return Vec::new() };
    let same = |(of, stat): &(i32, Stat)| *of == pid || own.layout != [0; 5] && stat.layout == own.layout;
    all().into_iter().filter(same).map(|(of, _)| of).collect()
}

/// Reaps orphans that ended. Does not wait. Leaves the program to who wants its status.
///
/// To be called in the guard's first thread. Orphans are that thread's children, as the program is; processes that other threads
/// make and wait for are not looked at, nor the template, which ends without a signal.
pub fn reap(program: i32) {
    const ENDED: libc::c_int = libc::WEXITED | libc::WNOHANG | libc::__WNOTHREAD;
    loop {
        // SAFETY: a siginfo is plain data; zeros tell that nothing ended.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the struct outlives the call.
        let found = unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, ENDED | libc::WNOWAIT) } == 0;
        // SAFETY: waitid filled the fields of a child's end, or left zeros.
        let pid = unsafe { info.si_pid() };
        if !found || pid == 0 || pid == program {
            return;
        }
        // SAFETY: as above; the child just found, which nobody else reaps.
        unsafe { libc::waitid(libc::P_PID, pid as libc::id_t, &raw mut info, ENDED) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program;
    use std::io::BufRead;

    #[test]
    fn a_name_of_any_characters() {
        let rest: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let stat = Stat::parse(&format!("7 (a) R 1 (b) S {}\n", rest.join(" "))).expect("a stat");
        assert_eq!(stat, Stat { parent: 4, flags: 9, started: 22, layout: [26, 27, 28, 48, 50] });
        assert!(Stat::parse("7 (a) S 1 2").is_none());
    }

    #[test]
    fn a_mark_is_seen_from_outside_and_inherited() {
        let guard = std::process::id() as i32;
        let mark = mark(guard);
        let started = |marked: bool| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", "sleep 1000 & echo $!; wait"]).stdout(std::process::Stdio::piped());
            if marked {
                program::marked(&mut command, mark);
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
        assert_eq!(started(true), [Some(mark.rlim_cur); 2]);
        assert!(!started(false).contains(&Some(mark.rlim_cur)));
    }

    #[test]
    fn a_program_is_told_from_a_copy() {
        let own = Stat::of(std::process::id() as i32).expect("a stat");
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
        let other = Stat::of(child.id() as i32).expect("a stat");
        assert_eq!(other.parent, std::process::id() as i32);
        assert_ne!(other.layout, own.layout);
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
        // SAFETY: the child just made, which nobody else reaps; a null status is allowed.
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
