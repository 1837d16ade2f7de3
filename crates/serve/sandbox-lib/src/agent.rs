//! The loop of an agent: a process of its own, bound to one CPU, at a real-time priority where it
//! may have one. It takes every event that no member took within the grace time, and all events of
//! services that are not pure.
//!
//! A handler there runs at a priority at which nothing else of its CPU runs, so an agent ends
//! whatever the handler does: the kernel kills it when its host ends, and when it has run for
//! [`LONGEST_STRETCH_NS`] without a sleep. A healthy one sleeps for `REST_NS` long before.
//!
//! What services set is put back by the *restorer*: the same program, which runs no handler. When
//! the host's end of the life socket closes, it waits for the runs in progress, restores every
//! attribute that was granted for setting, and exits.

use crate::abi::{self, LIVE, PURE};
use crate::bound::Watch;
use crate::run::{self, Place};
use crate::{attribute, direct, entry, files, gate, sys};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

const READABLE: i16 = 1;
/// The kernel kills an agent that has run for so long at its real-time priority without a sleep,
/// nanoseconds.
pub const LONGEST_STRETCH_NS: u64 = 100_000_000;
/// Budget of a run at most where its agent is real-time, nanoseconds: the longest stretch begins
/// with up to `REST_AFTER_NS` of other runs.
pub const MAX_BUDGET_NS: u64 = 50_000_000;
/// An agent sleeps when it has run for so long, nanoseconds.
const REST_AFTER_NS: u64 = 10_000_000;
/// For so long, nanoseconds.
const REST_NS: u64 = 50_000;
/// A wait in the kernel of this length was a sleep, nanoseconds.
const SLEPT_NS: u64 = 200_000;
/// Time between two checks of slots whose runner may be dead, and of an idle agent, nanoseconds.
const CHECK_INTERVAL_NS: u64 = 100_000_000;

/// Time until a slot that another thread runs is tried again, nanoseconds.
const BUSY_NS: u64 = 1_000_000;

/// A run in a member that lasts so long has been preempted: an agent raises its thread,
/// nanoseconds.
const PREEMPTED_NS: u64 = 2_000_000;
/// A raised thread keeps its priority until the run ends, and so long at most, nanoseconds.
const RAISED_NS: u64 = 20_000_000;
/// The priority of a raised thread, below that of agents.
const RAISED: i32 = 98;

/// How long an agent whose host is gone waits for the end of runs in progress, nanoseconds.
const LAST_RUNS_NS: u64 = 1_000_000_000;

/// What an agent is started with.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The processor it is bound to.
    pub cpu: u32,
    /// Its real-time priority; 0: an ordinary process.
    pub priority: i32,
    /// Readable or hung up once the host is gone.
    pub life: i32,
    /// Readable when the host has changed the directory or posted an event.
    pub doorbell: i32,
    /// 1: this agent takes all services; 0: it is one of several, and takes those whose slot is
    /// congruent to `part` of `parts`.
    pub parts: u32,
    /// Which part.
    pub part: u32,
    /// 0: an agent; else this is the thread of the service in that slot, whose handler may wait.
    pub only: u32,
    /// 1: this process runs no handler, and puts back what services set when the host is gone.
    pub restores: u32,
}

/// Keeps a process from running without a sleep for as long as a healthy one could.
struct Stretch {
    /// When its last sleep ended.
    began: u64,
}

impl Stretch {
    /// Sleeps, if it is time to.
    fn pause(&mut self) {
        let now = sys::now();
        if now.saturating_sub(self.began) > REST_AFTER_NS {
            sys::sleep_until(now + REST_NS);
            self.began = sys::now();
        }
    }

    /// A wait in the kernel is over that began then.
    fn waited(&mut self, since: u64) {
        let now = sys::now();
        if now.saturating_sub(since) > SLEPT_NS {
            self.began = now;
        }
    }
}

/// Runs until the host is gone.
///
/// # Safety
/// The process has joined the region as an agent; `start` points to a structure; the descriptors
/// are open.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub unsafe extern "C" fn orbit_agent(start: *const Start) -> ! {
    // SAFETY: the caller's promise.
    let start = unsafe { *start };
    sys::bind(start.cpu as usize);
    let is_prompt = sys::set_priority(0, start.priority) >= 0 && start.priority > 0;
    sys::set_mask(entry::agent_mask());
    // SAFETY: an agent has its own private part; the word is atomic.
    unsafe { (*abi::private()).claim.store((sys::process() as u64) << 32 | sys::thread() as u32 as u64, Relaxed) };
    let timer = sys::timer_descriptor();
    if timer < 0 {
        sys::exit(1);
    }
    let timer = timer as i32;
    if start.only != 0 {
        let slot = start.only as usize % abi::SLOTS;
        if gate::open_always(slot).is_ok() {
            // SAFETY: it is open for good; where it could not be, each run opens it.
            unsafe { run::keep_stack(slot) };
        }
        if abi::directory().services[slot].flags & abi::GIVEN != 0 {
            alone_with_files(slot, start.life, start.doorbell);
        }
        alone(slot, start.life);
    }
    let of = |descriptor| sys::Poll { descriptor, events: READABLE, ready: 0 };
    let mut watches = [Watch::default(); abi::SLOTS];
    if start.restores != 0 {
        while !sys::is_ready(start.life) {
            sys::poll(&mut [of(start.life)]);
        }
        close(&mut watches, is_prompt);
        restore();
        sys::exit(0);
    }
    let mut raised = [0u64; abi::SLOTS];
    let mut descriptors = [of(start.life), of(start.doorbell), of(timer)];
    let mut stretch = Stretch { began: sys::now() };
    loop {
        let now = sys::now();
        let mut next = now + CHECK_INTERVAL_NS;
        for slot in (abi::FIRST_SERVICE..abi::SLOTS).filter(|slot| *slot as u32 % start.parts.max(1) == start.part) {
            if let Some(wake) = serve(slot, now) {
                next = next.min(wake);
            }
            if is_prompt && help_preempted(slot, &mut raised[slot], now) {
                next = next.min(now + BUSY_NS);
            }
            let (service, control) = (&abi::directory().services[slot], abi::control(slot));
            if service.state.load(Acquire) != abi::EMPTY {
                let checked = watches[slot].check(service, control, is_prompt, now);
                next = next.min(checked.unwrap_or(u64::MAX));
            }
        }
        sys::timer_descriptor_set(timer, next.max(1));
        stretch.pause();
        let waits = sys::now();
        sys::poll(&mut descriptors);
        stretch.waited(waits);
        if descriptors[0].ready != 0 {
            sys::exit(0);
        }
        for polled in &descriptors[1..] {
            if polled.ready != 0 {
                sys::read_word(polled.descriptor);
            }
        }
    }
}

/// The loop of a thread: one slot's handler, which may wait. It sleeps on the slot's word, so that
/// whoever promotes a run or posts an event wakes it without a descriptor.
fn alone(slot: usize, life: i32) -> ! {
    let (service, control) = (&abi::directory().services[slot % abi::SLOTS], abi::control(slot));
    let misses = AtomicU32::new(0);
    let mut stretch = Stretch { began: sys::now() };
    loop {
        let seen = control.wake.load(Acquire);
        while service.state.load(Acquire) == LIVE && run::may_be_due(control) {
            release_dead(slot);
            stretch.pause();
            if matches!(run::attempt(slot, Place::Thread), run::Attempt::Idle | run::Attempt::Busy) {
                break;
            }
        }
        let due = control.due.load(Relaxed);
        let is_own = service.flags & abi::THREAD != 0 && due != 0;
        let next = if is_own { due.saturating_sub(sys::now()).clamp(1, CHECK_INTERVAL_NS) } else { CHECK_INTERVAL_NS };
        let waits = sys::now();
        let (spent, woken) = direct::rest(control, &misses, seen, next);
        stretch.waited(waits);
        run::charge_wait(service, control, spent, &misses);
        if woken != 0 && sys::is_ready(life) {
            sys::exit(0);
        }
    }
}

/// As [`alone`], for a service that was given descriptors: it waits for these, and for the doorbell
/// that the host rings with each event. A place is handled until a run has done nothing with it;
/// then its next arrival counts.
fn alone_with_files(slot: usize, life: i32, doorbell: i32) -> ! {
    const LIFE: u64 = 64;
    const DOORBELL: u64 = 65;
    let (service, control) = (&abi::directory().services[slot % abi::SLOTS], abi::control(slot));
    let events = sys::event_descriptor() as i32;
    if events < 0 || sys::event_add(events, life, LIFE) < 0 || sys::event_add(events, doorbell, DOORBELL) < 0 {
        sys::exit(1);
    }
    files::watch(slot, events);
    let (mut ready, mut turn) = (0u64, 0u32);
    let mut stretch = Stretch { began: sys::now() };
    loop {
        let now = sys::now();
        let mut next = now + CHECK_INTERVAL_NS;
        if service.state.load(Acquire) == LIVE {
            release_dead(slot);
            stretch.pause();
            if run::may_be_due(control) {
                match run::attempt(slot, Place::Thread) {
                    run::Attempt::Idle | run::Attempt::Unpaid => {}
                    run::Attempt::Busy => next = next.min(now + BUSY_NS),
                    _ => next = now,
                }
                let due = control.due.load(Relaxed);
                next = if due == 0 { next } else { next.min(due) };
            }
            if ready != 0 {
                // In turn, so that one that is always ready delays none.
                let place = (turn + ready.rotate_right(turn).trailing_zeros()) % 64;
                let done = files::done();
                match run::readable(slot, u64::from(place)) {
                    run::Attempt::Unpaid => {
                        let window = control.window_began.load(Relaxed).saturating_add(service.window_ns);
                        next = next.min(window.max(now + BUSY_NS));
                    }
                    run::Attempt::Busy | run::Attempt::Idle => next = next.min(now + BUSY_NS),
                    _ => {
                        if files::done() == done || !files::is_ready(slot, u64::from(place)) {
                            ready &= !(1 << place);
                        }
                        (turn, next) = ((place + 1) % 64, if ready == 0 { next } else { now });
                    }
                }
            }
            let (unlimited, at) = files::unlimited(slot, sys::now());
            ready |= unlimited;
            next = if unlimited != 0 { now } else { next.min(at.unwrap_or(u64::MAX)) };
        }
        let waits = sys::now();
        let mut arrivals = [sys::Arrival::default(); 8];
        let came = sys::event_wait(events, &mut arrivals, next.saturating_sub(waits));
        stretch.waited(waits);
        for arrival in arrivals.iter().take(came.max(0) as usize) {
            let number = arrival.number;
            match number {
                LIFE if sys::is_ready(life) => sys::exit(0),
                place if place < 64 => ready |= 1 << place,
                // The host has changed something, which the loop sees.
                _ => {}
            }
        }
    }
}

/// Runs a slot's handler if that is for this agent to do now. Returns when to check again.
fn serve(slot: usize, now: u64) -> Option<u64> {
    let (service, control) = (&abi::directory().services[slot], abi::control(slot));
    // Of a revoked service too: the host waits for the end of its last run.
    release_dead(slot);
    if service.state.load(Acquire) != LIVE {
        return None;
    }
    let promoted = control.promoted.load(Acquire);
    if service.flags & abi::THREAD != 0 || promoted == abi::MAY_WAIT {
        return None;
    }
    let is_mine = service.flags & PURE == 0 || control.agents_only.load(Relaxed) != 0;
    let grace = if is_mine { 0 } else { abi::directory().grace_ns };
    let due = control.due.load(Relaxed);
    let is_due =
        promoted == abi::FOR_AGENT || control.queue.is_waiting() || (due != 0 && now >= due.saturating_add(grace));
    if is_due && run::attempt(slot, Place::Agent) == run::Attempt::Busy {
        // The thread that runs it may need this very CPU: an agent that tried at once again would
        // never let it finish.
        return Some(now + BUSY_NS);
    }
    // Posted events are run one by one, the slots in turn.
    if control.queue.is_waiting() {
        return Some(now);
    }
    let due = control.due.load(Relaxed);
    (due != 0).then(|| due.saturating_add(grace))
}

/// Gives a thread that was preempted in a run of this slot a real-time priority, so that the run
/// ends; takes it from one whose run is over, which usually has done so itself. `since`: when it
/// was given. Answers whether to check again soon.
fn help_preempted(slot: usize, since: &mut u64, now: u64) -> bool {
    let control = abi::control(slot);
    let (claim, raised) = (control.runner.load(SeqCst), control.raised.load(SeqCst));
    if raised != 0 {
        if raised == claim && now.saturating_sub(*since) < RAISED_NS {
            return true;
        }
        lower(slot);
        return false;
    }
    let began = control.began.load(SeqCst);
    // Once for each run.
    if claim == 0 || began & 1 == 0 || now.saturating_sub(began) < PREEMPTED_NS || began == *since {
        return began != 0;
    }
    *since = began;
    let thread = claim as u32 as i32;
    if sys::policy(thread) != 0 {
        return false;
    }
    *since = now;
    control.raised.store(claim, SeqCst);
    sys::set_priority(thread, RAISED);
    // It may have ended before it could see that it was raised.
    if control.runner.load(SeqCst) != claim {
        lower(slot);
    }
    true
}

/// Takes its priority from the thread that was raised for a run of this slot.
fn lower(slot: usize) {
    let raised = abi::control(slot).raised.swap(0, SeqCst);
    if raised != 0 {
        sys::set_priority(raised as u32 as i32, 0);
    }
}

/// Releases a slot whose runner was killed in the middle of a run.
fn release_dead(slot: usize) {
    let control = abi::control(slot);
    let runner = control.runner.load(Acquire);
    let (process, thread) = ((runner >> 32) as i32, runner as u32 as i32);
    if runner == 0 || thread == sys::thread() || sys::probe_thread(process, thread) == 0 {
        return;
    }
    if control.runner.compare_exchange(runner, 0, Acquire, Relaxed).is_ok() {
        control.orphaned.fetch_add(1, Relaxed);
    }
}

/// Claims all slots for good: the host is gone, and a run that ended after [`restore`] would set
/// again what was put back. Waits for the runs in progress, which nobody but this process may
/// bound, for [`LAST_RUNS_NS`] at most.
#[expect(clippy::needless_range_loop, reason = "iterators that skip bring in code of core that unwinds")]
fn close(watches: &mut [Watch; abi::SLOTS], is_prompt: bool) {
    // SAFETY: an agent has its own private part; the word is atomic.
    let me = unsafe { (*abi::private()).claim.load(Relaxed) };
    let until = sys::now() + LAST_RUNS_NS;
    for slot in abi::FIRST_SERVICE..abi::SLOTS {
        let (service, control) = (&abi::directory().services[slot], abi::control(slot));
        lower(slot);
        if service.state.load(Acquire) == abi::EMPTY {
            continue;
        }
        while control.runner.compare_exchange(0, me, SeqCst, Relaxed).is_err() && sys::now() < until {
            release_dead(slot);
            watches[slot].check(service, control, is_prompt, sys::now());
            sys::sleep_on(&control.wake, control.wake.load(Acquire), BUSY_NS);
        }
    }
}

/// Puts back every attribute that a service has set.
fn restore() {
    for (entry, set) in abi::directory().ledger.iter().zip(abi::sets()) {
        let (class, target) = (entry.class.load(Acquire), entry.target.load(Relaxed));
        let began = entry.began.load(Relaxed);
        let is_there = began == 0 || sys::began(target) == Ok(began);
        if class != 0 && set.value().is_some() && is_there {
            // A target that is gone needs nothing put back.
            let _ = attribute::apply(class, target, entry.original.load(Relaxed), abi::table());
        }
    }
}
