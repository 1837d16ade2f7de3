//! What follows a failure is what was asked for: pauses that grow, an end to trying, waiting calls
//! kept or failed.

mod common;

use std::ffi::{c_long, c_void};
use std::time::{Duration, Instant};

use orbit::{Area, CallOptions, Kind, Orbit, Outcome, Pending, Restart};

/// Aborts on a zero; else returns what the number in the area is.
unsafe extern "C" fn abort_on_zero(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes a zero, or the address of an i64 in an area it names.
    unsafe {
        let at = *args.cast::<*const i64>();
        if at.is_null() {
            libc::abort();
        }
        *at as c_long
    }
}

/// Makes the orbit fail, and waits until it takes calls again, or never will; returns how long that
/// took, from the call that fails.
fn fail_once(orbit: &Orbit) -> (Duration, bool) {
    // Before the call: the pause may have begun long before this thread hears of the failure.
    let mut since = Instant::now();
    assert!(common::eventually(|| {
        since = Instant::now();
        orbit.call_async(&[], &[0; 8]).is_ok_and(|f| f.wait().is_ok_and(|o| o.is_failure()))
    }));
    let mut gone = false;
    assert!(common::eventually(|| {
        gone = orbit.wait_ready(Duration::ZERO).is_err_and(|e| e.kind() == Kind::Gone);
        gone || orbit.pid() != 0
    }));
    (since.elapsed(), gone)
}

#[test]
fn failures_in_a_row_are_slowed_down_and_end() {
    let restart = Restart::OnFailure {
        first_pause: Duration::from_millis(150),
        longest_pause: Duration::from_millis(200),
        give_up: 6,
    };
    let orbit = Orbit::builder("fails").entry(abort_on_zero).restart(restart).build().expect("orbit");
    for failure in 1..=6 {
        let (took, gone) = fail_once(&orbit);
        assert_eq!(gone, failure == 6, "failure {failure}");
        if failure == 4 || failure == 5 {
            assert!(took >= Duration::from_millis(120), "failure {failure} was followed by a pause of {took:?}");
        }
    }
    assert_eq!(orbit.call(&[], &[0; 8]).expect_err("down for good").kind(), Kind::Gone);
}

#[test]
fn pauses_of_any_length_are_kept() {
    let restart = Restart::OnFailure { first_pause: Duration::MAX, longest_pause: Duration::MAX, give_up: 0 };
    let orbit = Orbit::builder("fails").entry(abort_on_zero).restart(restart).build().expect("orbit");
    let other = Orbit::builder("other").entry(abort_on_zero).restart(Restart::Always).build().expect("orbit");
    orbit.wait_ready(Duration::MAX).expect("up");
    for _ in 1..=3 {
        fail_once(&orbit);
    }
    assert!(common::eventually(|| orbit.call(&[], &[0; 8]).is_ok_and(|outcome| outcome.is_failure())));
    for _ in 0..3 {
        fail_once(&other);
    }
    assert_eq!(orbit.pid(), 0, "it is down for ages");
}

#[test]
fn waiting_calls_are_kept_or_failed_as_asked() {
    for pending in [Pending::Keep, Pending::Fail] {
        let orbit = Orbit::builder("waits")
            .entry(abort_on_zero)
            .restart(Restart::Always)
            .pending(pending)
            .build()
            .expect("orbit");
        let area = Area::builder("numbers").size(64 << 10).build().expect("area");
        let number = area.place(0i64).expect("room").as_ptr();
        // While the first process is delayed by a signal, calls pile up behind the one that will
        // fail.
        orbit.wait_ready(Duration::from_secs(20)).expect("up");
        let pid = orbit.pid();
        common::hold_up(pid);
        let bad = orbit.call_async(&[], &[0; 8]).expect("call");
        let behind: Vec<_> = (1..=5i64)
            .map(|n| {
                // SAFETY: an object of the area, used by this thread only.
                unsafe { *number = n };
                orbit.call_async(&[&area], &(number as usize).to_ne_bytes()).expect("call")
            })
            .collect();
        // SAFETY: the orbit's own process, which lives until it is continued.
        unsafe { libc::kill(pid, libc::SIGCONT) };
        assert!(matches!(bad.wait().expect("wait"), Outcome::Crashed(_)));
        for (n, future) in (1..).zip(&behind) {
            let expected = if pending == Pending::Keep { Outcome::Returned(n) } else { Outcome::Cancelled };
            assert_eq!(future.wait().expect("wait"), expected, "{pending:?}");
        }
    }
}

#[test]
fn a_kept_call_past_its_deadline_ends_while_the_orbit_is_down() {
    let pause = Duration::from_secs(3600);
    let restart = Restart::OnFailure { first_pause: pause, longest_pause: pause, give_up: 0 };
    let orbit =
        Orbit::builder("paused").entry(abort_on_zero).restart(restart).pending(Pending::Keep).build().expect("orbit");
    for _ in 0..3 {
        fail_once(&orbit);
    }
    assert!(orbit.call(&[], &[0; 8]).expect("call").is_failure());
    assert!(common::eventually(|| orbit.pid() == 0), "it is down");
    let short = CallOptions::new().deadline(Duration::from_millis(100));
    let late: Vec<_> = (0..2).map(|_| orbit.call_async_with(&[], &[0; 8], &short).expect("call")).collect();
    let patient = orbit.call_async(&[], &[0; 8]).expect("call");
    for future in &late {
        let outcome = future.wait_timeout(Duration::from_secs(30)).expect("it ends though there is no process");
        assert_eq!(outcome, Outcome::TimedOut(None));
    }
    assert_eq!(patient.poll(), None, "the others wait on");
}
