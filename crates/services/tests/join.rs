//! A running program that knows nothing of services becomes a member, and stops being one, unharmed.

mod common;

use common::{host, is_root, native, spec, until};
use orbit_services::Dispatch;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A program that computes and checks itself, compiled on the spot; killed when this is dropped.
struct Subject(Child, PathBuf);

impl Subject {
    fn start(flags: &[&str]) -> Subject {
        let name = format!("orbit-join-{}-{}", std::process::id(), flags.concat().replace('-', ""));
        let program = std::env::temp_dir().join(name);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/native/subject.c");
        let done = Command::new("cc").arg("-O2").args(flags).arg("-o").arg(&program).arg(source).status().expect("cc");
        assert!(done.success());
        let mut child = Command::new("taskset");
        child.args(["-c", &common::cpu().to_string()]).arg(&program).stdout(Stdio::null());
        Subject(child.spawn().expect("the program"), program)
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// Waits until it is the program, and not the one that binds it to a CPU.
    fn is_running(&self) -> bool {
        std::fs::read_link(format!("/proc/{}/exe", self.pid())).is_ok_and(|exe| exe == self.1)
    }

    fn is_alive(&mut self) -> bool {
        self.0.try_wait().expect("own child").is_none()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_file(&self.1);
    }
}

/// What is mapped, which signals are caught, which descriptors are open.
fn traces(pid: i32) -> (bool, String, usize) {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let caught = status.lines().find(|line| line.starts_with("SigCgt")).expect("a line").to_owned();
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("fd").count();
    (maps.contains("orbit-sandbox"), caught, files)
}

#[test]
fn dynamic_and_static_programs_join_and_leave_again_and_again() {
    if !is_root() {
        return;
    }
    let rounds = if std::env::var_os("ORBIT_TEST_FULL").is_some() { 500 } else { 10 };
    for flags in [&[][..], &["-static"]] {
        let mut host = host();
        host.start_ticks(Duration::from_millis(2));
        if let Some(why) = host.no_ticks() {
            println!("SKIP: needs ticks: {why}");
            return;
        }
        let id = host.load(&spec("count", Dispatch::Upcall, vec![]), &native("count")).expect("loaded");
        let mut subject = Subject::start(flags);
        until("it runs", || subject.is_running());
        let before = traces(subject.pid());
        let mut stopped = Vec::new();
        for nth in 0..rounds {
            stopped.push(host.join(subject.pid()).unwrap_or_else(|error| panic!("{flags:?}, round {nth}: {error}")));
            if nth % 100 == 0 {
                let upcalls = host.status(id).expect("loaded").account.upcalls;
                until("upcalls in it", || host.status(id).expect("loaded").account.upcalls > upcalls + 3);
            }
            assert!(host.join(subject.pid()).is_err(), "it is a member already");
            host.leave(subject.pid()).expect("left");
            assert!(subject.is_alive());
            assert_eq!(traces(subject.pid()), before, "{flags:?}, round {nth}");
        }
        stopped.sort();
        println!("{flags:?}: stopped for {:?} (median), {:?} (longest)", stopped[rounds / 2], stopped[rounds - 1]);
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
