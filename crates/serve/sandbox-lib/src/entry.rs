//! The ways into the region: signal handlers of members and agents.
//!
//! - `upcall`: an event may be due. Runs what is, in the interrupted thread.
//! - `over_budget`: a budget's timer fired. If the CPU time is used up, the handler is aborted: the
//!   frame that this signal interrupted is rewritten to continue at the end of the run, so the
//!   kernel itself restores every register, mask and key of the upcall.
//! - `fault`: an illegal access. In a handler it aborts it; elsewhere the process's own action is
//!   taken.
//!
//! Whether a signal met a handler is known by where its frame is: handlers take these two signals
//! on a stack in their slot.

use crate::abi::{self, OVERRUN, Run};
use crate::run::{self, Place};
use crate::{bound, sys};
use core::arch::naked_asm;
use core::sync::atomic::Ordering::Relaxed;

// Offsets in the kernel's frame: `struct ucontext`, its general registers after 40 bytes.
const REGISTERS: usize = 40;
const RBX: usize = REGISTERS + 11 * 8;
const RSP: usize = REGISTERS + 15 * 8;
const RIP: usize = REGISTERS + 16 * 8;
const FLAGS: usize = REGISTERS + 17 * 8;
/// Direction, trap and alignment check: not to be carried over to the library.
const FLAGS_OF_HANDLER: u64 = 0x400 | 0x100 | 0x4_0000;
/// `si_code` in `siginfo_t`, and the code of a timer.
const SIGNAL_CODE: usize = 8;
const OF_TIMER: i32 = -2;
/// `si_tid` in `siginfo_t`: the timer.
const SIGNAL_TIMER: usize = 16;

/// `SA_SIGINFO`.
const WITH_INFO: u64 = 4;
/// `SA_RESTORER`.
const WITH_RESTORER: u64 = 0x0400_0000;
/// `SA_ONSTACK`.
const ON_STACK: u64 = 0x0800_0000;
/// `SA_RESTART`.
const RESTART: u64 = 0x1000_0000;

/// Jumps to a signal's handler. The kernel starts handlers with all protection keys denied, also on
/// a stack that has one: on the stack of a slot, in a process that has keys, they are allowed
/// first, without a word on that stack. When the handler returns, the kernel puts back what was
/// interrupted.
macro_rules! behind_the_gate {
    ($handler:ident) => {
        naked_asm!(
            "mov r8, rdx",
            "mov r9, rsp",
            "movabs rax, {protected}",
            "sub r9, rax",
            "cmp r9, {length}",
            "jae 2f",
            "movabs rax, {keyed}",
            "cmp dword ptr [rax], 0",
            "je 2f",
            "xor eax, eax", "xor ecx, ecx", "xor edx, edx",
            "wrpkru",
            "2:",
            "mov rdx, r8",
            "jmp {handler}",
            protected = const abi::PROTECTED,
            length = const abi::PROTECTED_LEN,
            keyed = const abi::PRIVATE + core::mem::offset_of!(abi::Private, keyed),
            handler = sym $handler,
        )
    };
}

/// The signals that stay open in a handler: the budget's, and faults.
fn open_in_handlers() -> u64 {
    let bit = |signal: i32| 1u64 << (signal - 1);
    abi::FAULTS.iter().fold(bit(abi::directory().budget_signal), |mask, signal| mask | bit(*signal))
}

/// The kernel's action for each signal of a member: signal, then handler, flags, restorer, mask.
pub fn actions(directory: &abi::Directory) -> [(i32, [u64; 4]); 6] {
    let bit = |signal: i32| 1u64 << (signal - 1);
    let open = abi::FAULTS.iter().fold(bit(directory.budget_signal), |mask, signal| mask | bit(*signal));
    let flags = WITH_INFO | WITH_RESTORER | ON_STACK | RESTART;
    let library = &directory.library;
    let of = |signal, handler, mask| (signal, [handler, flags, library.restorer, mask]);
    let [a, b, c, d] = abi::FAULTS.map(|signal| of(signal, library.fault, !0));
    [
        of(directory.upcall_signal, library.upcall, !open),
        of(directory.budget_signal, library.over_budget, !0),
        a,
        b,
        c,
        d,
    ]
}

/// An event may be due: runs every slot whose event is.
///
/// # Safety
/// Called by the kernel as the handler of the upcall signal, in a member.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub unsafe extern "C" fn orbit_upcall(signal: i32, info: usize, frame: usize) {
    let urgent = signal == abi::URGENT;
    // SAFETY: the kernel's description of the signal.
    if !urgent || unsafe { is_of_a_descriptor(info) } {
        run_slots();
    }
    if urgent {
        // A signal that the program sent while a clock's was pending becomes one with it and leaves
        // no trace. Go's runtime sends no second one before the first was handled.
        // SAFETY: what the kernel called this handler with.
        unsafe { call_handler_of_program(signal, info, frame) };
    }
}

/// Runs every slot whose event is due.
fn run_slots() {
    // SAFETY: a member has its own page; other threads of it change the counter too, which is
    // atomic.
    unsafe { (*abi::private()).upcalls.fetch_add(1, Relaxed) };
    if !has_faults() {
        return;
    }
    for slot in abi::FIRST_SERVICE..abi::SLOTS {
        run::attempt(slot, Place::Upcall);
    }
}

/// Whether an event of a descriptor, which a clock is, caused this signal.
///
/// # Safety
/// `info` is the kernel's description of a signal.
unsafe fn is_of_a_descriptor(info: usize) -> bool {
    // POLL_IN to POLL_HUP.
    const OF_DESCRIPTORS: core::ops::RangeInclusive<i32> = 1..=6;
    // SAFETY: the caller's promise; the offset is the kernel's.
    OF_DESCRIPTORS.contains(unsafe { &*((info + SIGNAL_CODE) as *const i32) })
}

/// Calls the handler that the program had for this signal when it joined, if it had one.
///
/// # Safety
/// What the kernel calls a handler with.
unsafe fn call_handler_of_program(signal: i32, info: usize, frame: usize) {
    // SAFETY: a member has its own private part; its former handler was one of this signature.
    unsafe {
        let before = (*abi::private()).actions[abi::FAULTS.len()][0];
        if before > 1 {
            let handler: extern "C" fn(i32, usize, usize) = core::mem::transmute(before as usize);
            handler(signal, info, frame);
        }
    }
}

/// Whether faults still come to the library: a program that installed handlers of its own since it
/// joined gets no upcalls, since a wild handler would be taken for its own fault.
pub(crate) fn has_faults() -> bool {
    let mut present = [0u64; 4];
    sys::action(abi::FAULTS[0], None, Some(&mut present));
    abi::PUBLIC as u64 <= present[0] && present[0] < (abi::PUBLIC + abi::PUBLIC_LEN) as u64
}

/// A budget's timer fired, or an agent found a run over its budget.
///
/// # Safety
/// Called by the kernel as the handler of the budget's signal, in a member or an agent.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn orbit_over_budget(_signal: i32, _info: usize, _frame: usize) {
    behind_the_gate!(over_budget)
}

/// As [`orbit_over_budget`], once the stack that it runs on is open.
///
/// # Safety
/// As for that.
unsafe extern "C" fn over_budget(_signal: i32, info: usize, frame: usize) {
    let Some(slot) = abi::slot_at(frame) else {
        // SAFETY: the kernel's description of the signal.
        return unsafe { outside_of_handlers(info) };
    };
    let run = abi::run(slot);
    // SAFETY: the frame is on that slot's stack for faults, so this thread runs its handler.
    unsafe {
        if (*run).active.load(Relaxed) == 0 {
            return outside_of_handlers(info);
        }
        match run::remaining(&*run) {
            None => abort(run, frame, OVERRUN),
            Some(ns) if (*run).timer >= 0 => bound::arm((*run).timer, ns, sys::now()),
            // One that cannot be made is made up for by the agent, which signals again.
            Some(ns) => (*run).timer = bound::own_timer(ns, (*run).thread, slot).unwrap_or(bound::NONE),
        }
    }
}

/// A timer fired before its handler began, or after it returned. In the first case it must fire
/// again.
///
/// # Safety
/// `info` is the kernel's description of a signal.
unsafe fn outside_of_handlers(info: usize) {
    // SAFETY: the caller's promise; the offsets are the kernel's.
    let (code, timer) =
        unsafe { (((info + SIGNAL_CODE) as *const i32).read(), ((info + SIGNAL_TIMER) as *const i32).read()) };
    if code != OF_TIMER {
        return;
    }
    let (me, _) = run::claim();
    let running = (abi::FIRST_SERVICE..abi::SLOTS).find(|slot| {
        let control = abi::control(*slot);
        control.runner.load(Relaxed) == me && control.began.load(Relaxed) != 0
    });
    match running {
        Some(slot) => bound::arm(timer, abi::directory().services[slot].budget_ns, sys::now()),
        None => bound::fired(),
    }
}

/// An illegal access or instruction.
///
/// # Safety
/// Called by the kernel as the handler of one of [`abi::FAULTS`], in a member or an agent.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn orbit_fault(_signal: i32, _info: usize, _frame: usize) {
    behind_the_gate!(fault)
}

/// As [`orbit_fault`], once the stack that it runs on is open.
///
/// # Safety
/// As for that.
unsafe extern "C" fn fault(signal: i32, info: usize, frame: usize) {
    // SAFETY: as for `orbit_over_budget`; else the process's own page says what it had for this
    // signal.
    unsafe {
        if let Some(slot) = abi::slot_at(frame) {
            let run = abi::run(slot);
            if (*run).active.load(Relaxed) != 0 {
                return abort(run, frame, signal as u32);
            }
        }
        let Some(at) = abi::FAULTS.iter().position(|fault| *fault == signal) else { return };
        let before = &(*abi::private()).actions[at];
        match before[0] {
            // The default, or to ignore it, which the kernel does not do for faults: the
            // instruction is run again and has the effect it would have had.
            0 | 1 => {
                let default = [0, WITH_RESTORER, before[2], 0];
                sys::action(signal, Some(&default), None);
            }
            handler => {
                let handler: extern "C" fn(i32, usize, usize) = core::mem::transmute(handler as usize);
                handler(signal, info, frame);
            }
        }
    }
}

/// Lets the frame continue at the end of the run, now or when the library's call that was
/// interrupted is over.
///
/// # Safety
/// The run is this thread's, and `frame` the kernel's frame of a signal that interrupted its
/// handler.
unsafe fn abort(run: *mut Run, frame: usize, cause: u32) {
    // SAFETY: the caller's promise; the offsets are the kernel's.
    unsafe {
        // A fault within a call is one of the service's pointers: the call will not end by itself.
        if (*run).in_call.load(Relaxed) != 0 && cause == OVERRUN {
            (*run).pending = cause;
            return;
        }
        (*run).cause = cause;
        let word = |at: usize| (frame + at) as *mut u64;
        *word(RBX) = run as u64;
        *word(RSP) = run::end_of(run);
        *word(RIP) = run::end_address();
        *word(FLAGS) &= !FLAGS_OF_HANDLER;
    }
}

/// The mask of an agent: what an upcall's handler would run with.
pub fn agent_mask() -> u64 {
    !open_in_handlers()
}

/// Ends a signal handler (`rt_sigreturn`). The kernel demands one on x86-64, and libc's has another
/// address in each member.
///
/// # Safety
/// Returned to by a signal handler, with the kernel's frame on the stack.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn orbit_restorer() {
    naked_asm!("mov eax, 15", "syscall")
}
