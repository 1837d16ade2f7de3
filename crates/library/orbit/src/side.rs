//! Which side of the fork this process is on, and the types of what runs on the far one.

use std::ffi::{c_long, c_void};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::generation::generation;

/// What an orbit runs: `long entry(void *store, void *args)`. `store` is what the init function
/// returned, `args` a copy of the caller's arguments that the function may write to.
///
/// It may lock its memory (`mlock`, `mlockall`); that of areas is unlocked again between calls.
///
/// One that calls `exit` ends the orbit ([`Outcome::Exited`](crate::Outcome::Exited)). Functions
/// that main registered with `atexit` do not run in it, and what stood in main's C stdio buffers is
/// written by main only. What main has in buffers of its own (`print!` without a newline) is
/// copied with it: flush those before the set-up.
pub type Entry = unsafe extern "C" fn(store: *mut c_void, args: *mut c_void) -> c_long;

/// What an orbit runs once, when it starts and after each restart; makes its store.
pub type Init = unsafe extern "C" fn() -> *mut c_void;

const MAIN: u8 = 0;
const TEMPLATE: u8 = 1;
const ORBIT: u8 = 2;

static SIDE: AtomicU8 = AtomicU8::new(MAIN);
/// Whether this process is an orbit.
pub fn is_orbit() -> bool {
    SIDE.load(Ordering::Relaxed) == ORBIT
}

/// Whether this process is a template or an orbit, not main.
pub(crate) fn is_own_side() -> bool {
    SIDE.load(Ordering::Relaxed) != MAIN
}

/// Called first thing in a template.
pub(crate) fn enter_template() {
    SIDE.store(TEMPLATE, Ordering::Relaxed);
}

/// Called first thing in an orbit.
pub(crate) fn enter_orbit() {
    SIDE.store(ORBIT, Ordering::Relaxed);
}

/// The generation in which the library was set up; 0: in none.
static SET_UP: AtomicU64 = AtomicU64::new(0);

/// Whether the library is set up in this process: there is a template.
pub(crate) fn is_set_up() -> bool {
    SET_UP.load(Ordering::Acquire) == generation()
}

/// Says so, or the contrary.
pub(crate) fn set_up(is: bool) {
    SET_UP.store(if is { generation() } else { 0 }, Ordering::Release);
}
