//! Tasks that sleep on a lock which nobody can release.
//!
//! A lock that lies in an area is held in every snapshot made under it, and its holder is a thread
//! of main's, which is not in the orbit. A task that takes it sleeps for ever on a word of a
//! replica. The word is private to the orbit's process: where all threads of that sleep so, without
//! a limit of time, none of them ever wakes.
//!
//! The template inspects it, as the orbit's parent: what a thread sleeps on is shown to nothing
//! else where Yama holds.

use std::time::{Duration, Instant};

use orbit_linux::{pidfd, procfs, thread};

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

/// A task seen asleep on a lock of a replica.
#[derive(Clone, Copy)]
pub(crate) struct Asleep {
    call: u32,
    pub lock: usize,
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
        let is_in_replica = |lock: &usize| core.replicas.iter().any(|r| r.area.contains(*lock, 4));
        let Some(&lock) = locks.first().filter(|_| same && locks.iter().all(is_in_replica)) else {
            core.life.note_asleep(None);
            return None;
        };
        let known = core.life.asleep().filter(|known| known.call == call && known.lock == lock);
        let asleep = known.unwrap_or(Asleep { call, lock, since: Instant::now() });
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
        let stuck = EndedBy::Stuck { killed_at };
        core.life.condemn(stuck);
        let Some(process) = core.life.process() else { return };
        let aborted = process.pidfd.fd().and_then(|fd| pidfd::send_signal(fd, libc::SIGABRT));
        if aborted.is_ok() {
            // Should it not end of that, it is killed then.
            self.recheck_by(killed_at);
        } else {
            self.end_process(core, stuck);
        }
    }

    /// The lock that the task slept on, in words.
    pub fn describe_lock(&self, core: &Core) -> (usize, String) {
        let Some(lock) = core.life.asleep().map(|asleep| asleep.lock) else { return (0, String::new()) };
        let area = core.replicas.iter().find(|r| r.area.contains(lock, 4)).map(|r| &r.area);
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

/// In the template: the words that all threads of a process sleep on, without a limit of time, that
/// of its first thread first; none if one of them does anything else, or it cannot be seen.
pub(crate) fn asleep_on(pid: i32) -> Vec<u64> {
    let words = || {
        let mut words = vec![sleeps_on(pid, pid)?];
        for entry in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
            let thread: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            if thread != pid {
                words.push(sleeps_on(pid, thread)?);
            }
            if words.len() > MOST_THREADS {
                return None;
            }
        }
        Some(words)
    };
    words().unwrap_or_default()
}

fn sleeps_on(pid: i32, tid: i32) -> Option<u64> {
    let call = thread::call(&procfs::text(format!("/proc/{pid}/task/{tid}/syscall")).ok()?)?;
    let operation = call.args[1] as i32 & libc::FUTEX_CMD_MASK;
    let waits = [libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET, libc::FUTEX_LOCK_PI, FUTEX_LOCK_PI2];
    let for_ever = call.args[3] == 0;
    (call.nr == libc::SYS_futex && waits.contains(&operation) && for_ever).then_some(call.args[0])
}

/// Linux 5.14.
const FUTEX_LOCK_PI2: i32 = 13;
