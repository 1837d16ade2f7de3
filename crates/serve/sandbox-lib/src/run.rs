//! One run of a handler: claim the event, open the slot, arm the budget, call, close, charge,
//! release.
//!
//! An event is claimed by exchanging one word, so a member and an agent that see the same event run
//! it once. The word holds the thread that runs: when that thread is gone, killed in the middle, an
//! agent releases the slot.
//!
//! A run happens on the interrupted thread's time and at its priority. A service that manages
//! priorities is first raised above the threads it manages, and lowered last, when the slot is
//! released: a thread that were preempted while it holds the claim would stop the service.

use crate::abi::{self, Control, EMPTY, Event, LIVE, PURE, RAISE, Run, Service, THREAD, TIMER};
use crate::{bound, direct, gate, spin, sys};
use core::arch::naked_asm;
use core::mem::offset_of;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// A handler that waits, or is preempted, for this many times its budget is aborted, whatever CPU
/// time it used.
const WALL_PER_BUDGET: u64 = 200;

/// A run in which less time passed than this is charged that, nanoseconds.
const SHORT_NS: u64 = 20_000;

/// Where a run happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a member, which a signal interrupted.
    Upcall,
    /// In an agent.
    Agent,
    /// In a thread of the service's own, where it may wait.
    Thread,
}

/// What became of an attempt to run a slot's handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// No event is due, or the slot is empty or revoked.
    Idle,
    /// Another thread runs it.
    Busy,
    /// The reservation is used up: the event is dropped and counted.
    Unpaid,
    /// The handler returned.
    Done,
    /// The handler asked to wait, or for what this member may not do: its run begins again in a
    /// thread, or in an agent.
    Promoted,
    /// The handler was aborted.
    Aborted,
}

/// What is due in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// The event of a run that was promoted to a thread; the record has it.
    Promoted,
    /// A posted event waits in the queue.
    Posted,
    /// The timer's.
    Timer(Event),
    /// A program's own call, or a descriptor that is ready: its kind and value.
    Call(u32, u64),
}

/// What is due at `now` for a run in this place, if anything. Changes nothing.
fn pending(service: &Service, control: &Control, place: Place, now: u64) -> Option<Due> {
    let promoted = control.promoted.load(Acquire);
    match place {
        Place::Thread if promoted == abi::MAY_WAIT => return Some(Due::Promoted),
        Place::Agent if promoted == abi::FOR_AGENT => return Some(Due::Promoted),
        Place::Thread if service.flags & THREAD == 0 => return None,
        Place::Upcall | Place::Agent if promoted != 0 || service.flags & THREAD != 0 => return None,
        Place::Upcall if service.flags & PURE == 0 || control.agents_only.load(Relaxed) != 0 => return None,
        _ => {}
    }
    if control.queue.is_waiting() {
        return Some(Due::Posted);
    }
    let due = control.due.load(Acquire);
    // Ticks come a little before or after the time that the last run reckoned with.
    if due == 0 || service.period_ns == 0 || now + service.period_ns / 4 < due {
        return None;
    }
    Some(Due::Timer(Event { kind: TIMER, lost: 0, due_ns: due, now_ns: now, value: 0 }))
}

/// An agent that takes so many ticks in a row of a service that members may run moves the next one
/// by this part of the period.
const MOVES: u32 = 8;

/// Takes the ticks that are due, as one event. The next one is due at its own time, however late
/// these are. Only while agents take all ticks of a service that members may run, its times move by
/// a sixty-fourth of the period each: due times that always fall right after a processor's tick
/// would leave every run to the agents.
fn take_ticks(service: &Service, control: &Control, event: &mut Event, place: Place) {
    let period = service.period_ns.max(1);
    let merged = event.now_ns.saturating_sub(event.due_ns) / period;
    let mut next = event.due_ns.saturating_add(merged.saturating_add(1).saturating_mul(period));
    match place {
        Place::Upcall => control.moved.store(0, Relaxed),
        Place::Agent if service.flags & PURE != 0 => {
            if (control.moved.fetch_add(1, Relaxed) + 1).is_multiple_of(MOVES) {
                next = next.saturating_add(period / u64::from(MOVES));
            }
        }
        Place::Agent | Place::Thread => {}
    }
    control.due.store(next, Release);
    control.ticks_due.fetch_add(merged + 1, Relaxed);
    control.ticks_merged.fetch_add(merged, Release);
    let lost = control.ticks_lost.swap(0, Relaxed).saturating_add(merged);
    event.lost = lost.min(u64::from(u32::MAX)) as u32;
}

/// The run of an event does not begin.
fn miss(control: &Control, event: Option<Event>) {
    if let Some(event) = event.filter(|event| event.kind == TIMER) {
        control.ticks_missed.fetch_add(1, Release);
        control.ticks_lost.fetch_add(u64::from(event.lost) + 1, Relaxed);
    }
}

/// Whether the reservation covers one more run; begins the next window where this one is over.
fn is_paid(service: &Service, control: &Control, now: u64) -> bool {
    let began = control.window_began.load(Relaxed);
    // A time in the future is none that the library wrote.
    if began > now || now - began >= service.window_ns.max(1) {
        control.window_began.store(now, Relaxed);
        control.spent_ns.store(0, Relaxed);
    }
    control.spent_ns.load(Relaxed) < service.reserve_ns
}

/// Lets the calling thread, which runs nothing but this slot, take faults on the slot's stack from
/// now on.
///
/// # Safety
/// The slot is open for good in this process, which is a thread's.
pub(crate) unsafe fn keep_stack(slot: usize) {
    let bottom = abi::PROTECTED + slot % abi::SLOTS * abi::SLOT;
    let stack = [(bottom + abi::FAULT_STACK_AT) as u64, 0, abi::FAULT_STACK_LEN as u64];
    if sys::set_alternate_stack(&stack) >= 0 {
        // SAFETY: the process has its own private part; the word is atomic.
        unsafe { (*abi::private()).kept.store(slot as u32, Relaxed) };
    }
}

/// Whether an event of a slot may be due for its thread: else it sleeps without reading the
/// clock.
pub(crate) fn may_be_due(control: &Control) -> bool {
    control.queue.is_waiting() || control.promoted.load(Acquire) != 0 || control.due.load(Relaxed) != 0
}

/// Runs a slot's handler if an event of it is due.
pub fn attempt(slot: usize, place: Place) -> Attempt {
    attempt_for(slot, place, None).0
}

/// Runs a slot's handler for a call of the program that this thread belongs to, with this value.
/// Answers what the handler does.
pub(crate) fn direct(slot: usize, value: u64) -> (Attempt, i64) {
    attempt_for(slot, Place::Upcall, Some((abi::POSTED, value)))
}

/// Runs a slot's handler in its thread, since this descriptor of it is ready.
pub(crate) fn readable(slot: usize, place: u64) -> Attempt {
    attempt_for(slot, Place::Thread, Some((abi::READABLE, place))).0
}

fn attempt_for(slot: usize, place: Place, called: Option<(u32, u64)>) -> (Attempt, i64) {
    let slot = slot % abi::SLOTS;
    let (service, control) = (&abi::directory().services[slot], abi::control(slot));
    if service.state.load(Acquire) != LIVE {
        return (Attempt::Idle, 0);
    }
    let now = sys::now();
    if called.is_none() && pending(service, control, place, now).is_none() {
        return (Attempt::Idle, 0);
    }
    let (me, thread) = claim();
    let raised = (place == Place::Upcall && service.flags & RAISE != 0).then(|| Raised::new(thread, service.priority));
    let mut run = Claimed { slot, place, thread, now, own: None, answer: 0 };
    let outcome = if control.runner.compare_exchange(0, me, SeqCst, Relaxed).is_err() {
        Attempt::Busy
    } else {
        let outcome = run.begin(called);
        control.began.store(0, Relaxed);
        control.runner.store(0, SeqCst);
        // Raised by an agent, since it was preempted: see `agent`, which checks the claim after.
        if control.raised.load(SeqCst) == me && control.raised.swap(0, SeqCst) == me {
            sys::set_priority(thread, 0);
        }
        outcome
    };
    if let Some(raised) = raised {
        raised.lower(run.own);
    } else if let Some(priority) = run.own {
        sys::set_priority(thread, priority);
    }
    (outcome, run.answer)
}

/// What this thread claims slots with, and the thread.
pub(crate) fn claim() -> (u64, i32) {
    // SAFETY: a member has its own private part; the word is atomic.
    let known = unsafe { (*abi::private()).claim.load(Relaxed) };
    if known != 0 {
        return (known, known as u32 as i32);
    }
    let thread = sys::thread();
    ((sys::process() as u64) << 32 | thread as u32 as u64, thread)
}

/// The thread's priority, raised for the run.
struct Raised {
    thread: i32,
    before: i32,
}

impl Raised {
    fn new(thread: i32, to: i32) -> Raised {
        let before = sys::priority(thread).max(0) as i32;
        // Without the right to, the run happens at the member's own priority.
        sys::set_priority(thread, to);
        Raised { thread, before }
    }

    /// What the handler set for this thread, else what it was.
    fn lower(self, own: Option<i32>) {
        sys::set_priority(self.thread, own.unwrap_or(self.before));
    }
}

/// A slot whose claim is this thread's.
struct Claimed {
    slot: usize,
    place: Place,
    thread: i32,
    now: u64,
    /// The priority that the handler set for this thread.
    own: Option<i32>,
    /// What the handler answered.
    answer: i64,
}

impl Claimed {
    /// Checks again, for another may have handled the event meanwhile; runs the handler for what is
    /// due.
    fn begin(&mut self, called: Option<(u32, u64)>) -> Attempt {
        let (service, control) = (&abi::directory().services[self.slot], abi::control(self.slot));
        let now = self.now;
        let posted = |kind, lost, value| Some(Event { kind, lost, due_ns: now, now_ns: now, value });
        let mut call = 0;
        // The record has the event of a run that waits for its thread.
        if called.is_some() && control.promoted.load(Acquire) != 0 {
            return Attempt::Busy;
        }
        let called = called.map(|(kind, value)| Due::Call(kind, value));
        let due = called.or_else(|| pending(service, control, self.place, now));
        let event = match due {
            None => return Attempt::Idle,
            Some(Due::Promoted) => {
                control.promoted.store(0, Release);
                None
            }
            Some(Due::Posted) => match control.queue.take() {
                None => return Attempt::Idle,
                Some(taken) => {
                    call = taken.call;
                    posted(taken.kind, taken.lost, taken.value)
                }
            },
            Some(Due::Call(kind, value)) => posted(kind, 0, value),
            Some(Due::Timer(mut event)) => {
                take_ticks(service, control, &mut event, self.place);
                Some(event)
            }
        };
        let outcome = self.run(service, control, event, &mut call);
        if call != 0 && outcome != Attempt::Promoted {
            direct::finish(control, call, outcome, self.answer);
        }
        outcome
    }

    /// Runs the handler within its reservation. `waiting`: the call that waits for the end; of a
    /// run that begins again it is found here.
    fn run(&mut self, service: &Service, control: &Control, event: Option<Event>, waiting: &mut u64) -> Attempt {
        let now = self.now;
        if !is_paid(service, control, now) {
            control.unpaid.fetch_add(1, Relaxed);
            miss(control, event);
            return Attempt::Unpaid;
        }
        let Ok(opened) = gate::open(self.slot) else {
            control.failed.fetch_add(1, Relaxed);
            miss(control, event);
            return Attempt::Idle;
        };
        let (record, run) = (abi::record(self.slot), abi::run(self.slot));
        // SAFETY: the slot is open and claimed by this thread, so its record and its run are this
        // thread's until it is released.
        let (event, (cause, cost)) = unsafe {
            // A run that begins again in a thread has the event that it had before.
            let event = match event {
                Some(event) => {
                    (*record).call = *waiting;
                    event
                }
                None => {
                    *waiting = (*record).call;
                    (*record).event
                }
            };
            ((*run).may_wait, (*run).is_upcall) =
                (u32::from(self.place == Place::Thread), u32::from(self.place == Place::Upcall));
            ((*run).answer, (*run).slot) = (0, self.slot as u32);
            (*record).event = event;
            (event, call(self.slot, run, service, self.place, self.thread, now))
        };
        // SAFETY: as above.
        unsafe {
            self.own = ((*run).own_set != 0).then_some((*run).own_priority);
            self.answer = (*run).answer;
        }
        gate::close(opened);
        if self.place == Place::Upcall {
            control.upcalls.fetch_add(1, Relaxed);
        }
        if cause == abi::PROMOTED || cause == abi::ELSEWHERE {
            control.cpu_ns.fetch_add(cost, Relaxed);
            control.spent_ns.fetch_add(cost, Relaxed);
            if cause == abi::ELSEWHERE {
                control.promoted.store(abi::FOR_AGENT, Release);
                return Attempt::Promoted;
            }
            control.promotions.fetch_add(1, Relaxed);
            control.promoted.store(abi::MAY_WAIT, Release);
            control.wake.fetch_add(1, Release);
            sys::wake(&control.wake);
            return Attempt::Promoted;
        }
        charge(control, &event, cost, cause, service);
        if control.followed.load(Relaxed) != 0 {
            control.ran.fetch_add(1, Release);
            sys::wake(&control.ran);
        }
        if cause == 0 { Attempt::Done } else { Attempt::Aborted }
    }
}

/// Charges a thread's wait on its CPU. Once the reservation is used up it sleeps at once: the
/// window's next run begins a new one.
pub(crate) fn charge_wait(service: &Service, control: &Control, spent_ns: u64, misses: &AtomicU32) {
    if spent_ns == 0 {
        return;
    }
    control.cpu_ns.fetch_add(spent_ns, Relaxed);
    if control.spent_ns.fetch_add(spent_ns, Relaxed).saturating_add(spent_ns) >= service.reserve_ns {
        misses.store(spin::LEFT_OUT, Relaxed);
    }
}

/// Adds a run to the slot's counters.
fn charge(control: &Control, event: &Event, cost: u64, cause: u32, service: &Service) {
    let nth = control.runs.fetch_add(1, Relaxed) as usize % abi::KEPT;
    control.cpu_ns.fetch_add(cost, Relaxed);
    control.spent_ns.fetch_add(cost, Relaxed);
    let short = |ns: u64| ns.min(u64::from(u32::MAX)) as u32;
    control.delays[nth].store(short(event.now_ns.saturating_sub(event.due_ns)), Relaxed);
    control.costs[nth].store(short(cost), Relaxed);
    match cause {
        0 => {}
        abi::OVERRUN => {
            control.overruns.fetch_add(1, Relaxed);
            control.latest_overrun_ns.store(cost.saturating_sub(service.budget_ns), Relaxed);
        }
        _ => {
            control.faults.fetch_add(1, Relaxed);
        }
    }
}

/// Calls the handler under its budget. Answers why it was aborted (0: it was not), and the CPU time
/// it took.
///
/// # Safety
/// The slot is open and claimed by this thread; `run` is its run, and its record has the event.
unsafe fn call(slot: usize, run: *mut Run, service: &Service, place: Place, thread: i32, now: u64) -> (u32, u64) {
    let bottom = abi::PROTECTED + slot * abi::SLOT;
    let record = abi::record(slot);
    // SAFETY: the caller's promise. The handler runs on a stack of the slot, and a jump out of it
    // ends at the landing of this very call.
    unsafe {
        let r = &mut *run;
        (r.cause, r.pending, r.own_set, r.thread) = (0, 0, 0, thread);
        r.checked = 0;
        r.in_call.store(0, Relaxed);
        r.fault_stack = [(bottom + abi::FAULT_STACK_AT) as u64, 0, abi::FAULT_STACK_LEN as u64];
        r.cpu_began = sys::clock(sys::THREAD_CPU);
        r.ticks_began = sys::ticks();
        r.began = now;
        r.keeps_stack = u64::from(place == Place::Thread && (*abi::private()).kept.load(Relaxed) == slot as u32);
        let control = abi::control(slot);
        // The lowest bit says that it is an upcall, which an agent may check.
        control.began.store(if place == Place::Upcall { now | 1 } else { now & !1 }, SeqCst);
        r.timer = match bound::begin(control, place, service.budget_ns, thread, slot, now) {
            Ok(timer) => timer,
            // A run that cannot be bounded does not happen.
            Err(_) => return (abi::OVERRUN, 0),
        };
        let stack = (bottom + abi::FAULT_STACK_AT) as u64;
        let cause = on_stack(run, stack, service.entry, &raw const (*record).context, &raw const (*record).event);
        if (*run).keeps_stack == 0 {
            sys::set_alternate_stack(&(*run).own_stack);
        }
        let cost = cost(&*run);
        bound::end(place, (*run).timer);
        (cause, cost)
    }
}

/// CPU time of a run that is over. A short one is charged the time that passed, which is cheaper to
/// read than the CPU clock.
fn cost(run: &Run) -> u64 {
    let tick_ns = abi::directory().tick_ns;
    // A thread that moved to a CPU whose counter is behind has a time that is no short one.
    let passed = sys::ticks().wrapping_sub(run.ticks_began).checked_mul(tick_ns).map(|ns| ns >> 16);
    match passed {
        Some(passed) if tick_ns != 0 && passed < SHORT_NS => passed,
        _ => sys::clock(sys::THREAD_CPU).saturating_sub(run.cpu_began),
    }
}

/// Whether the budget of a run in progress is used up. `None`: yes; else the nanoseconds until the
/// next check.
pub(crate) fn remaining(run: &Run) -> Option<u64> {
    let budget_ns = abi::directory().services[run.slot as usize % abi::SLOTS].budget_ns;
    let used = sys::clock(sys::THREAD_CPU).saturating_sub(run.cpu_began);
    let passed = sys::now().saturating_sub(run.began);
    let is_over = used >= budget_ns || run.may_wait == 0 && passed >= budget_ns.saturating_mul(WALL_PER_BUDGET);
    // A run that may wait is checked less often: its clock stands still while it waits.
    let least = if run.may_wait == 0 { 10_000 } else { 10_000_000 };
    (!is_over).then(|| (budget_ns - used).max(least))
}

/// Ends a call of the library: an abort that waited for it happens now.
///
/// # Safety
/// `run` is the one that this thread is in.
pub(crate) unsafe fn leave(run: *mut Run) {
    // SAFETY: the caller's promise: `on_stack` has not returned.
    unsafe {
        if (*run).pending != 0 {
            (*run).cause = (*run).pending;
            jump(end_of(run), run);
        }
    }
}

/// The stack pointer at which a run ends. If it was overwritten, the process ends by `SIGILL`:
/// nothing is known that could continue.
///
/// # Safety
/// `run` is the one that this thread is in.
pub(crate) unsafe fn end_of(run: *mut Run) -> u64 {
    // SAFETY: the caller's promise.
    let (pointer, check) = unsafe { ((*run).stack_pointer, (*run).stack_check) };
    if pointer != !check {
        sys::stop_here();
    }
    pointer
}

/// Where an abort continues, with the run in rbx and its stack pointer in rsp: the address of
/// [`landing`], which is code, and stored nowhere.
pub(crate) fn end_address() -> u64 {
    landing as *const () as u64
}

/// Whether the slot has a service that may still be due.
pub fn is_live(slot: usize) -> bool {
    !matches!(abi::directory().services[slot % abi::SLOTS].state.load(Acquire), EMPTY | abi::REVOKED)
}

/// Calls `entry(context, event)` on another stack, with the run's stack for faults; answers the
/// cause of an abort, or 0.
///
/// `sigaltstack` is called, unless the thread keeps it, on the new stack, since the kernel refuses
/// it to a thread that is on its alternate stack. The thread's own one is put back by the caller:
/// the kernel does so when a signal handler returns, but not in a program whose alternate stack was
/// inherited across an exec, where it has size 0 and is not marked as disabled.
///
/// After the handler nothing is taken from the registers that it was to keep: the run is found by
/// the stack, and what is no stack of a slot is an illegal instruction, that is, an abort.
///
/// # Safety
/// All pointers are those of one slot that is open; `stack` is the end of a stack, 16-byte aligned.
#[unsafe(naked)]
unsafe extern "C" fn on_stack(
    run: *mut Run,
    stack: u64,
    entry: u64,
    context: *const abi::Context,
    event: *const Event,
) -> u32 {
    naked_asm!(
        "push rbp", "push rbx", "push r12", "push r13", "push r14", "push r15",
        "mov [rdi + {stack_pointer}], rsp",
        "mov rax, rsp",
        "not rax",
        "mov [rdi + {stack_check}], rax",
        "mov rbx, rdi", "mov r12, rdx", "mov r13, rcx", "mov r14, r8",
        "mov rsp, rsi",
        "cmp qword ptr [rbx + {keeps_stack}], 0",
        "jne 4f",
        "lea rdi, [rbx + {fault_stack}]",
        "lea rsi, [rbx + {own_stack}]",
        "mov eax, 131",
        "syscall",
        "4:",
        "mov rdi, r13", "mov rsi, r14",
        "mov dword ptr [rbx + {active}], 1",
        "call r12",
        "mov rbx, rsp",
        "movabs rax, {protected}",
        "sub rbx, rax",
        "shr rbx, {bits}",
        "cmp rbx, {slots}",
        "jae 5f",
        "imul rbx, rbx, {length}",
        "movabs rax, {runs}",
        "add rbx, rax",
        "mov rax, [rbx + {stack_pointer}]",
        "mov rcx, [rbx + {stack_check}]",
        "not rcx",
        "cmp rax, rcx",
        "jne 5f",
        "mov rsp, rax",
        "mov dword ptr [rbx + {cause}], 0",
        "jmp {landing}",
        "5:",
        "ud2",
        stack_pointer = const offset_of!(Run, stack_pointer),
        stack_check = const offset_of!(Run, stack_check),
        fault_stack = const offset_of!(Run, fault_stack),
        own_stack = const offset_of!(Run, own_stack),
        keeps_stack = const offset_of!(Run, keeps_stack),
        active = const offset_of!(Run, active),
        cause = const offset_of!(Run, cause),
        protected = const abi::PROTECTED,
        bits = const abi::SLOT_BITS,
        slots = const abi::SLOTS,
        length = const size_of::<Run>(),
        runs = const abi::PRIVATE + offset_of!(abi::Private, runs),
        landing = sym landing,
    )
}

/// The end of a run: of one that returned, and of one that is aborted.
///
/// # Safety
/// Jumped to, with the run of this thread in rbx and its stack pointer in rsp.
#[unsafe(naked)]
unsafe extern "C" fn landing() {
    naked_asm!(
        "cld",
        "mov dword ptr [rbx + {active}], 0",
        "mov eax, [rbx + {cause}]",
        "pop r15", "pop r14", "pop r13", "pop r12", "pop rbx", "pop rbp",
        "ret",
        active = const offset_of!(Run, active),
        cause = const offset_of!(Run, cause),
    )
}

/// Continues at [`landing`].
///
/// # Safety
/// The stack pointer is that of a call of `on_stack` on this thread that has not returned, and the
/// run its run.
#[unsafe(naked)]
unsafe extern "C" fn jump(stack_pointer: u64, run: *mut Run) -> ! {
    naked_asm!("mov rbx, rsi", "mov rsp, rdi", "jmp {landing}", landing = sym landing)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However late ticks are taken and whether their runs are paid for: each is counted once, as
    /// one that ran, was merged or was missed, the handler learns of those that it did not get,
    /// and the times do not drift.
    #[test]
    fn each_tick_is_counted_once_and_due_at_its_own_time() {
        // SAFETY: both structures consist of integers and atomics, for which zeros are a value.
        let (mut service, control) = unsafe { (core::mem::zeroed::<Service>(), core::mem::zeroed::<Control>()) };
        service.period_ns = 1000;
        control.due.store(5000, Relaxed);
        let (mut now, mut ran, mut reported) = (5000u64, 0u64, 0u64);
        let mut random = orbit_testing::Random::new(88_172_645_463_325_252);
        for _ in 0..10_000 {
            let drawn = random.draw();
            now += drawn % 2500;
            if let Some(Due::Timer(mut event)) = pending(&service, &control, Place::Agent, now) {
                take_ticks(&service, &control, &mut event, Place::Agent);
                if drawn.is_multiple_of(4) {
                    miss(&control, Some(event));
                } else {
                    ran += 1;
                    reported += u64::from(event.lost);
                }
            }
            let (due, merged, missed) = (
                control.ticks_due.load(Relaxed),
                control.ticks_merged.load(Relaxed),
                control.ticks_missed.load(Relaxed),
            );
            assert_eq!(ran + merged + missed, due);
            assert_eq!(ran + reported + control.ticks_lost.load(Relaxed), due, "what handlers learnt");
            assert_eq!(control.due.load(Relaxed), 5000 + due * 1000);
        }
        assert!(ran > 1000 && control.ticks_merged.load(Relaxed) > 1000 && control.ticks_missed.load(Relaxed) > 1000);
    }
}
