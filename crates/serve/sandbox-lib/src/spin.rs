//! A bounded wait on the CPU before a sleep: what comes within some microseconds costs no switch to
//! the kernel and back.
//!
//! It pays only where the one that is waited for runs on another CPU. So it learns: after `TRIES`
//! waits in a row that were for nothing it is left out, but for one in `RETRY`.

use crate::{abi, sys};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// How long it takes at most, nanoseconds.
pub const SPIN_NS: u64 = 20_000;
/// Waits for nothing in a row after which it is left out.
const TRIES: u32 = 4;
/// `misses` of a wait that is left out.
pub const LEFT_OUT: u32 = TRIES;
/// One in so many is tried all the same.
const RETRY: u32 = 256;

/// Waits until `is_there`, for [`SPIN_NS`] at most. `misses` is the memory of those that wait for
/// the same; all zeros at first. Answers whether it is there, and the nanoseconds that were spent.
pub fn wait(misses: &AtomicU32, mut is_there: impl FnMut() -> bool) -> (bool, u64) {
    let tick_ns = abi::directory().tick_ns;
    let missed = misses.load(Relaxed);
    if is_there() {
        return (true, 0);
    }
    if tick_ns == 0 || missed >= TRIES && !missed.is_multiple_of(RETRY) {
        misses.store(missed.wrapping_add(1), Relaxed);
        return (false, 0);
    }
    let began = sys::ticks();
    loop {
        for _ in 0..8 {
            core::hint::spin_loop();
        }
        // A thread that moved to a CPU whose counter is behind gives up.
        let passed = sys::ticks().wrapping_sub(began).saturating_mul(tick_ns) >> 16;
        if is_there() {
            misses.store(0, Relaxed);
            return (true, passed.min(SPIN_NS));
        }
        if passed >= SPIN_NS {
            misses.store(missed.wrapping_add(1), Relaxed);
            return (false, SPIN_NS);
        }
    }
}
