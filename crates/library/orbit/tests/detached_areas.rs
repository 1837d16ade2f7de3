//! An area that an orbit has let go of can be named again, and its addresses can be another area's.

mod common;

use std::ffi::{c_long, c_void};
use std::time::Duration;

use orbit::{Area, CallOptions, Orbit, Outcome, Pending, Restart};

unsafe extern "C" fn read_number(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes the address of an i64 in an area it names.
    unsafe { **args.cast::<*const i64>() as c_long }
}

unsafe extern "C" fn nothing(_: *mut c_void, _: *mut c_void) -> c_long {
    0
}

unsafe extern "C" fn die(_: *mut c_void, _: *mut c_void) -> c_long {
    // SAFETY: ends this process only.
    unsafe { libc::abort() }
}

fn numbers() -> (Area, *mut i64) {
    let area = Area::builder("numbers").size(64 << 10).limit(64 << 10).build().expect("area");
    let number = area.place(0i64).expect("room").as_ptr();
    (area, number)
}

fn check(orbit: &Orbit, area: &Area, number: *mut i64, value: i64) {
    // SAFETY: an object of the area, used by this thread only.
    unsafe { *number = value };
    let outcome = orbit.call(&[area], &(number as usize).to_ne_bytes()).expect("call");
    assert_eq!(outcome, Outcome::Returned(value));
}

/// Does something while the orbit's process is blocked with a call, so that what is called
/// meanwhile is queued.
fn while_busy<T>(orbit: &Orbit, first: &CallOptions, f: impl FnOnce() -> T) -> T {
    orbit.wait_ready(Duration::from_secs(20)).expect("up");
    let pid = orbit.pid();
    common::hold_up(pid);
    orbit.call_async_with(&[], &[], first).expect("call");
    let result = f();
    // SAFETY: the orbit's own process, which lives until it is continued.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    result
}

#[test]
fn an_area_let_go_of_is_named_again() {
    let orbit = Orbit::new("again", read_number).expect("orbit");
    let (area, number) = numbers();
    let quick = CallOptions::new().function(nothing);
    for round in 0..10 {
        check(&orbit, &area, number, 2 * round);
        orbit.detach(&area);
        if round % 3 == 1 {
            assert_eq!(orbit.call_with(&[], &[], &quick).expect("call"), Outcome::Returned(0));
        }
        if round % 2 == 0 {
            let future = while_busy(&orbit, &quick, || {
                // SAFETY: an object of the area, used by this thread only.
                unsafe { *number = 2 * round + 1 };
                orbit.call_async(&[&area], &(number as usize).to_ne_bytes()).expect("call")
            });
            assert_eq!(future.wait().expect("wait"), Outcome::Returned(2 * round + 1));
        }
    }
    assert_eq!(orbit.stats().crashes, 0);
}

#[test]
fn another_area_comes_to_lie_where_one_was() {
    let orbit = Orbit::new("reused", read_number).expect("orbit");
    let (mut area, mut number) = numbers();
    let mut reused = 0;
    for round in 0..10 {
        check(&orbit, &area, number, round);
        orbit.detach(&area);
        area.destroy().expect("nobody uses it");
        let before = number;
        (area, number) = numbers();
        reused += usize::from(number == before);
    }
    check(&orbit, &area, number, 99);
    assert!(reused > 0, "addresses are used again");
    assert_eq!(orbit.stats().crashes, 0);
}

#[test]
fn a_kept_call_that_lets_go_of_an_area_leaves_the_area_named_after_it() {
    let orbit = Orbit::builder("kept")
        .entry(read_number)
        .restart(Restart::Always)
        .pending(Pending::Keep)
        .build()
        .expect("orbit");
    let (area, number) = numbers();
    check(&orbit, &area, number, 1);
    orbit.detach(&area);
    // The call that makes the process let go waits for one that ends it; the next one names
    // the area again.
    let (let_go, again) = while_busy(&orbit, &CallOptions::new().function(die), || {
        orbit.detach(&area);
        let let_go = orbit.call_async_with(&[], &[], &CallOptions::new().function(nothing)).expect("call");
        // SAFETY: an object of the area, used by this thread only.
        unsafe { *number = 2 };
        (let_go, orbit.call_async(&[&area], &(number as usize).to_ne_bytes()).expect("call"))
    });
    assert_eq!(let_go.wait().expect("wait"), Outcome::Returned(0));
    assert_eq!(again.wait().expect("wait"), Outcome::Returned(2));
}
