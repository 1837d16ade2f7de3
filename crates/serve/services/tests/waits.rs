//! A handler that waits: it is promoted to a thread, or has one from the start; waiting costs no
//! budget, spinning does.

mod common;

use common::{Member, host, is_root, native, spec, until};
use orbit_services::{Budget, Dispatch, Happened};
use std::time::Duration;

#[test]
#[ignore = "the program of members"]
fn member_program() {
    common::member_program();
}

#[test]
fn an_upcall_that_waits_is_promoted_to_a_thread() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let mut member = Member::start(&mut host, "member_program");
    host.start_ticks(Duration::from_millis(2));
    if let Some(why) = host.no_ticks() {
        return println!("SKIP: needs ticks: {why}");
    }
    let mut spec = spec("record", Dispatch::Upcall, vec![]);
    spec.arguments = vec![b'w'];
    let id = host.load(&spec, &native("record")).expect("loaded");
    until("ten runs in the thread", || {
        assert!(host.tend().is_empty());
        host.status(id).expect("loaded").account.runs >= 10
    });
    let account = host.status(id).expect("loaded").account;
    assert!(account.promotions >= 10 && account.aborts() == 0 && account.upcalls > 0, "{account:?}");
    assert_eq!(host.threads().count(), 1);
    assert!(member.is_alive(), "the member's results are as before");
    host.unload(id).expect("unloaded");
    assert_eq!(host.threads().count(), 0);
}

#[test]
fn time_that_a_thread_waits_is_not_charged_and_time_that_it_spins_is() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let mut patient = spec("record", Dispatch::Thread, vec![]);
    patient.arguments = vec![b't'];
    patient.budget = Budget::new(Duration::from_millis(1), Duration::from_millis(100)).expect("a budget");
    let waits = host.load(&patient, &native("record")).expect("loaded");
    let mut wild = spec("wild", Dispatch::Thread, vec![]);
    wild.arguments = vec![b's'];
    let spins = host.load(&wild, &native("wild")).expect("loaded");
    until("runs of 200 ms with a budget of 1 ms", || host.status(waits).expect("loaded").account.runs >= 3);
    let account = host.status(waits).expect("loaded").account;
    assert!(account.aborts() == 0 && account.cpu_ns < 100_000_000, "{account:?}");
    let mut happened = Vec::new();
    until("the one that spins is revoked", || {
        happened.extend(host.tend());
        host.status(spins).expect("loaded").is_revoked
    });
    assert!(matches!(happened[..], [Happened::Revoked { .. }]), "{happened:?}");
}

#[test]
fn a_thread_that_waits_for_an_hour_ends_with_its_service_and_comes_back_when_killed() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let mut spec = spec("record", Dispatch::Thread, vec![]);
    spec.arguments = vec![b'h'];
    let id = host.load(&spec, &native("record")).expect("loaded");
    let first = host.threads().next().expect("its thread");
    let is_there =
        |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    until("it waits", || {
        std::fs::read_to_string(format!("/proc/{first}/wchan")).is_ok_and(|at| at.contains("nanosleep"))
    });
    common::kill(first);
    until("it is started again", || {
        host.tend();
        host.threads().next().is_some_and(|thread| thread != first)
    });
    let second = host.threads().next().expect("its thread");
    until("and runs its event", || host.status(id).expect("loaded").account.orphaned > 0);
    host.unload(id).expect("unloaded");
    assert!(!is_there(second));
}
