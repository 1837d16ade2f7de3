//! Wild handlers drawn at random, in each native class (those in the kernel: wild_kernel): the
//! program they interrupt, the agent, the thread and a healthy service beside them are unharmed.
//! 1,000 of each class with ORBIT_TEST_FULL=1.

mod common;

use common::{Member, host, is_root, native, spec, times, until};
use orbit_services::{Dispatch, GrantRequest, Host};
use std::time::Duration;

#[test]
#[ignore = "the program of members"]
fn member_program() {
    common::member_program();
}

/// Runs so many random handlers one after the other, each until it has been run or aborted twice.
fn campaign(host: &mut Host, dispatch: Dispatch, mut is_well: impl FnMut() -> bool) {
    let object = native("random");
    let healthy = host.load(&spec("count", Dispatch::Agent, vec![]), &native("count")).expect("loaded");
    for seed in 0..times(40, 1000) as u64 {
        let what = format!("seed {seed}, {dispatch:?}");
        let mut wild = spec("random", dispatch, vec![GrantRequest::get("cpu:used", std::process::id() as i32)]);
        wild.budget = "200us/2ms".parse().expect("a budget");
        wild.arguments = (seed * 7919 + 1).to_ne_bytes().to_vec();
        let id = host.load(&wild, &object).unwrap_or_else(|error| panic!("{what}: {error}"));
        let before = host.status(healthy).expect("loaded").account.runs;
        until(&what, || host.status(id).expect("loaded").account.runs >= 2);
        host.unload(id).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(is_well(), "{what}");
        until("the healthy service runs on", || host.status(healthy).expect("loaded").account.runs > before);
    }
    assert_eq!(host.status(healthy).expect("loaded").account.aborts(), 0);
}

#[test]
fn in_members() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let mut member = Member::start(&mut host, "member_program");
    host.start_ticks(Duration::from_millis(2));
    if let Some(why) = host.no_ticks() {
        return println!("SKIP: needs ticks: {why}");
    }
    campaign(&mut host, Dispatch::Upcall, || member.is_alive());
    assert!(host.tend().is_empty(), "no agent died");
}

#[test]
fn in_agents() {
    if !is_root() {
        return;
    }
    let mut host = host();
    campaign(&mut host, Dispatch::Agent, || true);
    assert!(host.tend().is_empty(), "no agent died");
}

#[test]
fn in_threads() {
    if !is_root() {
        return;
    }
    let mut host = host();
    campaign(&mut host, Dispatch::Thread, || true);
    assert!(host.tend().is_empty() && host.threads().count() == 0);
}
