//! `--pid`: a program that runs already is kept, put back after a crash, and left again.

mod common;

use common::{KEEP, Scratch, count, lacks, lacks_tracking, until};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

fn compile(scratch: &Scratch) -> PathBuf {
    let program = scratch.join("worker");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/worker.c");
    let compiled = Command::new("cc").args(["-O1", "-pthread", source, "-o"]).arg(&program).status().expect("cc");
    assert!(compiled.success());
    program
}

fn keep(pid: u32, events: &Path) -> Child {
    let pid = pid.to_string();
    let mut command = Command::new(KEEP);
    command.args(["--every", "100ms", "--pid", &pid, "--events"]).arg(events);
    command.spawn().expect("orbit-keep")
}

/// A program that does not outlive a test that fails.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn interrupt(keeper: &Child) {
    // SAFETY: an own child that was not waited for yet.
    unsafe { libc::kill(keeper.id() as i32, libc::SIGINT) };
}

#[test]
fn a_running_program_is_kept_and_left() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("attach");
    let spawned = Command::new(compile(&scratch)).arg(&scratch.0).spawn().expect("the worker");
    let mut program = Program(spawned);
    until("it works", || fs::read_to_string(scratch.join("lines")).ok().filter(|lines| lines.lines().count() > 3));
    let maps = || fs::read_to_string(format!("/proc/{}/maps", program.0.id())).unwrap_or_default();

    let events = scratch.join("events");
    let mut keeper = keep(program.0.id(), &events);
    until("it is kept", || (count(&events, "kept") > 0).then_some(()));
    assert!(maps().contains("memfd:orbit-keep"));
    for crash in 1..=2 {
        fs::write(scratch.join(&format!("crash{crash}")), "").expect("written");
        until("it is put back", || (count(&events, "recovered") >= crash).then_some(()));
    }
    let second = Command::new(KEEP).args(["--pid", &program.0.id().to_string()]).output().expect("orbit-keep");
    assert_eq!(second.status.code(), Some(125), "one keeper at a time");
    assert!(String::from_utf8_lossy(&second.stderr).contains("is kept already"));

    interrupt(&keeper);
    let status = until("the keeper leaves", || keeper.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(0));
    assert!(!maps().contains("memfd:orbit-keep"), "nothing of ours is left in it");
    let before = fs::read_to_string(scratch.join("lines")).expect("lines").lines().count();
    until("it gets on without a keeper", || {
        (fs::read_to_string(scratch.join("lines")).expect("lines").lines().count() > before + 5).then_some(())
    });
    // And once more.
    let again = scratch.join("again");
    let mut keeper = keep(program.0.id(), &again);
    until("it is kept again", || (count(&again, "kept") > 0).then_some(()));
    fs::write(scratch.join("stop"), "").expect("written");
    let status = until("it exits", || program.0.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(7), "after its own checks of memory and threads");
    until("the keeper ends with it", || keeper.try_wait().expect("a child"));
}

#[test]
fn a_keeper_that_is_killed_leaves_a_program_that_dies_of_its_own_crash() {
    use std::os::unix::process::ExitStatusExt;
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("attach-killed");
    let spawned = Command::new(compile(&scratch)).arg(&scratch.0).spawn().expect("the worker");
    let mut program = Program(spawned);
    let events = scratch.join("events");
    let mut keeper = keep(program.0.id(), &events);
    until("it is kept", || (count(&events, "kept") > 0).then_some(()));
    keeper.kill().expect("killed");
    keeper.wait().expect("reaped");
    // Another one may take its place.
    let again = scratch.join("again");
    let mut keeper = keep(program.0.id(), &again);
    until("it is kept again", || (count(&again, "kept") > 0).then_some(()));
    keeper.kill().expect("killed");
    keeper.wait().expect("reaped");
    fs::write(scratch.join("crash1"), "").expect("written");
    let status = until("it dies", || program.0.try_wait().expect("a child"));
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
}
