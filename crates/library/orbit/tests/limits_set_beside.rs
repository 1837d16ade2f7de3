//! Limits that are set just when an orbit's process has ended, or is starting, are no error: they
//! hold for the next one, and for that.

mod common;

use std::ffi::{c_long, c_void};

use common::eventually;
use orbit::{Limits, Orbit, Outcome, Restart};

/// The nice value of the process that it runs in.
unsafe extern "C" fn niceness(_: *mut c_void, _: *mut c_void) -> c_long {
    // SAFETY: asks for a number.
    c_long::from(unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) })
}

/// Ends the orbit's process, does something at once, and waits for the next process.
fn end(orbit: &Orbit, and: impl FnOnce()) {
    let pid = orbit.pid();
    // SAFETY: the process of this test's own orbit, which main knows to be there.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    and();
    assert!(eventually(|| ![0, pid].contains(&orbit.pid())), "it was started again");
}

/// So many steps above the test's own niceness.
fn nicer(steps: i32) -> i32 {
    // SAFETY: numbers only.
    (unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) } + steps).min(19)
}

#[test]
fn limits_set_beside_an_end_hold_for_the_next_process() {
    let orbit = Orbit::builder("ended").entry(niceness).restart(Restart::Always);
    let orbit = orbit.limits(Limits::new().memory(128 << 20)).build().expect("orbit");
    for round in 0..50 {
        // Ever more: to be less nice again takes a right.
        let nice = nicer(1 + round / 3);
        let limits = Limits::new().memory(64 << 20).nice(nice);
        end(&orbit, || {
            for _ in 0..50 {
                orbit.set_limits(limits.clone()).expect("an end is no error");
            }
        });
        assert!(orbit.limits_held().starts_with("memory 67108864 bytes"), "{}", orbit.limits_held());
        let held = orbit.call(&[], &[]).expect("call");
        assert_eq!(held, Outcome::Returned(c_long::from(nice)), "round {round}");
    }
    orbit.destroy().expect("destroy");
}

#[test]
fn limits_set_beside_a_start_hold() {
    for round in 0..100 {
        let orbit =
            Orbit::builder("starting").entry(niceness).limits(Limits::new().nice(nicer(3))).build().expect("orbit");
        orbit.set_limits(Limits::new().nice(nicer(5))).expect("limits");
        assert_eq!(orbit.call(&[], &[]).expect("call"), Outcome::Returned(nicer(5).into()), "round {round}");
        orbit.destroy().expect("destroy");
    }
}
