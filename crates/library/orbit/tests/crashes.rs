//! However a task ends, main learns how, and the next call works.

use std::ffi::{c_long, c_void};
use std::time::{Duration, Instant};

use orbit::{CallOptions, Kind, Orbit, Outcome, Restart};

unsafe extern "C" fn do_harm(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: the tests pass one i64; the harm is the point.
    unsafe {
        match *args.cast::<i64>() {
            0 => std::ptr::null_mut::<u8>().write_volatile(1),
            1 => libc::abort(),
            2 => libc::_exit(3),
            3 => {
                libc::kill(libc::getpid(), libc::SIGKILL);
            }
            4 => loop {
                std::hint::spin_loop();
            },
            5 => return deep(0) as c_long,
            6 => panic!("by intent"),
            _ => {}
        }
    }
    42
}

#[inline(never)]
fn deep(n: u64) -> u64 {
    let page = std::hint::black_box([n; 512]);
    if n == u64::MAX { 0 } else { deep(n + 1) + page[(n % 512) as usize] }
}

fn again_and_well(orbit: &Orbit) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match orbit.call(&[], &9i64.to_ne_bytes()) {
            Ok(outcome) => return assert_eq!(outcome, Outcome::Returned(42)),
            Err(e) if e.kind() == Kind::Down && Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn each_kind_of_end_is_distinguished_and_survived() {
    let orbit = Orbit::builder("harm").entry(do_harm).restart(Restart::Always).build().expect("orbit");
    let short = CallOptions::new().deadline(Duration::from_millis(100));
    for round in 0..3 {
        for harm in 0..7i64 {
            again_and_well(&orbit);
            let options = if harm == 4 { short } else { CallOptions::new() };
            let outcome = orbit.call_with(&[], &harm.to_ne_bytes(), &options).expect("call");
            match (harm, &outcome) {
                (0, Outcome::Crashed(c)) => {
                    assert_eq!((c.signal, c.address), (libc::SIGSEGV, 0), "{c}");
                    assert!(c.to_string().contains("do_harm"), "the function is named: {c}");
                }
                (1, Outcome::Crashed(c)) => assert_eq!(c.signal, libc::SIGABRT),
                (2, Outcome::Exited(3)) | (3, Outcome::Killed(libc::SIGKILL)) | (4, Outcome::TimedOut(Some(_))) => {}
                (5, Outcome::Crashed(c)) => assert_eq!(c.signal, libc::SIGSEGV, "{c}"),
                (6, Outcome::Crashed(c)) => {
                    assert_eq!(c.signal, libc::SIGABRT);
                    assert!(c.message.as_deref().is_some_and(|m| m.contains("by intent")), "{c}");
                }
                other => panic!("round {round}: {other:?}"),
            }
        }
    }
    again_and_well(&orbit);
    assert_eq!(orbit.stats().crashes, 21);
}

#[test]
fn an_orbit_that_is_destroyed_answers_so() {
    let orbit = Orbit::new("short-lived", do_harm).expect("orbit");
    again_and_well(&orbit);
    let pid = orbit.pid();
    orbit.destroy().expect("destroy");
    orbit.destroy().expect("twice is fine");
    assert_eq!(orbit.call(&[], &9i64.to_ne_bytes()).expect_err("gone").kind(), Kind::Gone);
    // SAFETY: asks only.
    assert_eq!(unsafe { libc::kill(pid, 0) }, -1, "its process is gone");
}

#[test]
fn destroying_what_ends_in_that_instant_waits_for_nobody() {
    let mut slowest = Duration::ZERO;
    for round in 0..200u64 {
        let orbit = Orbit::builder("both").entry(do_harm).restart(Restart::Never).build().expect("orbit");
        again_and_well(&orbit);
        let end = orbit.call_async(&[], &3i64.to_ne_bytes()).expect("call");
        // Over the time in which the end is noticed and asked about.
        std::thread::sleep(Duration::from_micros(round * 5));
        let begun = Instant::now();
        orbit.destroy().expect("destroy");
        slowest = slowest.max(begun.elapsed());
        drop(end);
    }
    // What the library would wait for an answer that never comes is 5 s.
    assert!(slowest < Duration::from_secs(4), "{slowest:?}");
}

#[test]
fn never_restarting_means_down_for_good() {
    let orbit = Orbit::builder("once").entry(do_harm).restart(Restart::Never).build().expect("orbit");
    assert!(orbit.call(&[], &1i64.to_ne_bytes()).expect("call").is_failure());
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match orbit.call(&[], &9i64.to_ne_bytes()).expect_err("down").kind() {
            Kind::Gone => break,
            Kind::Down if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_orbit_ends_with_its_last_handle() {
    let orbit = Orbit::new("dropped", do_harm).expect("orbit");
    again_and_well(&orbit);
    let (pid, other) = (orbit.pid(), orbit.clone());
    drop(orbit);
    again_and_well(&other);
    drop(other);
    let until = Instant::now() + Duration::from_secs(20);
    // SAFETY: asks only.
    while unsafe { libc::kill(pid, 0) } == 0 {
        assert!(Instant::now() < until, "its process ends too");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[inline(never)]
fn spins_here() {
    loop {
        std::hint::spin_loop();
    }
}

#[inline(never)]
fn throws_here(what: i64) {
    assert!(std::hint::black_box(what) == 0, "thrown by intent");
}

unsafe extern "C" fn catches(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: the tests pass one i64.
    let what = unsafe { *args.cast::<i64>() };
    let caught = std::panic::catch_unwind(|| throws_here(1)).is_err();
    let joined = std::thread::spawn(|| throws_here(2)).join().is_err();
    match what {
        0 => c_long::from(caught && joined),
        1 => std::process::abort(),
        2 => {
            throws_here(3);
            0
        }
        _ => {
            spins_here();
            0
        }
    }
}

#[test]
fn a_panic_that_the_task_catches_is_no_crash() {
    let orbit = Orbit::builder("catcher").entry(catches).restart(Restart::Always).build().expect("orbit");
    orbit.wait_ready(Duration::from_secs(60)).expect("up");
    let pid = orbit.pid();
    for _ in 0..10 {
        assert_eq!(orbit.call(&[], &0i64.to_ne_bytes()).expect("call"), Outcome::Returned(1));
    }
    assert_eq!(orbit.pid(), pid);
    // Nothing of what was caught is blamed for another end.
    let Outcome::Crashed(aborted) = orbit.call(&[], &1i64.to_ne_bytes()).expect("call") else { panic!("no crash") };
    assert!(aborted.message.is_none() && !aborted.to_string().contains("throws_here"), "{aborted}");
    let patient = CallOptions::new().deadline(Duration::from_secs(60));
    let Outcome::Crashed(thrown) = orbit.call_with(&[], &2i64.to_ne_bytes(), &patient).expect("call") else {
        panic!("no crash")
    };
    let text = thrown.to_string();
    assert!(thrown.message.as_deref().is_some_and(|m| m.contains("thrown by intent")), "{text}");
    let headline = text.lines().next().unwrap_or_default();
    assert!(headline.starts_with("SIGABRT in ") && headline.contains("throws_here"), "{text}");
    assert!(text.contains("catches"), "its caller is there too: {text}");
}

#[test]
fn a_call_past_its_deadline_says_where_its_task_was() {
    let orbit = Orbit::builder("spinner").entry(catches).restart(Restart::Always).build().expect("orbit");
    orbit.wait_ready(Duration::from_secs(60)).expect("up");
    let short = CallOptions::new().deadline(Duration::from_millis(200));
    // On a loaded machine a call may not have come to the loop.
    let text = (0..20).find_map(|_| {
        let text = orbit.call_with(&[], &3i64.to_ne_bytes(), &short).ok()?.to_string();
        text.contains("spins_here").then_some(text)
    });
    let text = text.expect("a call stack with the names of functions");
    assert!(text.starts_with("not done at its deadline in ") && text.contains("catches"), "{text}");
}
