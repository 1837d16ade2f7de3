//! A replay touches nothing outside, whatever the program does: of the system calls that are in no
//! log, as the C library makes them for stdio, output is not made again, and what changes nothing
//! outside is made. Where it is not known whether one was made, the program ends with its true
//! status.

mod common;

use common::{KEEP, Scratch, count, events, lacks, lacks_tracking, until};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

const LINES: &str = "line 1\nline 2\nline 3\n";

struct Run {
    keeper: Child,
    client: UnixStream,
    scratch: Scratch,
    pid: i32,
}

fn begin(how: &str) -> Run {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let scratch = Scratch::new(&format!("confined-{how}-{}", RUNS.fetch_add(1, SeqCst)));
    let program = scratch.join("confined");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/confined.c");
    let compiled = Command::new("cc").args(["-O1", "-D_GNU_SOURCE", "-pthread", source, "-o"]).arg(&program).status();
    assert!(compiled.expect("cc").success());
    if how == "reads" {
        fs::write(scratch.join("file"), "one line\n").expect("written");
    }
    let log = scratch.join("events");
    let keeper = Command::new(KEEP)
        .args(["--log", "--every", "60s", "--events"])
        .arg(&log)
        .arg("--")
        .arg(&program)
        .args([scratch.join("socket"), scratch.join("file")])
        .arg(how)
        .spawn()
        .expect("orbit-keep");
    let client = until("it listens", || UnixStream::connect(scratch.join("socket")).ok());
    client.set_read_timeout(Some(common::PATIENCE)).expect("set");
    let kept = until("it is kept", || events(&log).into_iter().find(|e| e["event"] == "kept"));
    let pid = kept["pid"].as_i64().expect("a number") as i32;
    let mut run = Run { keeper, client, scratch, pid };
    assert_eq!((run.ask(b'x'), run.ask(b'x')), ("1".into(), "2".into()));
    run
}

fn start(how: &str) -> Run {
    let run = begin(how);
    if how == "last" {
        // The line comes after the answer: the crash must not come first.
        let lines = || fs::read_to_string(run.scratch.join("file")).ok();
        until("the last line is written", || lines().filter(|lines| lines.lines().count() == 2));
    }
    // SAFETY: a child of an own child that lives until that one has reaped it.
    unsafe { libc::kill(run.pid, libc::SIGSEGV) };
    run
}

impl Run {
    fn ask(&mut self, byte: u8) -> String {
        let mut answer = String::new();
        let mut read = [0];
        let _ = self.client.write_all(&[byte]);
        while self.client.read(&mut read).is_ok_and(|count| count == 1) && read != *b" " {
            answer.push(char::from(read[0]));
        }
        answer
    }

    fn end(self) -> (std::process::ExitStatus, Scratch) {
        let Run { mut keeper, client, scratch, .. } = self;
        drop(client);
        (until("it ends", || keeper.try_wait().expect("a child")), scratch)
    }
}

#[test]
fn what_stdio_has_written_is_not_written_again() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    for (how, text) in [("line", LINES), ("after", LINES), ("whole", "3\n")] {
        let mut run = start(how);
        assert_eq!(run.ask(b'x'), "3", "{how}: nothing is lost or sent twice");
        let (status, scratch) = run.end();
        assert_eq!((status.code(), count(&scratch.join("events"), "recovered")), (Some(7), 1), "{how}");
        assert_eq!(fs::read_to_string(scratch.join("file")).expect("written"), text);
    }
}

/// Behind the last call of the log nobody knows whether a line was written.
#[test]
fn what_stdio_may_have_written_ends_it() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let mut run = start("last");
    assert_eq!(run.ask(b'x'), "", "it is given up");
    let (status, scratch) = run.end();
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "its true status");
    assert_eq!(fs::read_to_string(scratch.join("file")).expect("written"), "line 1\nline 2\n");
    let log = scratch.join("events");
    assert_eq!((count(&log, "gave-up"), count(&log, "recovered")), (1, 0));
    assert!(count(&log, "diverged") > 0);
}

#[test]
fn what_changes_nothing_outside_is_done_again() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    for how in ["plain", "reads"] {
        let mut run = start(how);
        assert_eq!((run.ask(b'x'), run.ask(b'x')), ("3".into(), "4".into()), "{how}: nothing is lost or sent twice");
        let (status, scratch) = run.end();
        assert_eq!((status.code(), count(&scratch.join("events"), "recovered")), (Some(7), 1), "{how}");
    }
}

/// The log knows nothing of the line, a replay does.
#[test]
fn an_input_that_stdio_has_written_after_is_not_dropped() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    for how in ["line", "timed", "after"] {
        let mut run = begin(how);
        assert_eq!(run.ask(b'p'), "", "{how}: it is given up");
        let (status, scratch) = run.end();
        assert_eq!(status.signal(), Some(libc::SIGSEGV), "{how}: its true status");
        assert_eq!(fs::read_to_string(scratch.join("file")).expect("written"), LINES, "{how}");
        assert_eq!(count(&scratch.join("events"), "recovered"), 0, "{how}");
    }
}

/// What an assertion says on stderr is no reason to give the program up.
#[test]
fn an_input_that_an_assertion_fails_for_is_dropped() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let mut run = begin("plain");
    assert_eq!(run.ask(b'a'), "", "its connection ends");
    let (status, scratch) = run.end();
    let log = scratch.join("events");
    let recovered = events(&log).into_iter().find(|e| e["event"] == "recovered").expect("put back");
    assert_eq!((status.code(), &recovered["rung"]), (Some(7), &"drop".into()), "{recovered}");
    assert_eq!(count(&log, "diverged"), 0, "each replay has come to the assertion");
}
