//! A reader that does not read keeps the guard from nothing: a hang is acted upon, and the guard
//! can be asked to leave; a FIFO that nobody reads is an error at once. What it reads later is
//! whole, also from a pipe that somebody has made one that does not wait.

use crate::guard_common;
use guard_common::{Dir, build, signal, skipped, until};
use serde_json::Value;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

const ORBIT: &str = env!("CARGO_BIN_EXE_orbit");

/// A pipe into which nothing more goes, with these flags in the end.
fn full(flags: i32) -> (PipeReader, PipeWriter) {
    let (reader, writer) = io::pipe().expect("a pipe");
    // SAFETY: the descriptor is open, the bytes are there.
    unsafe {
        libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
        for length in [4096, 1] {
            while libc::write(writer.as_raw_fd(), [b'.'; 4096].as_ptr().cast(), length) > 0 {}
        }
        libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, flags);
    }
    (reader, writer)
}

/// Whether the process has ended, reaped or not.
fn ended(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}

/// Runs a program that hangs under a guard whose stdout, with events, and stderr nobody reads,
/// until it was killed; the guard's end, and what it said.
fn killed<T>(name: &str, flags: i32, end: impl FnOnce(i32, PipeReader, PipeReader) -> T) -> (ExitStatus, T) {
    let dir = Dir::new(name);
    let (program, pid) = (build(&dir, "hangs.c"), dir.0.join("pid"));
    let script = format!("echo $$ >{0}.part; mv {0}.part {0}; exec {1} ring2", pid.display(), program.display());
    let ((events, stdout), (reader, stderr)) = (full(flags), full(flags));
    let mut guard = Command::new(ORBIT)
        .args(["watch", "--on-hang", "guess:kill", "--events", "-", "--", "sh", "-c", &script])
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        .spawn()
        .expect("orbit");
    let pid = until("the program", || std::fs::read_to_string(&pid).ok());
    until("its end", || ended(pid.trim()).then_some(()));
    let said = end(guard.id() as i32, events, reader);
    (until("the guard's end", || guard.try_wait().expect("wait")), said)
}

/// All that is in the pipe and comes, without what filled it.
fn all(mut reader: PipeReader) -> String {
    let mut said = String::new();
    reader.read_to_string(&mut said).expect("text");
    said.trim_start_matches('.').to_owned()
}

fn reported_later(name: &str, flags: i32) {
    if skipped() {
        return;
    }
    let (status, (events, said)) = killed(name, flags, |_, events, reader| {
        let events = std::thread::spawn(|| all(events));
        let said = all(reader);
        (events.join().expect("no panic"), said)
    });
    assert_eq!(status.code(), Some(137));
    let place = |text: &str| said.find(text).unwrap_or_else(|| panic!("no `{text}` in: {said}"));
    assert!(place("blocked hang") < place("sent signal 9"), "{said}");
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let names: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    let first = |name| names.iter().position(|one| *one == name).unwrap_or_else(|| panic!("no {name} in {names:?}"));
    assert!(first("joined") < first("hang") && first("hang") < first("action"), "{names:?}");
}

#[test]
fn a_hang_is_acted_upon_and_reported_later() {
    reported_later("unread", 0);
}

#[test]
fn a_hang_is_reported_to_a_pipe_that_does_not_wait() {
    reported_later("unread-shared", libc::O_NONBLOCK);
}

#[test]
fn the_guard_can_be_asked_not_to_wait() {
    if skipped() {
        return;
    }
    let (status, ()) = killed("unread-left", 0, |guard, events, reader| {
        until("the guard's end", || {
            // One that comes before the guard knows of the program's end is the program's.
            signal(guard, libc::SIGTERM);
            ended(&guard.to_string()).then_some(())
        });
        // Open until here, unread.
        drop((events, reader));
    });
    assert_eq!(status.code(), Some(137));
}

fn fifo(path: &Path) {
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).expect("a path");
    // SAFETY: the name ends with a zero.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
}

#[test]
fn a_fifo_that_nobody_reads_is_an_error() {
    let dir = Dir::new("fifo");
    let path = dir.0.join("events");
    fifo(&path);
    for (command, code) in [(&["watch"][..], 125), (&["modules", "run", "silence"], 1)] {
        let child = Command::new(ORBIT)
            .args(command)
            .arg("--events")
            .arg(&path)
            .args(["--", "echo", "ran"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.expect("orbit");
        let status = until("the error", || child.try_wait().expect("wait"));
        let out = child.wait_with_output().expect("output");
        let said = String::from_utf8(out.stderr).expect("text");
        assert!(status.code() == Some(code) && out.stdout.is_empty(), "{status}: {said}");
        assert!(said.contains(path.to_str().expect("a path")) && said.contains("start the reader first"), "{said}");
    }
}
