//! Tasks that sleep on a lock which nobody can release.
//!
//! A lock that lies in an area is held in every snapshot made under it, and its holder is a thread
//! of main's, which is not in the orbit. A task that takes it sleeps for ever on a word of a
//! replica. The word is private to the orbit's process: where all threads of that sleep so, without
//! a limit of time, none of them ever wakes.
//!
//! So do locks outside of areas that another thread of main held when the library was set up (libc
//! has some: of the time zone, of `syslog`, of the environment). Such a word counts where it is
//! private to the process, no thread has run between two inspections, and the process catches no
//! signal that could wake one. What an orbit's own loop waits for is shared with main, and never
//! counts.
//!
//! Some runtimes wait for such a lock in steps: Python takes its interpreter lock by waits of 5 ms,
//! repeated for ever. A wait with a limit of time counts where its word is a variable of a program
//! or a library (what a task makes for itself lies on its heap or its stack), and where all of many
//! inspections find the thread in it, at the same place of its code and its stack.
//!
//! The template inspects it, as the orbit's parent: what a thread sleeps on is shown to nothing
//! else where Yama holds.

use std::time::{Duration, Instant};

use orbit_linux::{maps, pidfd, procfs, thread};

use crate::blackbox;
use crate::clock::now_ns;
use crate::core::{Core, Inner};
use crate::life::EndedBy;

/// Most threads of an orbit that are inspected.
const MOST_THREADS: usize = 64;
/// A call that has not waited and run this long is not inspected.
const CHECKED_AFTER: Duration = Duration::from_millis(100);
/// How long the template may take to inspect an orbit.
const MAX_INSPECTION: Duration = Duration::from_millis(200);
/// How long the orbit may take to leave its call stack before it is killed.
const LEAVES_STACK_WITHIN: Duration = Duration::from_secs(2);

/// Marks the address of a word, a multiple of 4, as private to its process.
const PRIVATE: usize = 1;
/// Marks it as waited for with a limit of time.
const TIMED: usize = 2;
const MARKS: usize = PRIVATE | TIMED;

/// How often a wait with a limit of time must be found.
const MIN_TIMED_FOUND: u32 = 12;
/// How soon one that was found is inspected again.
const TIMED_CHECK_INTERVAL: Duration = Duration::from_millis(47);
/// How long such waits may be, on average.
const MAX_STEP: Duration = Duration::from_millis(200);
/// How long a task must have been in such waits, at least.
const MIN_TIMED: Duration = Duration::from_secs(1);

/// A task seen asleep on a lock that nobody can release.
#[derive(Clone, Copy)]
pub(crate) struct Asleep {
    call: u32,
    pub lock: usize,
    /// What stays the same while its threads sleep, see [`asleep_on`]; 0: not known.
    mark: usize,
    /// How often its threads had been given a CPU when it was first found so.
    slices: usize,
    since: Instant,
    /// How often it was found so.
    found: u32,
}

impl Inner {
    /// Ends the process if its task has slept long enough on a lock in a replica that nobody can
    /// release. Says when to check again, if sooner than usual. Called by the supervisor.
    pub fn check_asleep(&self) -> Option<Duration> {
        let after = self.options.stuck_after?;
        let (template, pid, call) = {
            let core = self.lock();
            let process = core.life.healthy_process()?;
            let head = &core.queue.front()?.call;
            let waited = Duration::from_nanos(now_ns().saturating_sub(head.submitted_ns));
            (waited >= CHECKED_AFTER).then(|| (process.template.clone(), process.pid, head.number))?
        };
        let locks = template.asleep_on(pid, MAX_INSPECTION);
        let mut core = self.lock();
        let core = &mut *core;
        let same = core.life.healthy_process().is_some_and(|p| p.pid == pid)
            && core.queue.front().is_some_and(|head| head.call.number == call);
        let is_in_replica = |lock: &usize| core.replicas.iter().any(|r| r.area.contains(*lock & !MARKS, 4));
        let (mark, slices, locks) = match &locks[..] {
            [mark, slices, locks @ ..] => (*mark, *slices, locks),
            _ => (0, 0, &[][..]),
        };
        let counts = |lock: &usize| is_in_replica(lock) || (mark != 0 && *lock & PRIVATE != 0);
        let Some(&lock) = locks.first().filter(|_| same && locks.iter().all(counts)) else {
            core.life.note_asleep(None);
            return None;
        };
        let is_timed = locks.iter().any(|lock| lock & TIMED != 0);
        let lock = lock & !MARKS;
        let same_sleep = |known: &Asleep| (known.call, known.lock, known.mark) == (call, lock, mark);
        let known = core.life.asleep().filter(same_sleep);
        let mut asleep = known.unwrap_or(Asleep { call, lock, mark, slices, since: Instant::now(), found: 0 });
        asleep.found = asleep.found.saturating_add(1);
        core.life.note_asleep(Some(asleep));
        let slept = asleep.since.elapsed();
        if is_timed {
            // One that is waited out may end the sleep.
            let steps = slices.wrapping_sub(asleep.slices) as u128;
            let are_short = steps * MAX_STEP.as_nanos() >= slept.as_nanos();
            if asleep.found < MIN_TIMED_FOUND || slept < after.max(MIN_TIMED) || !are_short {
                return Some(TIMED_CHECK_INTERVAL);
            }
        }
        if slept < after {
            return Some(after - slept);
        }
        self.end_stuck(core);
        None
    }

    fn end_stuck(&self, core: &mut Core) {
        let killed_at = Instant::now() + LEAVES_STACK_WITHIN;
        let Some(process) = core.life.process() else { return };
        let lock = core.life.asleep().map_or(0, |asleep| asleep.lock);
        if !core.replicas.iter().any(|r| r.area.contains(lock, 4)) {
            // Another process of it would sleep there too.
            process.template.distrust();
        }
        self.end_leaving_stack(core, EndedBy::Stuck { killed_at }, killed_at);
    }

    /// Has the process end by itself, for this reason, and leave its call stack.
    pub fn end_leaving_stack(&self, core: &mut Core, why: EndedBy, killed_at: Instant) {
        core.life.condemn(why);
        let Some(process) = core.life.process() else { return };
        let aborted = process.pidfd.fd().and_then(|fd| pidfd::send_signal(fd, libc::SIGABRT));
        if aborted.is_ok() {
            // Should it not end of that, it is killed then.
            self.recheck_by(killed_at);
        } else {
            self.end_process(core, why);
        }
    }

    /// The lock that the task slept on, in words.
    pub fn describe_lock(&self, core: &Core) -> (usize, String) {
        let Some(lock) = core.life.asleep().map(|asleep| asleep.lock) else { return (0, String::new()) };
        let area = core.replicas.iter().find(|r| r.area.contains(lock, 4)).map(|r| &r.area);
        if area.is_none() {
            let why = format!(
                "all threads of the orbit sleep on locks that none of them can release; that at {lock:#x} lies outside \
                 of areas: another thread of this program held it when the library was set up, or the task waits for \
                 itself; set the library up before the program starts threads"
            );
            return (lock, why);
        }
        let place = area
            .map_or_else(String::new, |area| format!(" ({} bytes into area \"{}\")", lock - area.base(), area.name()));
        let why = format!(
            "the lock at {lock:#x}{place} was held in the snapshot, and its holder is not in the orbit: nobody can \
             release it; make the \
             call while the lock is free, or have the task not take it"
        );
        (lock, why)
    }
}

/// In the template: a mark of the sleep of a process' threads, how often they were given a CPU
/// (where that is known), then the words that all of them sleep on, that of its first thread first;
/// nothing if one of them does anything else, or it
/// cannot be seen. The mark stays the same while none of them does anything else: how often they
/// were given a CPU, or of waits with a limit of time where they are. 0: not known, or a signal
/// that the process catches may wake them.
pub(crate) fn asleep_on(pid: i32) -> Vec<u64> {
    let words = || {
        let (first, mut mark, mut slices) = sleeps_on(pid, pid)?;
        let mut words = vec![0, 0, first];
        for entry in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
            let thread: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            if thread != pid {
                let (word, more, times) = sleeps_on(pid, thread)?;
                words.push(word);
                slices = slices.wrapping_add(times);
                mark = mark.zip(more).map(|(one, other)| one.wrapping_add(other));
            }
            if words.len() > MOST_THREADS + 1 {
                return None;
            }
        }
        words[0] = mark.filter(|_| !may_be_woken(pid)).unwrap_or(0);
        words[1] = slices;
        Some(words)
    };
    words().unwrap_or_default()
}

/// The word that a thread sleeps on, with its marks, its part of the mark of [`asleep_on`], and how
/// often it was given a CPU.
fn sleeps_on(pid: i32, tid: i32) -> Option<(u64, Option<u64>, u64)> {
    let call = thread::call(&procfs::text(format!("/proc/{pid}/task/{tid}/syscall")).ok()?)?;
    if call.nr != libc::SYS_futex {
        return None;
    }
    let operation = call.args[1] as i32 & libc::FUTEX_CMD_MASK;
    let waits = [libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET, libc::FUTEX_LOCK_PI, FUTEX_LOCK_PI2];
    if !waits.contains(&operation) {
        return None;
    }
    let word = call.args[0] & !(MARKS as u64);
    let private = if call.args[1] as i32 & libc::FUTEX_PRIVATE_FLAG != 0 { PRIVATE as u64 } else { 0 };
    let slices = procfs::text(format!("/proc/{pid}/task/{tid}/schedstat"));
    let slices = slices.ok().and_then(|text| Some(thread::sched(text.as_bytes())?.slices));
    if call.args[3] != 0 {
        let place = call.sp.rotate_left(32) ^ call.pc;
        let counts = private != 0 && slices.is_some() && is_variable(word);
        return counts.then_some((word | private | TIMED as u64, Some(place), slices.unwrap_or(0)));
    }
    Some((word | private, slices, slices.unwrap_or(0)))
}

/// Whether a word lies among the variables of a program or a library, which this process has where
/// its children have them: in memory of a file, or without a name right above such.
fn is_variable(word: u64) -> bool {
    let Ok(all) = maps::of(std::process::id() as i32) else { return false };
    let Some(at) = all.iter().position(|entry| (entry.start..entry.end).contains(&word)) else { return false };
    let is_file = |entry: &maps::Entry| entry.name.starts_with('/') && !entry.name.starts_with("/memfd:");
    let below = at.checked_sub(1).map(|below| &all[below]).filter(|below| below.end == all[at].start);
    is_file(&all[at]) || (all[at].name.is_empty() && below.is_some_and(is_file))
}

/// Whether a signal that the process catches, or a timer, may yet wake a thread of it.
fn may_be_woken(pid: i32) -> bool {
    let Ok(status) = procfs::text(format!("/proc/{pid}/status")) else { return true };
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let Some(caught) = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()) else { return true };
    // Those of a crash, which end it, and the two that glibc keeps for threads.
    let harmless = blackbox::SIGNALS.iter().chain(&[32, 33]).fold(0, |mask, signal| mask | 1u64 << (signal - 1));
    caught & !harmless != 0
}

/// Linux 5.14.
const FUTEX_LOCK_PI2: i32 = 13;
