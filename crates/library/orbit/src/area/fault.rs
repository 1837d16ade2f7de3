//! Makes the N-th system call of a snapshot fail, for tests: whatever call fails, no written page
//! may be lost.
//!
//! State is per thread, so tests beside each other do not meet. Unarmed it costs one thread-local
//! load a system call.

use crate::units::Pages;
use std::cell::Cell;
use std::io;

thread_local! {
    /// Calls still let through before one fails; negative: none fails.
    static LEFT: Cell<i64> = const { Cell::new(-1) };
    /// Calls seen while armed or counting.
    static SEEN: Cell<u64> = const { Cell::new(0) };
    /// Pages that one call may cover; 0: the engine's own figure.
    static STEP: Cell<usize> = const { Cell::new(0) };
}

/// Lets `n` of this thread's snapshot system calls pass and fails the one after with `EIO`, once.
pub fn fail_after(n: u32) {
    LEFT.set(i64::from(n));
}

/// Disarms; returns whether the failure was still waiting.
pub fn disarm() -> bool {
    LEFT.replace(-1) >= 0
}

/// How many snapshot system calls this thread has made.
pub fn calls() -> u64 {
    SEEN.get()
}

/// Makes this thread's harvests use one system call for each `pages` pages, so that small areas
/// have many (0: default).
pub fn set_step(pages: usize) {
    STEP.set(pages);
}

/// Pages one call may cover, at most `default`.
pub(super) fn step(default: Pages) -> Pages {
    match STEP.get() {
        0 => default,
        pages => Pages::new(pages),
    }
}

/// Stands before each system call of a snapshot.
pub(crate) fn check() -> io::Result<()> {
    SEEN.set(SEEN.get() + 1);
    let left = LEFT.get();
    if left < 0 {
        return Ok(());
    }
    LEFT.set(left - 1);
    if left == 0 { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
}
