//! A call right after a crash waits for the orbit; where it does not come back, the error says why.

mod common;

use std::ffi::{c_long, c_void};
use std::time::{Duration, Instant};

use orbit::{CallOptions, Kind, Orbit, Outcome, Restart};
use orbit_linux::rlimit::{self, Resource};

unsafe extern "C" fn crash_if_asked(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes one byte; the null pointer is the point.
    unsafe {
        if *args.cast::<u8>() == 1 {
            std::ptr::null_mut::<u8>().write_volatile(1);
        }
    }
    7
}

unsafe extern "C" fn init_that_crashes() -> *mut c_void {
    // SAFETY: crashing is the point.
    unsafe { std::ptr::null_mut::<u8>().write_volatile(1) };
    std::ptr::null_mut()
}

/// One test: a limit of the process is lowered in it.
#[test]
fn calls_wait_and_errors_say_why() {
    let restart = Restart::OnFailure {
        first_pause: Duration::from_millis(20),
        longest_pause: Duration::from_millis(200),
        give_up: 0,
    };
    let orbit = Orbit::builder("crasher").entry(crash_if_asked).restart(restart).build().expect("orbit");
    let long = CallOptions::new().deadline(Duration::from_secs(60));
    for _ in 0..12 {
        assert!(matches!(orbit.call_with(&[], &[1], &long), Ok(Outcome::Crashed(_))));
        // At once, and by two ways.
        assert_eq!(orbit.call_with(&[], &[0], &long).expect("call"), Outcome::Returned(7));
    }
    for _ in 0..3 {
        assert!(matches!(orbit.call_with(&[], &[1], &long), Ok(Outcome::Crashed(_))));
        let future = orbit.call_async_with(&[], &[0], &long).expect("call");
        assert_eq!(future.wait().expect("wait"), Outcome::Returned(7));
    }

    // From now on no process can be given its channel.
    let (soft, hard) = rlimit::get(0, Resource::FileSize).expect("limit");
    rlimit::set(0, Resource::FileSize, 0, hard).expect("lowered");
    let reported = |orbit: &Orbit, options: &CallOptions, least: u64| {
        let began = Instant::now();
        let error = orbit.call_with(&[], &[0], options).expect_err("down");
        assert!(began.elapsed() >= Duration::from_millis(least), "after {:?}", began.elapsed());
        assert_eq!(error.kind(), Kind::Down, "{error}");
        error.to_string()
    };
    assert!(matches!(orbit.call(&[], &[1]), Ok(Outcome::Crashed(_))));
    for (options, least) in [(CallOptions::new(), 1000), (CallOptions::new().deadline(Duration::from_millis(100)), 100)]
    {
        let error = reported(&orbit, &options, least);
        assert!(error.contains("orbit_wait_ready") && error.contains("ulimit -f"), "{error}");
    }
    let error = orbit.wait_ready(Duration::from_millis(50)).expect_err("down").to_string();
    assert!(error.contains("ulimit -f"), "{error}");
    rlimit::set(0, Resource::FileSize, soft, hard).expect("raised");
    assert_eq!(orbit.call_with(&[], &[0], &long).expect("call"), Outcome::Returned(7));

    // One that never comes up.
    let pause = Duration::from_secs(3600);
    let restart = Restart::OnFailure { first_pause: pause, longest_pause: pause, give_up: 0 };
    let builder = Orbit::builder("stillborn").entry(crash_if_asked).init(init_that_crashes).restart(restart);
    let orbit = builder.wait_while_down(Duration::ZERO).build().expect("orbit");
    assert!(common::eventually(|| orbit.stats().crashes >= 4));
    let error = reported(&orbit, &CallOptions::new(), 0);
    assert!(error.contains("not up yet when it ended: crashed: SIGSEGV"), "{error}");
}
