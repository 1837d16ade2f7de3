//! Events beside ticks start a service's handler: posted ones in their order, pressure,
//! descriptors, tracepoints. Floods are bounded and what is dropped is counted.

mod common;

use common::{Killed, host, is_root, native, spec, until};
use orbit_services::{Dispatch, GrantRequest, Host, Kind, ServiceId, Source};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::time::Duration;

fn nice(pid: i32) -> i32 {
    orbit_linux::sched::nice(pid).expect("its niceness")
}

/// A service without ticks that sets the niceness of a sleeper to the kind of its event, or with
/// `v` to its value.
fn recorder(host: &mut Host, target: &Killed, way: u8) -> ServiceId {
    let mut spec = spec("record", Dispatch::Agent, vec![GrantRequest::set("cpu:nice", target.pid())]);
    (spec.period, spec.arguments) = (Duration::ZERO, vec![way]);
    host.load(&spec, &native("record")).expect("loaded")
}

#[test]
fn posted_events_come_with_their_values_in_order() {
    if !is_root() {
        return;
    }
    let (mut host, target) = (host(), Killed::sleeper());
    let id = recorder(&mut host, &target, b'v');
    for value in 1..=10u64 {
        assert!(host.post(id, value).expect("loaded"));
        until("the handler sees the value", || nice(target.pid()) == value as i32);
    }
    assert_eq!(host.status(id).expect("loaded").account.runs, 10);
}

#[test]
fn a_flood_is_bounded_and_what_is_dropped_is_counted() {
    if !is_root() {
        return;
    }
    let (mut host, target) = (host(), Killed::sleeper());
    let id = recorder(&mut host, &target, b'v');
    let posted = 20_000;
    let kept = (0..posted).filter(|_| host.post(id, 1).expect("loaded")).count() as u64;
    until("all that was kept is handled or unpaid", || {
        let account = host.status(id).expect("loaded").account;
        account.runs + account.unpaid == kept
    });
    let account = host.status(id).expect("loaded").account;
    assert_eq!(account.lost, posted - kept, "{account:?}");
    assert!(host.agents().count() == 1 && host.tend().is_empty());
}

#[test]
fn a_descriptor_that_becomes_readable_is_an_event() {
    if !is_root() {
        return;
    }
    let (mut host, target) = (host(), Killed::sleeper());
    let id = recorder(&mut host, &target, 0);
    let (mut here, mut there) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let source = Source::Readable { process: std::process::id() as i32, descriptor: there.as_raw_fd() };
    host.watch(id, &source).expect("watched");
    for round in 1..=5 {
        here.write_all(b"x").expect("written");
        until("an event for each", || host.status(id).expect("loaded").account.runs >= round);
        there.read_exact(&mut [0]).expect("it is there");
    }
    assert_eq!(nice(target.pid()), 4, "of kind readable");
    host.unload(id).expect("unloaded");
    here.write_all(b"x").expect("written");
    let file = std::fs::File::open("/etc/passwd").expect("a file");
    let id = recorder(&mut host, &target, 0);
    let source = Source::Readable { process: std::process::id() as i32, descriptor: file.as_raw_fd() };
    assert_eq!(host.watch(id, &source).map_err(|e| e.kind()), Err(Kind::Unsupported), "always readable");
    let source = Source::Readable { process: std::process::id() as i32, descriptor: 1 << 20 };
    assert_eq!(host.watch(id, &source).map_err(|e| e.kind()), Err(Kind::NotFound));
}

#[test]
fn a_tracepoint_is_an_event() {
    if !is_root() {
        return;
    }
    let (mut host, target) = (host(), Killed::sleeper());
    let id = recorder(&mut host, &target, 0);
    match host.watch(id, &Source::parse("tracepoint=sched_process_exec", 0).expect("a source")) {
        Err(error) if error.kind() == Kind::Unsupported => return println!("SKIP: needs BPF: {error}"),
        watched => watched.expect("watched"),
    }
    until("programs are executed", || {
        std::process::Command::new("true").status().expect("true");
        host.status(id).expect("loaded").account.runs > 3
    });
    assert_eq!(nice(target.pid()), 5, "of kind tracepoint");
    let none = Source::parse("tracepoint=no_such_point", 0).expect("a source");
    assert_eq!(host.watch(id, &none).map_err(|e| e.kind()), Err(Kind::NotFound));
}

#[test]
fn a_stall_for_the_processor_is_an_event() {
    if !is_root() {
        return;
    }
    if let orbit_linux::Support::No(why) = orbit_linux::pressure::probe() {
        return println!("SKIP: needs pressure stall information: {why}");
    }
    let (mut host, target) = (host(), Killed::sleeper());
    let id = recorder(&mut host, &target, 0);
    host.watch(id, &Source::parse("psi=cpu:5ms/2s", std::process::id() as i32).expect("a source")).expect("watched");
    // More than one program for one processor.
    let load: Vec<_> = (0..3).map(|_| common::Busy::start()).collect();
    until("an event", || host.status(id).expect("loaded").account.runs > 0);
    assert_eq!(nice(target.pid()), 3, "of kind pressure");
    drop(load);
    let bad = Source::parse("psi=memory:150ms/20s", 0).expect("a source");
    assert_eq!(host.watch(id, &bad).map_err(|e| e.kind()), Err(Kind::Invalid), "a window that is too long");
}

#[test]
fn runs_of_another_service_are_events_until_that_is_gone() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let first = host.load(&spec("count", Dispatch::Agent, vec![]), &native("count")).expect("loaded");
    let quiet = orbit_services::Spec { period: Duration::ZERO, ..spec("count", Dispatch::Agent, vec![]) };
    let second = host.load(&quiet, &native("count")).expect("loaded");
    let runs = host.follow(first).expect("followed");
    host.watch_opened(second, orbit_services::Opened::service(runs)).expect("watched");
    let of = |host: &orbit_services::Host, id| host.status(id).expect("loaded").account.runs;
    until("ten runs of the follower", || of(&host, second) >= 10);
    assert!(of(&host, first) >= of(&host, second), "a run of one starts at most one of the other");
    host.unload(first).expect("unloaded");
    std::thread::sleep(Duration::from_millis(500));
    let before = of(&host, second);
    // Another service in the same slot is none that was followed.
    let third = host.load(&spec("count", Dispatch::Agent, vec![]), &native("count")).expect("loaded");
    until("ten runs of a third one", || of(&host, third) >= 10);
    assert_eq!(of(&host, second), before);
}
