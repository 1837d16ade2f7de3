//! What services import from the library: `orbit_service.h` declares it.
//!
//! The service that calls is known by its stack, which lies in its slot: it cannot name another. A
//! call that an abort falls into is finished first, so the library's own state is never
//! half-written.

use crate::abi::{self, Grant, Run};
use crate::control::Control;
use crate::guard::Verdict;
use crate::question::Answer;
use crate::{attribute, bound, run, sys};
use core::sync::atomic::Ordering::Relaxed;

/// `-EACCES`: the handle lacks the right.
pub(crate) const NO_RIGHT: i64 = -13;
/// `-EBADF`: the number is no handle of this service.
pub(crate) const NO_HANDLE: i64 = -9;
/// `-ERANGE`: the guard refused the value.
const OUT_OF_RANGE: i64 = -34;
/// `-ENOENT`: no question of this number waits.
const NO_QUESTION: i64 = -2;
/// `-EPERM` and `-EACCES`: the process that the handler runs in may not do that.
const DENIED: [i64; 2] = [-1, -13];
/// Bytes of a block's header.
const HEADER: u64 = 16;

/// The slot whose stack this is; `None` outside of handlers.
fn slot() -> Option<usize> {
    let here = 0u8;
    abi::slot_at(&raw const here as usize)
}

/// Does something in a call: an abort that comes meanwhile happens at its end. Without a handler it
/// answers `-EBADF`.
pub(crate) fn within(body: impl FnOnce(usize, &mut Run) -> i64) -> i64 {
    let Some(slot) = slot() else { return NO_HANDLE };
    let run = abi::run(slot);
    // SAFETY: this code runs on the stack of that slot, so this thread runs its handler: nobody
    // else uses the run, but for the signal handlers of this thread, which touch `pending` and
    // `cause` only.
    let result = unsafe {
        (*run).in_call.store(1, Relaxed);
        let result = body(slot, &mut *run);
        (*run).in_call.store(0, Relaxed);
        result
    };
    // SAFETY: this thread's run, as above.
    unsafe { run::leave(run) };
    result
}

/// The grant of this handle.
fn grant(slot: usize, handle: u64) -> Option<&'static Grant> {
    let service = &abi::directory().services[slot % abi::SLOTS];
    let granted = (service.grants as usize).min(abi::GRANTS);
    let found = service.grant[..granted].iter().find(|grant| grant.handle == handle && handle != 0);
    if found.is_none() {
        abi::control(slot).forged.fetch_add(1, Relaxed);
    }
    found
}

/// Notes what was set, so that it is put back.
fn note(grant: &Grant, value: i64) {
    if let Some(set) = abi::sets().get(grant.entry as usize) {
        set.note(value);
    }
}

/// Monotonic time, nanoseconds.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub extern "C" fn orbit_now() -> u64 {
    sys::now()
}

/// Reads an attribute into `*value`. 0, or `-EBADF`, `-EACCES`, `-ESRCH`.
///
/// # Safety
/// `value` points to eight bytes that may be written.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub unsafe extern "C" fn orbit_get(handle: u64, value: *mut i64) -> i64 {
    within(|slot, run| {
        let Some(grant) = grant(slot, handle) else { return NO_HANDLE };
        if grant.rights & abi::GET == 0 {
            return NO_RIGHT;
        }
        match attribute::check(grant, run).and_then(|()| attribute::read(grant.class, grant.target, abi::table())) {
            Ok(read) => {
                // SAFETY: the caller's promise; a pointer that breaks it is a fault in a handler,
                // which aborts it.
                unsafe { *value = read };
                0
            }
            Err(error) => error,
        }
    })
}

/// Asks for a value. 0 when it, or the nearest one that the guard allows, was applied; else
/// `-EBADF`, `-EACCES`, `-ERANGE` (the guard refused it), or what the kernel answered.
///
/// The priority of the interrupted thread itself is applied when the run is over: lowered at once,
/// the thread could be preempted in the middle of the run.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub extern "C" fn orbit_set(handle: u64, value: i64) -> i64 {
    within(|slot, run| {
        let Some(grant) = grant(slot, handle) else { return NO_HANDLE };
        if grant.rights & abi::SET == 0 {
            return NO_RIGHT;
        }
        let control = abi::control(slot);
        let value = match attribute::guard(grant).judge(value) {
            Verdict::Pass(value) => value,
            Verdict::Clamp(value) => {
                control.clamped.fetch_add(1, Relaxed);
                value
            }
            Verdict::OutOfRange | Verdict::NoRight => {
                control.refused.fetch_add(1, Relaxed);
                return OUT_OF_RANGE;
            }
        };
        if grant.class == attribute::CPU_PRIORITY && grant.target == run.thread {
            (run.own_set, run.own_priority) = (1, value as i32);
            note(grant, value);
            return 0;
        }
        let is_there = attribute::check(grant, run);
        match is_there.and_then(|()| attribute::apply(grant.class, grant.target, value, abi::table())) {
            Ok(()) => {
                note(grant, value);
                0
            }
            Err(error) => {
                // A handle is worth what the host may do, wherever the handler runs.
                if run.is_upcall != 0 && DENIED.contains(&error) {
                    control.agents_only.store(1, Relaxed);
                    run.pending = abi::ELSEWHERE;
                } else {
                    control.failed.fetch_add(1, Relaxed);
                }
                error
            }
        }
    })
}

/// What a caller of the service gets: see [`crate::direct`]. The last answer of a run counts. 0;
/// `-EBADF` outside of handlers.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub extern "C" fn orbit_return(value: i64) -> i64 {
    within(|_, run| {
        run.answer = value;
        0
    })
}

/// Says that the run is about to wait. In a thread of the service's own it answers 0. Elsewhere (an
/// upcall, an agent) it does not return: the event's run begins again, in that thread, from the
/// start of the handler. Outside of handlers `-EBADF`.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub extern "C" fn orbit_may_wait() -> i64 {
    within(|_, run| {
        if run.may_wait == 0 {
            run.pending = abi::PROMOTED;
        }
        0
    })
}

/// Waits for `ns` nanoseconds, as [`orbit_may_wait`] allows. 0; `-EBADF` outside of handlers.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub extern "C" fn orbit_sleep(ns: u64) -> i64 {
    let error = orbit_may_wait();
    let until = sys::now().saturating_add(ns);
    // The budget's timer would interrupt the sleep, and the interruptions would be charged.
    let arm = |ns: u64| {
        within(|_, run| {
            bound::arm(run.timer, ns, sys::now());
            0
        })
    };
    if error == 0 {
        arm(0);
        while sys::now() < until {
            sys::sleep_until(until);
        }
        arm(1);
    }
    error
}

/// One step of a share's controller: 1 if the process is owed CPU time, 0 if it is satisfied.
///
/// # Safety
/// `control` points to a `struct orbit_control`.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub unsafe extern "C" fn orbit_control_step(control: *mut Control, now_ns: u64, used_ns: u64) -> i32 {
    // SAFETY: the caller's promise; a pointer that breaks it is a fault in a handler, which aborts
    // it.
    i32::from(unsafe { (*control).step(now_ns, used_ns) })
}

/// Reads a question to this service into `*words`. 0; `-ENOENT` when it does not wait any more.
///
/// # Safety
/// `words` points to [`crate::question::WORDS`] words that may be written.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub unsafe extern "C" fn orbit_question(number: u64, words: *mut u64) -> i64 {
    within(|slot, _| {
        let Some(read) = abi::control(slot).questions.read(number) else { return NO_QUESTION };
        for (nth, word) in read.iter().enumerate() {
            // SAFETY: the caller's promise; a pointer that breaks it is a fault in a handler, which
            // aborts it.
            unsafe { words.add(nth).write_volatile(*word) };
        }
        0
    })
}

/// Answers a question to this service. 0; `-ENOENT` when nobody waits for the answer.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub extern "C" fn orbit_answer(number: u64, verdict: u32, result: i64) -> i64 {
    within(|slot, _| match abi::control(slot).questions.answer(number, Answer { verdict, result }) {
        Some(bell) => {
            sys::wake(bell);
            0
        }
        None => NO_QUESTION,
    })
}

/// Memory of the service's heap, 16-byte aligned, not cleared; null when it is used up.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub extern "C" fn orbit_alloc(bytes: u64) -> *mut u8 {
    within(|slot, _| {
        // SAFETY: the slot is open, since this code runs on its stack, and the record is in it. The
        // service may have written anything there: each word is checked before it is used.
        let record = unsafe { &mut *abi::record(slot) };
        let service = &abi::directory().services[slot % abi::SLOTS];
        let Some(size) = bytes.max(1).checked_next_multiple_of(16).filter(|size| *size < abi::SLOT as u64) else {
            return 0;
        };
        // The first free block that is large enough. A block is its size, the next free one, then
        // the memory.
        let mut link = &raw mut record.heap_free;
        // SAFETY: links point to headers in this service's own heap. A service that overwrote them
        // faults or loops, and is aborted for it when this call ends: the loop is bounded by the
        // number of blocks that fit.
        unsafe {
            for _ in 0..abi::SLOT as u64 / (2 * HEADER) {
                let block = *link;
                if block < service.heap || block >= service.heap_end {
                    break;
                }
                let header = block as *mut u64;
                if *header >= size {
                    *link = *header.add(1);
                    return (block + HEADER) as i64;
                }
                link = header.add(1);
            }
        }
        let at = record.heap_used.max(service.heap);
        if service.heap_end.saturating_sub(at) < size + HEADER {
            return 0;
        }
        record.heap_used = at + HEADER + size;
        // SAFETY: inside the heap, as just checked, and aligned since the heap's start and all
        // sizes are.
        unsafe { *(at as *mut u64) = size };
        (at + HEADER) as i64
    }) as *mut u8
}

/// Frees memory of [`orbit_alloc`]; null and what is not of this heap are ignored.
///
/// # Safety
/// `memory` was answered by `orbit_alloc` in this service and not freed since.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub unsafe extern "C" fn orbit_free(memory: *mut u8) {
    within(|slot, _| {
        // SAFETY: as in `orbit_alloc`.
        let record = unsafe { &mut *abi::record(slot) };
        let service = &abi::directory().services[slot % abi::SLOTS];
        let block = (memory as u64).wrapping_sub(HEADER);
        if block >= service.heap && block < record.heap_used.min(service.heap_end) && block.is_multiple_of(16) {
            // SAFETY: a block's header in this service's own heap, by the caller's promise.
            unsafe { *(block as *mut u64).add(1) = record.heap_free };
            record.heap_free = block;
        }
        0
    });
}

/// What compilers call for copies and comparisons of memory. Simple loops: services are small.
#[cfg(sandbox_object)]
mod memory {
    /// Copies.
    ///
    /// # Safety
    /// As C's `memcpy`.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's promise; the instruction copies that many bytes upwards.
        unsafe {
            core::arch::asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") to => _, inout("rsi") from => _,
                options(nostack, preserves_flags));
        }
        to
    }

    /// Copies between places that may overlap.
    ///
    /// # Safety
    /// As C's `memmove`.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
        if (to as usize).wrapping_sub(from as usize) >= bytes {
            // SAFETY: copying upwards overwrites nothing that is still to be read.
            return unsafe { memcpy(to, from, bytes) };
        }
        let mut left = bytes;
        while left > 0 {
            left -= 1;
            // SAFETY: the caller's promise. Volatile, or the compiler would make a call of memmove
            // of this loop.
            unsafe { to.add(left).write_volatile(from.add(left).read_volatile()) };
        }
        to
    }

    /// Fills.
    ///
    /// # Safety
    /// As C's `memset`.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn memset(to: *mut u8, byte: i32, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's promise; the instruction fills that many bytes upwards.
        unsafe {
            core::arch::asm!("rep stosb", inout("rcx") bytes => _, inout("rdi") to => _, in("al") byte as u8,
                options(nostack, preserves_flags));
        }
        to
    }

    /// Compares.
    ///
    /// # Safety
    /// As C's `memcmp`.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, bytes: usize) -> i32 {
        for at in 0..bytes {
            // SAFETY: the caller's promise. Volatile, as above.
            let (a, b) = unsafe { (a.add(at).read_volatile(), b.add(at).read_volatile()) };
            if a != b {
                return i32::from(a) - i32::from(b);
            }
        }
        0
    }
}
