//! Examining a thread that is suspected to spin: does it get back to its main loop?
//!
//! Owns: following one thread's system calls by ptrace for a short while. Promises: a thread that is inside the kernel is not stopped, for
//! that could end its call early ([`place()`]): of one that was nowhere else for [`CPU`], and came by no place where its main loop waits, that is said. Ends at the first call the thread
//! usually waits in (of a healthy server that is after microseconds), else once the thread got [`CPU`] of CPU time, and
//! at the latest after the time given; signals that come in between are handed on; the thread is let go whatever happens,
//! because the kernel ties the hold to the examining thread, and that one ends with the examination. Never collects an ended child: its
//! status is for whoever started it. Refuses: threads that another program traces.

use crate::old::proc;
use orbit_inspect::stacks::{Place, place};
use orbit_linux::perf::{Access, Counter, Kind};
use orbit_linux::ptrace;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

/// CPU time a thread must have had before it may be said to spin.
const CPU: Duration = Duration::from_millis(30);
/// Wall time after which a thread that got too little CPU is let go.
pub(crate) const PATIENCE: Duration = Duration::from_millis(400);
/// Other calls that stand for that CPU time: following them takes longer than making them.
const CALLS: u32 = 1000;
/// A thread has four; others may want some.
const BREAKPOINTS: usize = 2;
/// As long as calls come, the next one is waited for without sleeping.
const EAGER: Duration = Duration::from_millis(2);

/// What an examination found.
#[derive(Debug)]
pub(crate) enum Look {
    /// It made a call it usually waits in.
    Waits,
    /// It ran and made none; so many other calls.
    Spins { calls: u32 },
    /// It ran inside the kernel all the time: in one long call, or in one after the other.
    Kernel,
    /// It ran, came by no place where it usually waits, and could not be followed.
    Away,
    /// It ran too little to tell.
    Starved,
    /// It waits somewhere, has ended, or was stopped by somebody else.
    Left,
    /// It may not be traced.
    Refused(io::Error),
}

/// How a thread gets back to its main loop.
pub(crate) struct Usual<'a> {
    /// Whether a call is its main loop's.
    pub(crate) calls: &'a (dyn Fn(i64) -> bool + Sync),
    /// Where it goes on after these.
    pub(crate) places: &'a [u64],
}

/// Follows a thread, for so long at most. Blocks for [`PATIENCE`] more where it is not seen in its own code, and as long again where it is
/// inside the kernel.
pub(crate) fn look(tid: i32, sched: &File, patience: Duration, usual: &Usual) -> Look {
    let look = std::thread::scope(|s| {
        let examiner = s.spawn(|| follow(tid, sched, patience, usual));
        examiner.join().unwrap_or(Look::Left)
    });
    if !matches!(look, Look::Starved) {
        return look;
    }
    // To meet it in its own code, and to follow its calls, takes a CPU for the one who looks just when the thread has one.
    match comes_by(tid, sched, patience, usual.places) {
        Some(Comes::By) => Look::Waits,
        Some(Comes::Not) => Look::Away,
        _ => look,
    }
}

/// Stops of the thread that have not been looked at: the signal number with the event above it.
fn stop(tid: i32) -> io::Result<Option<i32>> {
    // SAFETY: all-zero bytes are a valid siginfo.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WSTOPPED | libc::WNOHANG | libc::__WALL;
    // SAFETY: `info` outlives the call.
    if unsafe { libc::waitid(libc::P_PID, tid as libc::id_t, &raw mut info, options) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: waitid filled these fields or left zero.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    Ok((pid != 0).then_some(status))
}

fn follow(tid: i32, sched: &File, patience: Duration, usual: &Usual) -> Look {
    let (place, clock) = place(tid, CPU);
    match place {
        Place::Own => {}
        Place::Kernel => return inside(tid, sched, patience, usual.places),
        Place::Asleep => return Look::Left,
        Place::Unknown => return Look::Starved,
    }
    if let Err(e) = ptrace::seize(tid, ptrace::CALLS_MARKED) {
        return if e.raw_os_error() == Some(libc::ESRCH) { Look::Left } else { Look::Refused(e) };
    }
    if ptrace::interrupt(tid).is_err() {
        return Look::Left;
    }
    drop(clock);
    // Before, its calls were not seen.
    let Some(before) = proc::sched(sched) else {
        return Look::Left;
    };
    let start = Instant::now();
    let mut quiet = start;
    let mut calls = 0;
    loop {
        match stop(tid) {
            Err(_) => return Look::Left,
            Ok(Some(status)) => {
                let signal = status & 0xff;
                let mut deliver = 0;
                if signal == ptrace::CALL {
                    // Entry and exit alternate; a thread interrupted inside a call shows that call's exit first.
                    if let Some(call) = ptrace::call(tid) {
                        if (usual.calls)(call.number) && waits(call.number, call.arguments[1]) {
                            let _ = ptrace::detach(tid, 0);
                            return Look::Waits;
                        }
                        calls += 1;
                        if calls >= CALLS {
                            let _ = ptrace::detach(tid, 0);
                            return Look::Spins { calls };
                        }
                    }
                } else if status >> 8 != 0 {
                    if signal != libc::SIGTRAP {
                        // A group stop: somebody stopped the program.
                        let _ = ptrace::detach(tid, 0);
                        return Look::Left;
                    }
                    ptrace::begin_again(tid);
                } else {
                    deliver = signal;
                }
                if ptrace::go_to_call(tid, deliver).is_err() {
                    return Look::Left;
                }
                quiet = Instant::now();
            }
            Ok(None) => {
                if quiet.elapsed() < EAGER {
                    std::thread::yield_now();
                    continue;
                }
                std::thread::sleep(Duration::from_millis(1));
                let Some(now) = proc::sched(sched) else {
                    return Look::Left;
                };
                let ran = now.run.saturating_sub(before.run) as u128;
                if ran >= CPU.as_nanos() {
                    return Look::Spins { calls };
                }
            }
        }
        if start.elapsed() > patience {
            let ran = proc::sched(sched).map_or(0, |n| n.run.saturating_sub(before.run));
            return if u128::from(ran) >= CPU.as_nanos() { Look::Spins { calls } } else { Look::Starved };
        }
    }
}

/// What one does that is inside the kernel and not to be stopped. Where there are no breakpoints to be had, it is inside the kernel.
fn inside(tid: i32, sched: &File, patience: Duration, places: &[u64]) -> Look {
    match comes_by(tid, sched, patience, places) {
        Some(Comes::By) => Look::Waits,
        Some(Comes::Not) | None => Look::Kernel,
        Some(Comes::Unknown) => Look::Starved,
    }
}

/// Whether a thread comes by a place.
enum Comes {
    By,
    /// Not in [`CPU`].
    Not,
    /// It ran too little, or has ended.
    Unknown,
}

/// Whether a thread gets back to its main loop, by breakpoints where it goes on from there: it is not stopped for that. Nothing where there are none to be had.
fn comes_by(tid: i32, sched: &File, patience: Duration, places: &[u64]) -> Option<Comes> {
    let at = |place: &u64| {
        let kind = Kind::Breakpoint { addr: *place as usize, len: 1, access: Access::Execute };
        Counter::open_thread(tid, kind).ok()
    };
    let passes: Vec<Counter> = places.iter().take(BREAKPOINTS).filter_map(at).collect();
    if passes.is_empty() {
        return None;
    }
    let before = proc::sched(sched)?.run;
    let start = Instant::now();
    while start.elapsed() < patience {
        if passes.iter().any(|p| p.read() > 0) {
            return Some(Comes::By);
        }
        let Some(now) = proc::sched(sched) else { break };
        if u128::from(now.run.saturating_sub(before)) >= CPU.as_nanos() {
            return Some(Comes::Not);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Some(Comes::Unknown)
}

/// Whether the call may be a wait at all: `futex` also wakes others, which a runtime such as Go's does from a signal handler.
fn waits(nr: i64, second: u64) -> bool {
    const WAKES: [libc::c_int; 5] =
        [libc::FUTEX_WAKE, libc::FUTEX_REQUEUE, libc::FUTEX_CMP_REQUEUE, libc::FUTEX_WAKE_OP, libc::FUTEX_WAKE_BITSET];
    nr != libc::SYS_futex || !WAKES.contains(&(second as libc::c_int & 0x7f))
}
