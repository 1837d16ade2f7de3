//! Without a log: a program with threads, mappings that come and go, and a file that it writes is
//! put back, and does again what it did since.

mod common;

use common::{KEEP, Scratch, count, lacks, lacks_tracking, until};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

/// By a fault and by `abort`.
const CRASHES: usize = 2;

#[test]
fn memory_threads_mappings_and_offsets_go_back() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("worker");
    let program = scratch.join("worker");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/worker.c");
    let compiled = Command::new("cc").args(["-O1", "-pthread", source, "-o"]).arg(&program).status().expect("cc");
    assert!(compiled.success());
    let events = scratch.join("events");
    let mut keeper = Command::new(KEEP)
        .args(common::BEST_EFFORT)
        .args(["--every", "100ms", "--events"])
        .arg(&events)
        .arg("--")
        .arg(&program)
        .arg(&scratch.0)
        .spawn()
        .expect("orbit-keep");
    until("it is kept", || (count(&events, "kept") > 0).then_some(()));
    for crash in 1..=CRASHES {
        fs::write(scratch.join(&format!("crash{crash}")), "").expect("written");
        until("it is put back", || (count(&events, "recovered") >= crash).then_some(()));
    }
    let before = fs::read_to_string(scratch.join("lines")).expect("lines").lines().count();
    until("it gets on", || {
        let lines = fs::read_to_string(scratch.join("lines")).expect("lines").lines().count();
        (lines > before + 10).then_some(())
    });
    fs::write(scratch.join("stop"), "").expect("written");
    let status = until("it exits", || keeper.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(7), "the program's own status, after its own checks of memory and threads");
    let lines = fs::read_to_string(scratch.join("lines")).expect("lines");
    for (i, line) in lines.lines().enumerate() {
        assert_eq!(line, i.to_string(), "each line is there once, though some were written twice");
    }
}

#[test]
fn a_crash_that_comes_again_gets_its_true_status() {
    if lacks("sh") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("status");
    let events = scratch.join("events");
    let status = Command::new(KEEP)
        .args(common::BEST_EFFORT)
        .args(["--every", "50ms", "--events"])
        .arg(&events)
        .args(["--", "sh", "-c", "sleep 1; kill -ABRT $$; kill -ABRT $$; kill -ABRT $$; kill -ABRT $$; kill -ABRT $$"])
        .status()
        .expect("orbit-keep");
    assert_eq!(status.signal(), Some(libc::SIGABRT));
    assert_eq!(count(&events, "gave-up"), 1);
}

/// It takes longer than a remedy needs to show its worth, and checkpoints are taken on the way.
#[test]
fn a_crash_that_comes_again_after_a_computation_gets_its_true_status() {
    if lacks("sh") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("computation");
    let events = scratch.join("events");
    let computation = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; kill -SEGV $$";
    let status = Command::new(KEEP)
        .args(common::BEST_EFFORT)
        .args(["--every", "50ms", "--events"])
        .arg(&events)
        .args(["--", "sh", "-c", computation])
        .status()
        .expect("orbit-keep");
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
    assert_eq!(count(&events, "gave-up"), 1);
    assert!(count(&events, "recovered") <= 12, "each rung is tried a few times at most");
}

/// The keeper writes to the program's own stderr, a file that would go back with the program.
#[test]
fn what_is_reported_stays() {
    if lacks("sh") || lacks_tracking() {
        return;
    }
    for append in [false, true] {
        let scratch = Scratch::new(&format!("stays-{append}"));
        let log = scratch.join("log");
        let file = fs::OpenOptions::new().create(true).append(append).write(true).open(&log).expect("made");
        let computation = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo x; kill -SEGV $$";
        Command::new(KEEP)
            .args(common::BEST_EFFORT)
            .args(["--every", "50ms", "--", "sh", "-c", computation])
            .stdout(file.try_clone().expect("a duplicate"))
            .stderr(file)
            .status()
            .expect("orbit-keep");
        let text = fs::read_to_string(&log).expect("text");
        for what in ["crash 1: ", "crash 2: ", "put back to the newest checkpoint", "given up: "] {
            assert!(text.contains(what), "{what:?}, append {append}: {text}");
        }
    }
}

/// `abort` is one instruction in libc; unlike crashes are not one that comes again.
#[test]
fn aborts_at_unlike_places_are_unlike_crashes() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("aborts");
    let (program, events) = (scratch.join("aborts"), scratch.join("events"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/aborts.c");
    let compiled = Command::new("cc").args(["-O1", "-D_GNU_SOURCE", source, "-o"]).arg(&program).status().expect("cc");
    assert!(compiled.success());
    let mut keeper = Command::new(KEEP)
        .args(common::BEST_EFFORT)
        .args(["--every", "50ms", "--events"])
        .arg(&events)
        .arg("--")
        .arg(&program)
        .arg(&scratch.0)
        .spawn()
        .expect("orbit-keep");
    until("it is kept", || (count(&events, "kept") > 0).then_some(()));
    fs::write(scratch.join("go"), "").expect("written");
    let status = until("it exits", || keeper.try_wait().expect("a child"));
    assert_eq!((status.code(), count(&events, "crash"), count(&events, "gave-up")), (Some(7), 6, 0));
}
