//! A program's own call of a service: the handler runs now, and the caller waits for its end.
//!
//! - A pure service runs in the calling thread, as an upcall that needs no signal: signals are
//!   blocked meanwhile as in the handler of one.
//! - The event of a service with a thread is posted, and the caller waits until it is handled: for
//!   some microseconds on its CPU, then asleep.
//!
//! A handler answers by `orbit_return`. The answer of a posted event lies in the control part: any
//! member can falsify it.

use crate::abi::{self, Control, LIVE, POSTED, PURE, THREAD};
use crate::run::{self, Attempt};
use crate::{entry, spin, sys};
use core::arch::asm;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

/// `-ENOENT`: no such service.
pub const GONE: i64 = -2;
/// `-EAGAIN`: its queue is full, or another thread runs it for longer than a call waits.
pub const BUSY: i64 = -11;
/// `-EDEADLK`: a handler calls.
pub const NESTED: i64 = -35;
/// `-EOPNOTSUPP`: its events are for agents: post them.
pub const NOT_HERE: i64 = -95;
/// `-EINPROGRESS`: the handler asked to wait, and begins again in a thread.
pub const PROMOTED: i64 = -115;
/// `-EDQUOT`: the reservation is used up, the event is dropped.
pub const UNPAID: i64 = -122;
/// `-ECANCELED`: the run was aborted.
pub const ABORTED: i64 = -125;

/// How long a call of a pure service waits for another thread that runs it, nanoseconds.
const PATIENCE_NS: u64 = 10_000_000;
/// Time between two checks whether the service of a posted event is still there, nanoseconds.
const CHECK_INTERVAL_NS: u64 = 100_000_000;

/// Calls a service: its slot, the number of services that the slot has had, the event's value. 0
/// with the handler's answer in `*answer`, or one of the errors above.
///
/// # Safety
/// The process is a member; `answer` points to eight bytes that may be written.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub unsafe extern "C" fn orbit_call(slot: u64, generation: u64, value: u64, answer: *mut i64) -> i64 {
    let slot = slot as usize;
    if !(abi::FIRST_SERVICE..abi::SLOTS).contains(&slot) {
        return GONE;
    }
    let here = 0u8;
    if abi::slot_at(&raw const here as usize).is_some() {
        return NESTED;
    }
    let (service, control) = (&abi::directory().services[slot], abi::control(slot));
    let is_there = || service.state.load(Acquire) == LIVE && service.generation == generation;
    if !is_there() {
        return GONE;
    }
    // Its thread waits for descriptors, and not for the word by which a call would wake it.
    if service.flags & abi::GIVEN != 0 {
        return NOT_HERE;
    }
    // SAFETY: a member has its own private part; the word is atomic.
    let inside = unsafe { &(*abi::private()).inside };
    inside.fetch_add(1, SeqCst);
    let has_thread =
        service.flags & THREAD != 0 || control.promoted.load(Acquire) != 0 || control.agents_only.load(Relaxed) != 0;
    let (result, got) = match service.flags & PURE != 0 {
        _ if has_thread => posted(slot, control, value, is_there),
        true if entry::has_faults() => here_and_now(slot, value),
        _ => (NOT_HERE, 0),
    };
    inside.fetch_sub(1, SeqCst);
    // SAFETY: the caller's promise.
    unsafe { *answer = got };
    result
}

/// Runs the handler in this thread.
fn here_and_now(slot: usize, value: u64) -> (i64, i64) {
    let mask = sys::swap_mask(entry::agent_mask());
    let control = FloatControl::save();
    let until = sys::now().saturating_add(PATIENCE_NS);
    let outcome = loop {
        match run::direct(slot, value) {
            // The thread that runs it may need this CPU.
            (Attempt::Busy, _) if sys::now() < until => sys::yield_cpu(),
            outcome => break outcome,
        }
    };
    control.restore();
    sys::set_mask(mask);
    match outcome {
        (Attempt::Done, answer) => (0, answer),
        (Attempt::Promoted, _) => (PROMOTED, 0),
        (Attempt::Aborted, _) => (ABORTED, 0),
        (Attempt::Unpaid, _) => (UNPAID, 0),
        (Attempt::Busy, _) => (BUSY, 0),
        (Attempt::Idle, _) => (GONE, 0),
    }
}

/// Calls of one service that wait at the same time, at most.
pub const CALLS: usize = 16;

/// A call that waits. All zeros is a free one. Every member can write it.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Call {
    /// The caller: process in the upper half, thread in the lower; 0: it is free.
    holder: AtomicU64,
    /// Raised with each call.
    ticket: AtomicU64,
    /// The ticket of the call whose run is over: written last.
    done: AtomicU64,
    outcome: AtomicI64,
    answer: AtomicI64,
}

/// A call's number in an event: its place, counted from 1, and its ticket.
const PLACES: u64 = 1 << 8;

/// Takes a place for a call of this thread: a free one, or one whose caller was killed. Answers the
/// place and the ticket.
fn enter(control: &Control) -> Option<(usize, u64)> {
    let me = (sys::process() as u64) << 32 | u64::from(sys::thread() as u32);
    let takes = |call: &Call, from: u64| call.holder.compare_exchange(from, me, AcqRel, Relaxed).is_ok();
    let is_dead = |holder: u64| sys::probe_thread((holder >> 32) as i32, holder as u32 as i32) != 0;
    let free = control.calls.iter().position(|call| call.holder.load(Relaxed) == 0 && takes(call, 0));
    let place = free.or_else(|| {
        control.calls.iter().position(|call| {
            let holder = call.holder.load(Relaxed);
            holder != 0 && is_dead(holder) && takes(call, holder)
        })
    })?;
    // Below what is left beside the place.
    let ticket = control.calls[place].ticket.fetch_add(1, AcqRel).wrapping_add(1) % (u64::MAX / PLACES);
    Some((place, ticket))
}

/// Posts the event and waits for the end of its run.
fn posted(slot: usize, control: &Control, value: u64, is_there: impl Fn() -> bool) -> (i64, i64) {
    let Some((place, ticket)) = enter(control) else { return (BUSY, 0) };
    let call = &control.calls[place];
    let result = match control.queue.put_for(POSTED, value, ticket * PLACES + place as u64 + 1) {
        None => (BUSY, 0),
        Some(position) => {
            control.wake.fetch_add(1, SeqCst);
            if control.asleep.load(SeqCst) != 0 {
                sys::wake(&control.wake);
            }
            wait(slot, control, position, &is_there, || call.done.load(Acquire) == ticket);
            match call.done.load(Acquire) == ticket {
                true => match call.outcome.load(Relaxed) {
                    0 => (0, call.answer.load(Relaxed)),
                    outcome => (outcome, 0),
                },
                false if is_there() => (ABORTED, 0),
                false => (GONE, 0),
            }
        }
    };
    call.holder.store(0, Release);
    result
}

/// Waits until the run of the event at this position of the queue is over: on the CPU, then asleep.
fn wait(slot: usize, control: &Control, position: u64, is_there: impl Fn() -> bool, is_done: impl Fn() -> bool) {
    // SAFETY: a member has its own private part; the words are atomic.
    let misses = unsafe { &(*abi::private()).misses[slot] };
    if spin::wait(misses, &is_done).0 {
        return;
    }
    control.callers.fetch_add(1, SeqCst);
    loop {
        let seen = control.finished.load(SeqCst);
        // A thread that was killed midway leaves an event that was taken and that no thread runs.
        // The order matters: the thread that takes an event holds the claim from before that to
        // after its end.
        let is_taken = control.queue.has_taken(position);
        let runs = control.runner.load(SeqCst) != 0 || control.promoted.load(SeqCst) != 0;
        if is_done() || is_taken && !runs || !is_there() {
            break;
        }
        sys::sleep_on(&control.finished, seen, CHECK_INTERVAL_NS);
    }
    control.callers.fetch_sub(1, SeqCst);
}

/// What the ABI has calls keep of the floating-point unit, and an aborted handler may have changed.
struct FloatControl {
    vector: u32,
    stack: u16,
}

impl FloatControl {
    fn save() -> FloatControl {
        let (mut vector, mut stack) = (0u32, 0u16);
        // SAFETY: both instructions store a register to the variable that they are given.
        unsafe {
            asm!("stmxcsr [{}]", "fnstcw [{}]", in(reg) &raw mut vector, in(reg) &raw mut stack,
                options(nostack, preserves_flags));
        }
        FloatControl { vector, stack }
    }

    fn restore(self) {
        // SAFETY: the values are the registers' own, as saved in this thread.
        unsafe {
            asm!("ldmxcsr [{}]", "fldcw [{}]", in(reg) &raw const self.vector, in(reg) &raw const self.stack,
                options(nostack, preserves_flags, readonly));
        }
    }
}

/// The run of a call's event is over. A number that is no call's, which a member may have written,
/// ends none.
pub(crate) fn finish(control: &Control, number: u64, outcome: Attempt, answer: i64) {
    let place = (number % PLACES).wrapping_sub(1) as usize;
    let Some(call) = control.calls.get(place) else { return };
    let ticket = number / PLACES;
    if call.ticket.load(Acquire) % (u64::MAX / PLACES) != ticket {
        return;
    }
    let outcome = match outcome {
        Attempt::Done => 0,
        Attempt::Unpaid => UNPAID,
        _ => ABORTED,
    };
    call.outcome.store(outcome, Relaxed);
    call.answer.store(answer, Relaxed);
    call.done.store(ticket, Release);
    control.finished.fetch_add(1, SeqCst);
    if control.callers.load(SeqCst) != 0 {
        sys::wake(&control.finished);
    }
}

/// Sleeps, as the thread of a service, until something comes for it, `ns` at most. Answers the
/// nanoseconds spent waiting on the CPU and what the sleep answered: 0 when it was woken.
pub(crate) fn rest(control: &Control, misses: &AtomicU32, seen: u32, ns: u64) -> (u64, isize) {
    let (came, spent) = spin::wait(misses, || control.wake.load(Relaxed) != seen);
    if came {
        return (spent, 0);
    }
    control.asleep.store(1, SeqCst);
    let woken = sys::sleep_on(&control.wake, seen, ns);
    control.asleep.store(0, SeqCst);
    (spent, woken)
}
