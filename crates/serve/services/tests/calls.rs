//! A program calls a service itself: a pure one runs in its thread, one with a thread in that; both
//! answer, and what misbehaves is an error of the call and no more.

mod common;

use common::{host, is_root, native, spec, until};
use orbit_services::{Callee, Dispatch, Host, Invitation, Kind, ServiceId};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Joins, calls the service of `ORBIT_TEST_CALL`, and says what is wrong with the answers.
#[test]
#[ignore = "the program of members"]
fn caller_program() {
    let Ok(value) = std::env::var(Invitation::VARIABLE) else { return };
    let id = std::env::var("ORBIT_TEST_CALL").expect("a service");
    Invitation::parse(&value).expect("an invitation").accept().expect("joining");
    let callee = Callee::find(&id).expect("a member");
    // What its reservation does not cover is asked for again.
    let called = |value| loop {
        match callee.call(value) {
            Err(error) if error.kind() == Kind::Full => std::thread::sleep(Duration::from_millis(1)),
            other => break other,
        }
    };
    let kind = |value| callee.call(value).map_err(|error| error.kind());
    match std::env::var("ORBIT_TEST_HOW").as_deref() {
        Ok("answers") => {
            // Floating point and the mask of signals are the caller's own, before and after.
            let (mut x, mut expected) = (1.5f64, 1.5f64);
            for nth in 1..=5_000u64 {
                x = x.mul_add(0.999_99, nth as f64);
                assert_eq!(called(nth).expect("called"), 3 * nth as i64, "call {nth}");
                expected = expected.mul_add(0.999_99, nth as f64);
            }
            assert_eq!(x.to_bits(), expected.to_bits());
            let status = std::fs::read_to_string("/proc/self/status").expect("status");
            assert!(status.contains("SigBlk:\t0000000000000000"), "{status}");
        }
        Ok("threads") => {
            let sums: Vec<i64> = std::thread::scope(|scope| {
                let call = || {
                    (0..200).map(|nth| called(nth).map(|answer| i64::from(answer > 0)).expect("called")).sum::<i64>()
                };
                let threads: Vec<_> = (0..20).map(|_| scope.spawn(call)).collect();
                threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
            });
            assert_eq!(sums, vec![200; 20]);
        }
        Ok("misbehaves") => {
            // A run that spins uses up the window's CPU time.
            let kind = |value| called(value).map_err(|error| error.kind());
            assert_eq!(kind(1_000_000), Err(Kind::System(libc::ECANCELED)), "it spins");
            assert_eq!(kind(1_000_001), Err(Kind::System(libc::ECANCELED)), "it faults");
            assert!(called(3).is_ok());
            for bad in ["n2.99", "n15.1", "n99.1"] {
                assert_eq!(
                    Callee::find(bad).expect("a member").call(1).map_err(|e| e.kind()),
                    Err(Kind::NotFound),
                    "{bad}"
                );
            }
        }
        Ok("waits") => {
            assert_eq!(kind(1_000_002), Err(Kind::System(libc::EINPROGRESS)), "it begins again in a thread");
            // From then on it has one until its event is handled: calls go there.
            assert!(callee.call(3).is_ok());
        }
        Ok("pays") => {
            let unpaid = (0..100_000u64).any(|nth| kind(nth) == Err(Kind::Full));
            assert!(unpaid, "its reservation is used up at some time");
        }
        Ok("agent") => assert_eq!(kind(1), Err(Kind::Unsupported)),
        other => panic!("how: {other:?}"),
    }
    println!("all is well");
}

/// Loads the service, runs the program against it, and answers the host.
fn run(dispatch: Dispatch, budget: &str, how: &str) -> (Host, ServiceId) {
    let mut host = host();
    let mut spec = spec("answer", dispatch, vec![]);
    (spec.period, spec.budget) = (Duration::ZERO, budget.parse().expect("a budget"));
    let id = host.load(&spec, &native("answer")).expect("loaded");
    let mut command = Command::new(std::env::current_exe().expect("own program"));
    command
        .args(["caller_program", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(Invitation::VARIABLE, host.invitation().to_string())
        .env("ORBIT_TEST_CALL", id.to_string())
        .env("ORBIT_TEST_HOW", how)
        .stdout(Stdio::piped());
    let mut child = command.spawn().expect("a member");
    until("the program has ended", || {
        host.tend();
        child.try_wait().expect("own child").is_some()
    });
    let output = child.wait_with_output().expect("its output");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("all is well"), "{how}, {dispatch:?}: {}, {text}", output.status);
    (host, id)
}

#[test]
fn a_pure_service_answers_in_the_callers_thread() {
    if !is_root() {
        return;
    }
    let (host, id) = run(Dispatch::Upcall, "5ms/10ms", "answers");
    let account = host.status(id).expect("loaded").account;
    assert_eq!((account.runs, account.upcalls, account.aborts()), (5_000, 5_000, 0), "{account:?}");
}

#[test]
fn a_service_with_a_thread_answers_from_that() {
    if !is_root() {
        return;
    }
    let (host, id) = run(Dispatch::Thread, "5ms/10ms", "answers");
    let account = host.status(id).expect("loaded").account;
    assert_eq!((account.runs, account.upcalls, account.lost), (5_000, 0, 0), "{account:?}");
}

#[test]
fn threads_of_a_program_call_at_once() {
    if !is_root() {
        return;
    }
    for dispatch in [Dispatch::Upcall, Dispatch::Thread] {
        let (host, id) = run(dispatch, "5ms/10ms", "threads");
        assert_eq!(host.status(id).expect("loaded").account.runs, 4_000);
    }
}

#[test]
fn runs_that_are_aborted_and_services_that_are_gone_are_errors_of_the_call() {
    if !is_root() {
        return;
    }
    for dispatch in [Dispatch::Upcall, Dispatch::Thread] {
        let (host, id) = run(dispatch, "2ms/10ms", "misbehaves");
        assert_eq!(host.status(id).expect("loaded").account.aborts(), 2);
    }
}

#[test]
fn a_handler_that_waits_begins_again_in_a_thread() {
    if !is_root() {
        return;
    }
    let (host, id) = run(Dispatch::Upcall, "5ms/10ms", "waits");
    assert_eq!(host.status(id).expect("loaded").account.promotions, 1);
}

#[test]
fn calls_are_charged_and_those_of_an_agents_service_are_refused() {
    if !is_root() {
        return;
    }
    run(Dispatch::Upcall, "100us/1s", "pays");
    run(Dispatch::Agent, "1ms/10ms", "agent");
}
