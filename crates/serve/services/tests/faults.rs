//! Handlers that misbehave are aborted: the program they interrupted, the agent and other services
//! are unharmed.

mod common;

use common::{Member, host, is_root, native, spec, until};
use orbit_services::{Dispatch, GrantRequest, Guard, Happened, Host, ServiceId};
use std::time::Duration;

#[test]
#[ignore = "the program of members"]
fn member_program() {
    common::member_program();
}

/// Ways to misbehave: the letter `wild.c` has for it, and whether that is an overrun.
const WAYS: [(u8, &str, bool); 10] = [
    (b's', "spins", true),
    (b'c', "calls without end", true),
    (b'm', "allocates without end", false),
    (b'n', "writes to address 8", false),
    (b'w', "writes to its code", false),
    (b'o', "writes to another service's data", false),
    (b'g', "gives a call a bad pointer", false),
    (b'd', "divides by zero", false),
    (b'i', "executes an illegal instruction", false),
    (b'r', "recurses without end", false),
];

fn load(host: &mut Host, way: u8, dispatch: Dispatch) -> ServiceId {
    let mut spec = spec("wild", dispatch, vec![GrantRequest::get("cpu:used", std::process::id() as i32)]);
    spec.arguments = vec![way];
    host.load(&spec, &native("wild")).expect("loaded")
}

/// Waits until the host has revoked a service, and answers how it was aborted.
fn revoked(host: &mut Host, id: ServiceId, what: &str) -> (u64, u64) {
    let mut happened = Vec::new();
    until(what, || {
        happened.extend(host.tend());
        host.status(id).expect("loaded").is_revoked
    });
    assert!(happened.iter().all(|one| matches!(one, Happened::Revoked { .. })), "{what}: {happened:?}");
    let account = host.status(id).expect("loaded").account;
    host.unload(id).expect("unloaded");
    (account.overruns, account.faults)
}

#[test]
fn in_an_agent_they_are_aborted_and_revoked() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let agents: Vec<i32> = host.agents().collect();
    for (way, what, is_overrun) in WAYS {
        let id = load(&mut host, way, Dispatch::Agent);
        let (overruns, faults) = revoked(&mut host, id, what);
        assert!(if is_overrun { overruns > 3 } else { faults > 3 }, "{what}: {overruns} overruns, {faults} faults");
    }
    assert_eq!(host.agents().collect::<Vec<_>>(), agents, "the same agent all the time");
    let id = host.load(&spec("count", Dispatch::Agent, vec![]), &native("count")).expect("loaded");
    until("a healthy service runs", || host.status(id).expect("loaded").account.runs > 5);
}

#[test]
fn in_a_member_they_are_aborted_and_the_member_continues() {
    if !is_root() {
        return;
    }
    let mut host = host();
    host.start_ticks(Duration::from_millis(2));
    if let Some(why) = host.no_ticks() {
        println!("SKIP: needs ticks: {why}");
        return;
    }
    let mut member = Member::start(&mut host, "member_program");
    for (way, what, is_overrun) in WAYS {
        let id = load(&mut host, way, Dispatch::Upcall);
        until(what, || {
            let account = host.status(id).expect("loaded").account;
            account.upcalls > 3 && if is_overrun { account.overruns > 3 } else { account.faults > 3 }
        });
        assert!(member.is_alive(), "{what}: the member's results are as before");
        host.unload(id).expect("unloaded");
    }
    assert!(host.tend().is_empty());
}

#[test]
fn forged_handles_and_values_out_of_range_are_refused_and_counted() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let me = std::process::id() as i32;
    let guard = Guard { min: 0, max: 19, clamp: false };
    let grant = GrantRequest { guard: Some(guard), ..GrantRequest::set("cpu:nice", me) };
    let mut spec = spec("wild", Dispatch::Agent, vec![grant]);
    spec.arguments = vec![b'f'];
    let before = orbit_linux::sched::nice(0).expect("own niceness");
    let id = host.load(&spec, &native("wild")).expect("loaded");
    until("runs", || host.status(id).expect("loaded").account.runs >= 3);
    let account = host.status(id).expect("loaded").account;
    assert!(account.refused >= 9 && account.clamped == 0 && account.aborts() == 0, "{account:?}");
    assert_eq!(orbit_linux::sched::nice(0).expect("own niceness"), before);
}
