//! Whatever ends, the rest continues: owners, members in the middle of a handler, members that exec, the host.

mod common;

use common::{Member, Sleeper, host, is_root, native, spec, until};
use orbit_services::{Dispatch, GrantRequest, Happened};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
#[ignore = "the program of members"]
fn member_program() {
    common::member_program();
}

/// Joins, waits for a byte, then becomes another program.
#[test]
#[ignore = "the program of a member that execs"]
fn exec_program() {
    let Ok(value) = std::env::var(orbit_services::Invitation::VARIABLE) else { return };
    orbit_linux::sched::set_affinity(0, &[common::cpu()]).expect("own affinity");
    orbit_services::Invitation::parse(&value).expect("an invitation").accept().expect("joining");
    let begin = std::time::Instant::now();
    while begin.elapsed() < Duration::from_millis(300) {
        std::hint::black_box(begin);
    }
    let error = Command::new("/bin/sh").args(["-c", "while :; do :; done"]).exec();
    panic!("{error}");
}

/// A host in a process of its own, which sets the niceness of the process that is named.
#[test]
#[ignore = "the program of a host"]
fn host_program() {
    let Ok(target) = std::env::var("ORBIT_TEST_TARGET") else { return };
    let mut host = host();
    let target = raises(target.parse().expect("a number"));
    let id = host.load(&spec("count", Dispatch::Agent, vec![target]), &native("count")).expect("loaded");
    until("it runs", || host.status(id).expect("loaded").account.runs > 5);
    println!("agent {}", host.agents().next().expect("an agent"));
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn nice(pid: i32) -> i32 {
    orbit_linux::sched::nice(pid).expect("its niceness")
}

/// A handle by which any value of the test service is a higher niceness, also where tests run with a niceness of their own.
fn raises(pid: i32) -> GrantRequest {
    format!("cpu:nice:set(pid={pid},min={})", nice(pid) + 1).parse().expect("a grant")
}

#[test]
fn a_service_ends_with_its_owner_and_what_it_set_is_put_back() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let (target, mut owner) = (Sleeper::start(), Sleeper::start());
    let before = nice(target.pid());
    let mut spec = spec("count", Dispatch::Agent, vec![raises(target.pid())]);
    spec.owner = owner.pid();
    let id = host.load(&spec, &native("count")).expect("loaded");
    until("the service sets the niceness", || nice(target.pid()) > before);
    owner.0.kill().expect("own child");
    let mut happened = Vec::new();
    until("the host sees it", || {
        happened.extend(host.tend());
        !happened.is_empty()
    });
    assert!(matches!(happened[..], [Happened::OwnerEnded { .. }]), "{happened:?}");
    assert!(host.status(id).is_err());
    assert_eq!(nice(target.pid()), before);
}

#[test]
fn a_member_killed_in_a_handler_does_not_stop_the_service() {
    if !is_root() {
        return;
    }
    let mut host = host();
    host.start_ticks(Duration::from_millis(2));
    if let Some(why) = host.no_ticks() {
        println!("SKIP: needs ticks: {why}");
        return;
    }
    // It spins for its whole budget, so that most kills come in the middle of a run.
    let mut wild = spec("wild", Dispatch::Upcall, vec![]);
    wild.arguments = vec![b's'];
    let id = host.load(&wild, &native("wild")).expect("loaded");
    for nth in 0..10 {
        let mut member = Member::start(&mut host, "member_program");
        let before = host.status(id).expect("loaded").account;
        until("an upcall", || host.status(id).expect("loaded").account.runs > before.runs + nth % 3);
        member.0.kill().expect("own child");
        member.0.wait().expect("own child");
        let before = host.status(id).expect("loaded").account;
        until("the service runs on", || host.status(id).expect("loaded").account.runs > before.runs + 2);
    }
}

#[test]
fn a_member_that_execs_is_not_killed_by_upcalls() {
    if !is_root() {
        return;
    }
    let mut host = host();
    host.start_ticks(Duration::from_millis(2));
    if let Some(why) = host.no_ticks() {
        println!("SKIP: needs ticks: {why}");
        return;
    }
    let id = host.load(&spec("count", Dispatch::Upcall, vec![]), &native("count")).expect("loaded");
    let mut member = Member::start(&mut host, "exec_program");
    let pid = member.pid();
    let program = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    until("it is another program", || program().trim() == "sh");
    let before = host.status(id).expect("loaded").account.runs;
    until("100 more events", || host.status(id).expect("loaded").account.runs > before + 100);
    assert!(member.is_alive() && program().trim() == "sh");
}

#[test]
fn what_was_set_is_put_back_when_the_host_is_killed() {
    if !is_root() {
        return;
    }
    let target = Sleeper::start();
    let before = nice(target.pid());
    for _ in 0..3 {
        let mut host = Command::new(std::env::current_exe().expect("own program"))
            .args(["host_program", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env("ORBIT_TEST_TARGET", target.pid().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a host");
        let mut text = String::new();
        let mut output = host.stdout.take().expect("piped");
        let mut agent = None;
        let mut bytes = [0u8; 256];
        while agent.is_none() {
            let n = output.read(&mut bytes).expect("its output");
            assert!(n > 0, "the host ended: {text}");
            text += &String::from_utf8_lossy(&bytes[..n]);
            agent = text.lines().find_map(|line| line.rsplit_once("agent ")?.1.trim().parse::<i32>().ok());
        }
        let agent = agent.expect("just found");
        assert!(nice(target.pid()) > before);
        host.kill().expect("own child");
        host.wait().expect("own child");
        until("the agent ends", || {
            std::fs::read_to_string(format!("/proc/{agent}/stat")).map_or(true, |stat| stat.contains(") Z "))
        });
        assert_eq!(nice(target.pid()), before);
    }
}
