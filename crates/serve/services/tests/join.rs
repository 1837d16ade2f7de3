//! A running program that knows nothing of services becomes a member, and stops being one,
//! unharmed.

mod common;

use common::{Subject, host, is_root, native, spec, times, until};
use orbit_services::Dispatch;
use std::os::unix::fs::FileExt;
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
        // Go's runtime sets its handlers in the order of their signals.
        let catches_the_last = || traces(subject.pid()).1.contains("\tf");
        until("Go's runtime has its handlers", || kind != "Go" || catches_the_last());
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

/// As after a join or a leave that was cut short: the region is there, the host has no such member.
#[test]
fn a_join_or_a_leave_that_was_cut_short_is_repeated() {
    if !is_root() {
        return;
    }
    let mut host = host();
    host.start_ticks(Duration::from_millis(2));
    let mut subject = Subject::start(&["-DCUT"]);
    until("it runs", || subject.is_running());
    let before = traces(subject.pid()).1;
    host.join(subject.pid()).expect("joined");
    host.remove_member(subject.pid());
    host.join(subject.pid()).expect("joined once more");
    assert_eq!(host.members().collect::<Vec<_>>(), [subject.pid()]);
    host.leave(subject.pid()).expect("left");
    host.leave(subject.pid()).expect("it has left");
    let (has_region, caught, _) = traces(subject.pid());
    assert_eq!((has_region, caught, subject.ended()), (false, before, None));
}

/// A program that does not come out of a call of a service stays a member, and leaves later.
#[test]
fn a_leave_that_fails_leaves_a_member() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let mut subject = Subject::start(&["-DFAILS"]);
    until("it runs", || subject.is_running());
    let before = traces(subject.pid()).1;
    host.join(subject.pid()).expect("joined");
    let inside = std::fs::OpenOptions::new().write(true).open(format!("/proc/{}/mem", subject.pid())).expect("memory");
    let at = orbit_sandbox_lib::abi::PRIVATE + std::mem::offset_of!(orbit_sandbox_lib::abi::Private, inside);
    let set = |calls: u32| inside.write_all_at(&calls.to_ne_bytes(), at as u64).expect("written");
    set(1);
    let error = host.leave(subject.pid()).expect_err("it is in a call");
    assert!(error.to_string().contains("does not come out"), "{error}");
    assert_eq!(host.members().collect::<Vec<_>>(), [subject.pid()]);
    set(0);
    host.leave(subject.pid()).expect("left");
    let (has_region, caught, _) = traces(subject.pid());
    assert_eq!((has_region, caught, subject.ended(), host.members().count()), (false, before, None, 0));
}
