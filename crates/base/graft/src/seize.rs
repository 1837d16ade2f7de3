//! Stopping all threads of a process, those included that appear meanwhile.
//!
//! A thread counts as stopped only in the kernel's signal handling ([`Stop::Trap`]): from there the
//! kernel decides about an interrupted call, and a signal in hand has been passed on. New threads
//! of a seized thread are seized by the kernel.

use crate::Error;
use crate::denial::explain;
use crate::process::Process;
use crate::thread::{CODE_64, Held};
use orbit_linux::ptrace::{self, state, state::Stop};
use orbit_linux::status::Status;
use orbit_linux::{process, procfs};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a thread may take to stop that runs, or waits for a CPU.
const MAX_WAIT_FOR_STOP: Duration = Duration::from_secs(10);
/// And one that waits in the kernel where no signal reaches it.
const PATIENCE_IN_KERNEL: Duration = Duration::from_millis(250);

/// What is asked for of each thread.
const OPTIONS: i32 = ptrace::CALLS_MARKED | ptrace::CLONES;

/// The ids of a process' threads, also of those that have ended and were not waited for; none if it
/// is gone.
pub(crate) fn tasks(pid: i32) -> Vec<i32> {
    let Ok(directory) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    directory.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// How many threads a process has, those that have ended and were not waited for included.
fn thread_count(pid: i32) -> usize {
    Status::of(pid).ok().and_then(|status| status.threads()).unwrap_or(0)
}

/// Stops all threads. To be called in a thread that ends soon after a failure: that releases what
/// could not be stopped.
pub(crate) fn all(process: &Process) -> Result<BTreeMap<i32, Held>, Error> {
    let pid = process.pid();
    let mut seized = Seized { pid, waits: Vec::new(), stopped: BTreeMap::new() };
    let since = Instant::now();
    loop {
        let listed = tasks(pid);
        for tid in &listed {
            seized.seize(*tid)?;
        }
        // Whole: none is missing and none has ended since it was listed, but for the leader, which
        // stays. A thread that ends may have made another one before, and while threads end a list
        // may lack others that live.
        let held = |tid: &i32| *tid == pid || seized.stopped.contains_key(tid);
        let is_whole = listed.iter().all(held) && listed.len() == thread_count(pid);
        if seized.waits.is_empty() && (is_whole || listed.is_empty()) {
            break;
        }
        if since.elapsed() > MAX_WAIT_FOR_STOP {
            let why = "its threads come and go faster than they can be listed".into();
            return Err(Error::NotStopped { tid: pid, waited: since.elapsed(), why });
        }
        while let Some(tid) = seized.waits.pop() {
            seized.settle(tid)?;
        }
    }
    if seized.stopped.is_empty() {
        return Err(Error::Gone { id: pid });
    }
    if seized.stopped.values().all(|held| held.registers.cs != CODE_64) {
        let why = "it runs 32-bit code: only 64-bit programs can be entered".into();
        return Err(Error::Unsuitable { id: pid, why });
    }
    Ok(seized.stopped)
}

struct Seized {
    pid: i32,
    /// Seized and interrupted.
    waits: Vec<i32>,
    stopped: BTreeMap<i32, Held>,
}

impl Seized {
    fn seize(&mut self, tid: i32) -> Result<(), Error> {
        if self.stopped.contains_key(&tid) || self.waits.contains(&tid) {
            return Ok(());
        }
        let error = match ptrace::seize(tid, OPTIONS) {
            Ok(()) => {
                // Fails only for one that has ended, which shows when it is waited for.
                let _ = ptrace::interrupt(tid);
                self.waits.push(tid);
                return Ok(());
            }
            Err(e) => explain(self.pid, tid, "tracing", e),
        };
        match error {
            Error::Gone { .. } => Ok(()),
            // A new thread that the kernel seized on its own; its parent has not reported it yet.
            Error::Traced { .. } if is_ours(self.pid, tid) => {
                self.waits.push(tid);
                Ok(())
            }
            error => Err(error),
        }
    }

    fn settle(&mut self, tid: i32) -> Result<(), Error> {
        loop {
            match next(self.pid, tid)? {
                Stop::Trap(_) => {
                    match Held::read(self.pid, tid) {
                        Ok(held) => drop(self.stopped.insert(tid, held)),
                        Err(Error::Gone { .. }) => {}
                        Err(error) => return Err(error),
                    }
                    return Ok(());
                }
                Stop::Ended => return Ok(()),
                Stop::Event(libc::PTRACE_EVENT_CLONE) => {
                    if let Ok(new) = ptrace::made(tid) {
                        self.adopt(new);
                    }
                    onward(tid, 0);
                }
                // Its own signal: it takes it now, and stops at the handler's first instruction if
                // there is one.
                Stop::Signal(signal) => onward(tid, signal),
                Stop::Call | Stop::Event(_) => onward(tid, 0),
                Stop::None => {}
            }
        }
    }

    /// A traced thread made another, or a process by a `clone` that is no `fork`: that one goes
    /// free.
    fn adopt(&mut self, new: i32) {
        if std::path::Path::new(&format!("/proc/{}/task/{new}", self.pid)).exists() {
            if !self.stopped.contains_key(&new) && !self.waits.contains(&new) {
                self.waits.push(new);
            }
        } else if let Ok(Stop::Trap(_) | Stop::Signal(_)) = next(new, new) {
            let _ = ptrace::detach(new, 0);
        }
    }
}

/// Whether the calling thread traces that thread.
fn is_ours(pid: i32, tid: i32) -> bool {
    let me = process::own_thread_id();
    Status::of_thread(pid, tid).ok().and_then(|status| status.tracer()) == Some(me)
}

/// Lets a stopped thread continue, with a signal unless that is 0, to its next stop at the latest
/// before its next instruction.
pub(crate) fn onward(tid: i32, signal: i32) {
    // Any stop uses an interruption up, so each needs a new one. Both fail only for a thread that
    // was killed: then comes its end.
    let _ = ptrace::interrupt(tid);
    let _ = ptrace::go_on(tid, signal);
}

/// Waits for the next stop of a thread that was interrupted.
pub(crate) fn next(pid: i32, tid: i32) -> Result<Stop, Error> {
    let since = Instant::now();
    let mut tries = 0u32;
    loop {
        match state::next_stop(pid, tid).map_err(|e| Error::of(tid, "waiting for", e)) {
            Ok(Stop::None) => {}
            Err(Error::Gone { .. }) => return Ok(Stop::Ended),
            other => return other,
        }
        tries += 1;
        let waited = since.elapsed();
        if tries.is_multiple_of(64) {
            let (letter, why) = activity(pid, tid);
            // A leader that has ended before its threads stays like this until they end too.
            if matches!(letter, 'Z' | 'X') {
                return Ok(Stop::Ended);
            }
            if waited > MAX_WAIT_FOR_STOP || waited > PATIENCE_IN_KERNEL && letter == 'D' {
                return Err(Error::NotStopped { tid, waited, why });
            }
        }
        pause(waited);
    }
}

/// Between two tries: long waits must not cost a CPU, short ones not be lengthened.
pub(crate) fn pause(waited: Duration) {
    if waited < Duration::from_micros(100) {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(if waited < Duration::from_millis(10) { 20 } else { 500 }));
    }
}

/// The scheduler's letter for a thread (`X` if there is none), and in words what keeps it from
/// stopping.
fn activity(pid: i32, tid: i32) -> (char, String) {
    let of = |file: &str| procfs::text(format!("/proc/{pid}/task/{tid}/{file}")).unwrap_or_default();
    let letter = Status::of_thread(pid, tid).ok().and_then(|status| status.state()).unwrap_or('X');
    let call = of("syscall").split_whitespace().next().and_then(|n| n.parse::<i64>().ok());
    let why = match (letter, call) {
        ('D', Some(libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3)) => {
            let children = of("children");
            let children = children.trim();
            format!(
                "it waits for the child of its vfork to exec or exit (children: {children}), which no stop interrupts"
            )
        }
        ('D', Some(call)) => format!("it waits in call {call}, in the kernel, where no stop reaches it (state D)"),
        ('D', None) => "it waits in the kernel, where no stop reaches it (state D)".into(),
        (letter, _) => format!("it gets no CPU (state {letter})"),
    };
    (letter, why)
}
