//! The border between the orbit's own code and the task's: no exception gets beyond it, and the
//! search for a handler ends there.
//!
//! What the task does not catch is a bug of the task's, to be reported where it was thrown. A C++
//! runtime searches for a handler up the stack before it unwinds anything, and calls
//! `std::terminate` on the thrower's stack if it finds none. Functions of Rust's count as handlers,
//! though all they do is abort: the frames of the task would be gone by then. So between the two
//! stands a function without unwind tables, at which every search ends.

use std::ffi::{c_long, c_void};

use crate::side::{Entry, Init};

/// Calls the entry function with its two arguments.
///
/// # Safety
/// As calling it by itself.
pub(crate) unsafe fn call(entry: Entry, first: *mut c_void, second: *mut c_void) -> c_long {
    // SAFETY: by contract; the border passes two arguments on.
    unsafe { cross(first as usize, second as usize, entry as *const () as usize) as c_long }
}

/// Calls the init function.
///
/// # Safety
/// As calling it by itself.
pub(crate) unsafe fn begin(init: Init) -> *mut c_void {
    // SAFETY: by contract; a function without arguments reads none.
    unsafe { cross(0, 0, init as *const () as usize) as *mut c_void }
}

/// Calls `function` with two arguments.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn cross(first: usize, second: usize, function: usize) -> usize {
    // The frame is set up manually for readers of frame pointers, and keeps the stack
    // aligned.
    std::arch::naked_asm!("push rbp", "mov rbp, rsp", "call rdx", "pop rbp", "ret")
}

/// The same with unwind tables, where what is thrown ends the process all the same but is reported
/// of this function.
#[cfg(not(target_arch = "x86_64"))]
unsafe extern "C" fn cross(first: usize, second: usize, function: usize) -> usize {
    // SAFETY: by contract.
    unsafe { std::mem::transmute::<usize, extern "C" fn(usize, usize) -> usize>(function)(first, second) }
}
