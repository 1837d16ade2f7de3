//! Handlers that harm what ends their run: it ends all the same, and no agent keeps its CPU, with
//! or without its host.

mod common;

use common::{Member, host, is_root, kill, native, spec, until};
use orbit_services::{Dispatch, Happened, Host, ServiceId};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
#[ignore = "the program of members"]
fn member_program() {
    common::member_program();
}

/// What `smash.c` does for a letter.
const WAYS: [(u8, &str); 3] = [
    (b'u', "runs over the end of its stack"),
    (b'c', "writes around its context"),
    (b'r', "overwrites where it returns to"),
];

fn load(host: &mut Host, way: u8, dispatch: Dispatch) -> ServiceId {
    let mut spec = spec("smash", dispatch, vec![]);
    spec.arguments = vec![way];
    host.load(&spec, &native("smash")).expect("loaded")
}

#[test]
fn runs_that_overwrite_their_slot_end_in_an_agent() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let agents: Vec<i32> = host.agents().collect();
    for (way, what) in WAYS {
        let id = load(&mut host, way, Dispatch::Agent);
        until(what, || host.status(id).expect("loaded").account.faults > 3);
        host.unload(id).expect("unloaded");
    }
    assert_eq!(host.agents().collect::<Vec<_>>(), agents, "the same agent all the time");
    assert!(host.tend().is_empty());
}

#[test]
fn runs_that_overwrite_their_slot_end_in_a_member() {
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
    for (way, what) in WAYS {
        let id = load(&mut host, way, Dispatch::Upcall);
        until(what, || {
            let account = host.status(id).expect("loaded").account;
            account.upcalls > 3 && account.faults > 3
        });
        assert!(member.is_alive(), "{what}");
        host.unload(id).expect("unloaded");
    }
}

/// No signal ends such a run: the kernel does, by the limit of the agent.
#[test]
fn a_run_that_blocks_all_signals_ends_with_its_agent() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let id = load(&mut host, b'm', Dispatch::Agent);
    let mut happened = Vec::new();
    until("it is revoked", || {
        happened.extend(host.tend());
        host.status(id).expect("loaded").is_revoked
    });
    assert!(happened.iter().any(|one| matches!(one, Happened::AgentDied { .. })), "{happened:?}");
    assert!(matches!(happened.last(), Some(Happened::Revoked { .. })), "{happened:?}");
    host.unload(id).expect("its runner is gone");
    let count = host.load(&spec("count", Dispatch::Agent, vec![]), &native("count")).expect("loaded");
    until("a healthy service runs", || {
        host.tend();
        host.status(count).expect("loaded").account.runs > 5
    });
}

#[test]
fn a_revocation_does_not_wait_for_a_run_that_blocks_all_signals() {
    let options = orbit_services::Options { cpus: vec![common::cpu()], agent_priority: 0, ..Default::default() };
    let mut host = Host::new(options).expect("a host with ordinary agents");
    let id = load(&mut host, b'm', Dispatch::Agent);
    until("a run that does not end", || host.status(id).is_ok() && host.is_running(id));
    host.unload(id).expect("unloaded");
    let id = host.load(&spec("count", Dispatch::Agent, vec![]), &native("count")).expect("loaded");
    until("a healthy service runs", || {
        host.tend();
        host.status(id).expect("loaded").account.runs > 5
    });
}

#[test]
#[ignore = "the program of a host"]
fn host_program() {
    let Ok(way) = std::env::var("ORBIT_TEST_WAY") else { return };
    let options = orbit_services::Options { cpus: vec![common::cpu()], agent_priority: 0, ..Default::default() };
    let mut host = Host::new(options).expect("a host with ordinary agents");
    let id = load(&mut host, way.as_bytes()[0], Dispatch::Agent);
    until("a run", || host.is_running(id));
    println!("agent {}", host.agents().next().expect("an agent"));
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// An ordinary agent, which the kernel does not limit.
#[test]
fn an_agent_in_the_middle_of_a_run_ends_with_its_host() {
    let mut host = Command::new(std::env::current_exe().expect("own program"))
        .args(["host_program", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env("ORBIT_TEST_WAY", "m")
        .stdout(Stdio::piped())
        .spawn()
        .expect("a host");
    let mut output = host.stdout.take().expect("piped");
    let (mut text, mut bytes) = (String::new(), [0u8; 256]);
    let agent = loop {
        let n = output.read(&mut bytes).expect("its output");
        assert!(n > 0, "the host ended: {text}");
        text += &String::from_utf8_lossy(&bytes[..n]);
        if let Some(found) = text.lines().find_map(|line| line.rsplit_once("agent ")?.1.trim().parse::<i32>().ok()) {
            break found;
        }
    };
    kill(host.id() as i32);
    host.wait().expect("own child");
    let began = Instant::now();
    let is_there = || std::fs::read_to_string(format!("/proc/{agent}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    until("the agent ends", || !is_there());
    println!("it ended after {:?}", began.elapsed());
}

#[test]
fn a_budget_that_a_real_time_agent_cannot_have_is_refused() {
    if !is_root() {
        return;
    }
    let mut spec = spec("count", Dispatch::Agent, vec![]);
    spec.budget = orbit_services::Budget::new(Duration::from_millis(60), Duration::from_secs(1)).expect("a budget");
    let error = host().load(&spec, &native("count")).expect_err("too long");
    assert!(error.to_string().contains("60ms") && error.to_string().contains("at most 50ms"), "{error}");
}
