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
//! The template inspects it, as the orbit's parent: what a thread sleeps on is shown to nothing
//! else where Yama holds.

use std::time::{Duration, Instant};

use orbit_linux::{pidfd, procfs, thread};

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

/// A task seen asleep on a lock that nobody can release.
#[derive(Clone, Copy)]
pub(crate) struct Asleep {
    call: u32,
    pub lock: usize,
    /// Times that its threads were given a CPU; 0: not known.
    slices: usize,
    since: Instant,
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
        let is_in_replica = |lock: &usize| core.replicas.iter().any(|r| r.area.contains(*lock & !PRIVATE, 4));
        let (slices, locks) = locks.split_first().map_or((0, &[][..]), |(slices, locks)| (*slices, locks));
        let counts = |lock: &usize| is_in_replica(lock) || (slices != 0 && *lock & PRIVATE != 0);
        let Some(&lock) = locks.first().filter(|_| same && locks.iter().all(counts)) else {
            core.life.note_asleep(None);
            return None;
        };
        let lock = lock & !PRIVATE;
        let same_sleep = |known: &Asleep| (known.call, known.lock, known.slices) == (call, lock, slices);
        let known = core.life.asleep().filter(same_sleep);
        let asleep = known.unwrap_or(Asleep { call, lock, slices, since: Instant::now() });
        core.life.note_asleep(Some(asleep));
        let slept = asleep.since.elapsed();
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

/// In the template: how often the threads of a process were given a CPU (0: not known, or a signal
/// that the process catches may wake them), then the words that all of them sleep on, without a
/// limit of time, that of its first thread first; nothing if one of them does anything else, or it
/// cannot be seen.
pub(crate) fn asleep_on(pid: i32) -> Vec<u64> {
    let words = || {
        let (first, mut slices) = sleeps_on(pid, pid)?;
        let mut words = vec![0, first];
        for entry in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
            let thread: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            if thread != pid {
                let (word, more) = sleeps_on(pid, thread)?;
                words.push(word);
                slices = slices.zip(more).map(|(one, other)| one + other);
            }
            if words.len() > MOST_THREADS {
                return None;
            }
        }
        words[0] = slices.filter(|_| !may_be_woken(pid)).unwrap_or(0);
        Some(words)
    };
    words().unwrap_or_default()
}

/// The word that a thread sleeps on, and how often it was given a CPU where that is known.
fn sleeps_on(pid: i32, tid: i32) -> Option<(u64, Option<u64>)> {
    let call = thread::call(&procfs::text(format!("/proc/{pid}/task/{tid}/syscall")).ok()?)?;
    let operation = call.args[1] as i32 & libc::FUTEX_CMD_MASK;
    let waits = [libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET, libc::FUTEX_LOCK_PI, FUTEX_LOCK_PI2];
    let for_ever = call.args[3] == 0;
    let word = call.args[0] & !3;
    let private = if call.args[1] as i32 & libc::FUTEX_PRIVATE_FLAG != 0 { PRIVATE as u64 } else { 0 };
    let slices = procfs::text(format!("/proc/{pid}/task/{tid}/schedstat"));
    let slices = slices.ok().and_then(|text| Some(thread::sched(text.as_bytes())?.slices));
    (call.nr == libc::SYS_futex && waits.contains(&operation) && for_ever).then_some((word | private, slices))
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
