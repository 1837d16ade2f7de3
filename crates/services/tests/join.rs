//! A running program that knows nothing of services becomes a member, and stops being one,
//! unharmed.

mod common;

use common::{Subject, host, is_root, native, spec, times, until};
use orbit_services::Dispatch;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What is mapped, which signals are caught, which descriptors are open.
fn traces(pid: i32) -> (bool, String, usize) {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let caught = status.lines().find(|line| line.starts_with("SigCgt")).expect("a line").to_owned();
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("fd").count();
    (maps.contains("orbit-sandbox"), caught, files)
}

#[test]
fn dynamic_static_and_go_programs_join_and_leave_again_and_again() {
    if !is_root() {
        return;
    }
    let rounds = times(10, 1000);
    for kind in ["dynamic", "static", "Go"] {
        let mut host = host();
        host.start_ticks(Duration::from_millis(2));
        if let Some(why) = host.no_ticks() {
            println!("SKIP: needs ticks: {why}");
            return;
        }
        let id = host.load(&spec("count", Dispatch::Upcall, vec![]), &native("count")).expect("loaded");
        let started = match kind {
            "static" => Some(Subject::start(&["-static"])),
            "Go" => Subject::go(),
            _ => Some(Subject::start(&[])),
        };
        let Some(mut subject) = started else { continue };
        until("it runs", || subject.is_running());
        let catches = || !traces(subject.pid()).1.ends_with("0000000000000000");
        until("Go's runtime has its handlers", || kind != "Go" || catches());
        let before = traces(subject.pid());
        let mut stopped = Vec::new();
        for nth in 0..rounds {
            stopped.push(host.join(subject.pid()).unwrap_or_else(|error| panic!("{kind}, round {nth}: {error}")));
            if nth % 100 == 0 {
                let upcalls = host.status(id).expect("loaded").account.upcalls;
                until("upcalls in it", || host.status(id).expect("loaded").account.upcalls > upcalls + 3);
            }
            assert!(host.join(subject.pid()).is_err(), "it is a member already");
            host.leave(subject.pid()).expect("left");
            let ended = subject.ended();
            assert!(ended.is_none(), "{kind}, round {nth}: {ended:?}");
            assert_eq!(traces(subject.pid()), before, "{kind}, round {nth}");
        }
        stopped.sort();
        let (median, longest) = (stopped[rounds / 2], stopped[rounds - 1]);
        println!("{kind}: {rounds} joins, stopped for {median:?} (median), {longest:?} (longest)");
    }
}

#[test]
fn a_program_is_a_member_from_its_first_instruction() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let mut command = Command::new("sh");
    command.args(["-c", "grep -c orbit-sandbox /proc/$$/maps"]).stdout(Stdio::piped());
    let child = host.launch(command).expect("started");
    let output = child.wait_with_output().expect("its output");
    let mappings: usize = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number");
    assert!(mappings >= 3, "{output:?}");
}
