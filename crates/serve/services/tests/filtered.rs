//! A program whose seccomp filter would kill it for what an upcall calls is not joined; one that
//! installs its filter as a member gets no more upcalls.

mod common;

use common::{Killed, host, is_root, native, spec, until};
use orbit_services::{Dispatch, Kind};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

fn start() -> Killed {
    let program = std::env::temp_dir().join(format!("orbit-filtered-{}", std::process::id()));
    let source = common::services().join("tests/native/filtered.c");
    let done = Command::new("cc").arg("-O2").arg("-o").arg(&program).arg(source).status().expect("cc");
    assert!(done.success());
    let mut command = Command::new("taskset");
    command.args(["-c", &common::cpu().to_string()]).arg(&program).stdin(Stdio::piped());
    let child = Killed(command.spawn().expect("taskset"));
    let pid = child.pid();
    until("it is the program", || std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program));
    std::fs::remove_file(program).expect("removed");
    child
}

fn is_filtered(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line == "Seccomp:\t2")
}

#[test]
fn a_filter_keeps_a_program_from_joining_and_a_member_from_upcalls() {
    if !is_root() {
        return;
    }
    let mut host = host();
    host.start_ticks(Duration::from_millis(2));
    if let Some(why) = host.no_ticks() {
        return println!("SKIP: needs ticks: {why}");
    }
    let id = host.load(&spec("count", Dispatch::Upcall, vec![]), &native("count")).expect("loaded");
    let mut program = start();
    host.join(program.pid()).expect("joined before it has its filter");
    program.0.stdin.take().expect("a pipe").write_all(b"1").expect("written");
    until("its filter", || is_filtered(program.pid()));
    let runs = || host.status(id).expect("loaded").account.runs;
    let before = runs();
    until("50 runs", || runs() > before + 50);
    assert!(program.0.try_wait().expect("own child").is_none(), "an upcall would have killed it");
    let mut other = start();
    drop(other.0.stdin.take());
    until("its filter", || is_filtered(other.pid()));
    let error = host.join(other.pid()).expect_err("it has a filter");
    assert!(error.kind() == Kind::Unsupported && error.to_string().contains("seccomp filter of its own"), "{error}");
}
