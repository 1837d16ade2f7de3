//! `--pid`: a program that runs already is kept, put back after a crash, and left again.

mod common;

use common::{KEEP, Scratch, count, lacks, lacks_tracking, until};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

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
    command.args(common::BEST_EFFORT).args(["--every", "100ms", "--pid", &pid, "--events"]).arg(events);
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

/// Rust's standard library handles SIGSEGV to name stack overflows; the program dies of it in any
/// case, so it is put back like one that has no handler.
#[test]
fn a_program_in_rust_is_put_back() {
    if lacks("rustc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("attach-rust");
    let (source, program) = (scratch.join("lines.rs"), scratch.join("lines"));
    let text = "use std::io::BufRead;\nfn main() {\n    for (nth, line) in std::io::stdin().lock().lines().enumerate() \
                {\n        println!(\"{nth} {}\", line.unwrap());\n    }\n}\n";
    fs::write(&source, text).expect("written");
    assert!(Command::new("rustc").arg(&source).arg("-o").arg(&program).status().expect("rustc").success());
    let spawned = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut program = Program(spawned.expect("the program"));
    let mut to = program.0.stdin.take().expect("a pipe");
    let mut from = BufReader::new(program.0.stdout.take().expect("a pipe")).lines();
    let mut ask = |line: &str| {
        writeln!(to, "{line}").expect("it reads");
        from.next().expect("it answers").expect("a line")
    };
    assert_eq!(ask("a"), "0 a");
    let events = scratch.join("events");
    let mut keeper = keep(program.0.id(), &events);
    until("it is kept", || (count(&events, "kept") > 0).then_some(()));
    // SAFETY: an own child that was not waited for yet.
    unsafe { libc::kill(program.0.id() as i32, libc::SIGSEGV) };
    until("it is put back", || (count(&events, "recovered") > 0).then_some(()));
    assert_eq!(ask("b"), "1 b", "as if nothing had been");
    interrupt(&keeper);
    assert_eq!(until("the keeper leaves", || keeper.try_wait().expect("a child")).code(), Some(0));
    assert_eq!(ask("c"), "2 c", "and it gets on without a keeper");
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

/// What another version has in a program lies elsewhere in it: nothing is read from that, nor taken
/// out.
#[test]
fn a_program_that_another_version_keeps_is_refused() {
    if lacks("python3") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("attach-version");
    let (ready, events) = (scratch.join("ready"), scratch.join("events"));
    // The magic number, a version that never was, and no keeper at any offset.
    let other = "import mmap, os, struct, sys, time\n\
        fd = os.memfd_create('orbit-keep'); os.ftruncate(fd, 1 << 16)\n\
        os.pwrite(fd, struct.pack('II', 0x5045454b, 999), 0)\n\
        held = mmap.mmap(fd, 1 << 16); open(sys.argv[1], 'w').close()\n\
        time.sleep(600)";
    let spawned = Command::new("python3").args(["-c", other]).arg(&ready).spawn().expect("python3");
    let program = Program(spawned);
    until("it has the memory", || ready.exists().then_some(()));
    let maps = || fs::read_to_string(format!("/proc/{}/maps", program.0.id())).expect("it lives");
    let before = maps();
    let mut command = Command::new(KEEP);
    command.args(common::BEST_EFFORT).args(["--pid", &program.0.id().to_string(), "--events"]).arg(&events);
    let refused = command.output().expect("orbit-keep");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(125), "{said}");
    assert!(said.contains("another version of orbit"), "{said}");
    assert_eq!(maps(), before);
}
