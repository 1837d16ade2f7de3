//! A child that a task forks is no orbit, also if it comes back out of the task.

use std::ffi::{c_long, c_void};

use orbit::{Orbit, Outcome};

/// Gives 1; its child, first, 1234.
unsafe extern "C" fn forks(_: *mut c_void, _: *mut c_void) -> c_long {
    // SAFETY: the child is that of a single thread, and allocates nothing here.
    let child = unsafe { libc::fork() };
    if child == 0 {
        return 1234;
    }
    let mut status = 0;
    // SAFETY: waits for the child just made, with a place for its status.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    c_long::from(ended == child && status == 0)
}

#[test]
fn a_child_that_returns_answers_no_call() {
    let orbit = Orbit::new("forking", forks).expect("orbit");
    for _ in 0..20 {
        assert_eq!(orbit.call(&[], &[]).expect("call"), Outcome::Returned(1));
    }
    assert_eq!(orbit.stats().restarts, 0);
}
