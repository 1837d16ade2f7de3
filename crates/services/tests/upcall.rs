//! A pure native service runs in whichever member is current, and in an agent when none is.

mod common;

use common::{Member, host, is_root, native, spec, until};
use orbit_services::{Dispatch, GrantRequest};
use std::time::Duration;

#[test]
#[ignore = "the program of members"]
fn member_program() {
    common::member_program();
}

#[test]
fn runs_in_the_member_that_is_current() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let mut member = Member::start(&mut host, "member_program");
    host.start_ticks(Duration::from_millis(2));
    if let Some(why) = host.no_ticks() {
        println!("SKIP: needs ticks: {why}");
        return;
    }
    let target = GrantRequest::set("cpu:nice", std::process::id() as i32);
    let id = host.load(&spec("count", Dispatch::Upcall, vec![target]), &native("count")).expect("loaded");
    until("100 upcalls", || host.status(id).expect("loaded").account.upcalls >= 100);
    let account = host.status(id).expect("loaded").account;
    assert!(account.cpu_ns > 0 && account.aborts() == 0 && account.failed == 0, "{account:?}");
    assert!(member.is_alive(), "the member's results are as before");
    println!("{account:?} {:?}", host.tick_outcomes());
}

#[test]
fn runs_in_the_agent_when_no_member_is_current() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let id = host.load(&spec("count", Dispatch::Upcall, vec![]), &native("count")).expect("loaded");
    until("20 runs", || host.status(id).expect("loaded").account.runs >= 20);
    assert_eq!(host.status(id).expect("loaded").account.upcalls, 0);
}
