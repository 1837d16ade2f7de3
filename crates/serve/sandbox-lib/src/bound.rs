//! What bounds a run. A timer does; but to arm one and to disarm it costs several microseconds each
//! in a virtual machine, where the kernel has to program the clock through the hypervisor. So a run
//! is spared that where it can be:
//!
//! - In a member, an agent that is going to wake before the budget is used up checks the run
//!   instead. It publishes when ([`Control::checked_at`]), and keeps doing so while there are
//!   several runs in each budget ([`Watch`]).
//! - In an agent or a thread, one timer stays armed over many runs: when it fires between runs
//!   nothing happens.
//!
//! Both only start a check of the time that remains, which judges by the CPU time of the run.

use crate::abi::{self, Control, PURE, Service};
use crate::run::Place;
use crate::sys;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

/// The timer of a run that has none: an agent checks it.
pub const NONE: i32 = -1;
/// Budgets shorter than this have a timer for each run: an agent would have to wake too often,
/// nanoseconds.
pub const LEAST_CHECKED_NS: u64 = 200_000;
/// Runs in a budget from which on an agent checks them.
const FREQUENT: u64 = 4;
/// Budgets in a row with fewer runs after which it does so no more: on a loaded machine members
/// wait for their CPU for as long.
const MAX_RARE: u32 = 32;
/// Time between two checks of a run that is over its budget, nanoseconds.
const RETRY_NS: u64 = 1_000_000;

/// Bounds the run that begins at `now`. Answers its timer or [`NONE`]; `-errno` when it cannot be
/// bounded.
///
/// The claim is held and `began` is set, so that an agent which stops publishing sees the run.
pub fn begin(
    control: &Control,
    place: Place,
    budget_ns: u64,
    thread: i32,
    slot: usize,
    now: u64,
) -> Result<i32, isize> {
    if place != Place::Upcall {
        return shared_timer(budget_ns, thread, now);
    }
    let checked_at = control.checked_at.load(SeqCst);
    if checked_at > now && checked_at - now <= budget_ns {
        return Ok(NONE);
    }
    own_timer(budget_ns, thread, slot)
}

/// A timer for one run in a member.
pub fn own_timer(ns: u64, thread: i32, slot: usize) -> Result<i32, isize> {
    let timer = sys::timer_create(abi::directory().budget_signal, slot as u64, thread);
    if timer < 0 {
        return Err(timer);
    }
    let set = sys::timer_set(timer as i32, ns);
    if set < 0 {
        sys::timer_delete(timer as i32);
        return Err(set);
    }
    Ok(timer as i32)
}

/// The timer of an agent's or a thread's process.
fn shared_timer(budget_ns: u64, thread: i32, now: u64) -> Result<i32, isize> {
    // SAFETY: an agent has its own private part; the words are atomic.
    let private = unsafe { &*abi::private() };
    let mut timer = private.timer.load(Relaxed) - 1;
    if timer < 0 {
        let made = sys::timer_create(abi::directory().budget_signal, 0, thread);
        if made < 0 {
            return Err(made);
        }
        timer = made as i32;
        private.timer.store(timer + 1, Relaxed);
    }
    // One that fires from here on, before the handler has begun, is armed again by its signal's
    // handler.
    let armed = private.armed_until.load(Relaxed);
    if armed <= now || armed - now > budget_ns {
        arm(timer, budget_ns, now);
    }
    Ok(timer)
}

/// Arms a timer; notes it, if it is the one of an agent's or a thread's process.
pub fn arm(timer: i32, ns: u64, now: u64) {
    // SAFETY: as in `shared_timer`.
    let private = unsafe { &*abi::private() };
    if private.timer.load(Relaxed) == timer + 1 {
        private.armed_until.store(if ns == 0 { 0 } else { now.saturating_add(ns) }, Relaxed);
    }
    sys::timer_set(timer, ns);
}

/// Notes that the timer of an agent's or a thread's process fired between two runs.
pub fn fired() {
    // SAFETY: as in `shared_timer`.
    unsafe { (*abi::private()).armed_until.store(0, Relaxed) };
}

/// Ends the bound of a run.
pub fn end(place: Place, timer: i32) {
    if place == Place::Upcall && timer >= 0 {
        sys::timer_delete(timer);
    }
}

/// What an agent remembers of a slot whose runs it may check.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    /// Runs at the last decision.
    runs: u64,
    /// When that was.
    since: u64,
    /// Budgets with few runs for which it still checks.
    left: u32,
}

impl Watch {
    /// Checks the run in progress, and decides whether to check the next ones. Answers when to
    /// check again.
    ///
    /// `is_prompt`: this agent has a real-time priority above all members, so that it wakes when it
    /// says.
    pub fn check(&mut self, service: &Service, control: &Control, is_prompt: bool, now: u64) -> Option<u64> {
        let frequent = self.decide(service, control, is_prompt, now);
        // After the word that ends the checks was written: a run that read it before is seen here.
        let running = overdue(service, control, now);
        match (frequent, running) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn decide(&mut self, service: &Service, control: &Control, is_prompt: bool, now: u64) -> Option<u64> {
        if !is_prompt || service.flags & PURE == 0 || service.budget_ns < LEAST_CHECKED_NS {
            return None;
        }
        let budget = service.budget_ns;
        let runs = control.runs.load(Relaxed);
        let (passed, done) = (now.saturating_sub(self.since), runs.wrapping_sub(self.runs));
        if passed < budget / 2 {
            let checked_at = control.checked_at.load(SeqCst);
            return (checked_at > now).then(|| early(checked_at, budget));
        }
        (self.runs, self.since) = (runs, now);
        let is_frequent = done.saturating_mul(budget) >= FREQUENT.saturating_mul(passed);
        self.left = if is_frequent { MAX_RARE } else { self.left.saturating_sub(1) };
        if self.left == 0 {
            control.checked_at.store(0, SeqCst);
            return None;
        }
        let checked_at = now + budget;
        control.checked_at.store(checked_at, SeqCst);
        Some(early(checked_at, budget))
    }
}

/// An agent wakes before the time that it published, so that the next one is published by then.
fn early(checked_at: u64, budget_ns: u64) -> u64 {
    checked_at - budget_ns / 8
}

/// Signals the thread of a run that has had its budget; answers when to check it, if there is one.
fn overdue(service: &Service, control: &Control, now: u64) -> Option<u64> {
    let (runner, began) = (control.runner.load(SeqCst), control.began.load(SeqCst));
    if runner == 0 || began & 1 == 0 {
        return None;
    }
    let end = began.saturating_add(service.budget_ns);
    if now < end {
        return Some(end);
    }
    let (process, thread) = ((runner >> 32) as i32, runner as u32 as i32);
    sys::signal_thread(process, thread, abi::directory().budget_signal);
    Some(now + RETRY_NS)
}
