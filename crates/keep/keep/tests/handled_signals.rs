//! In log mode, signals that a program handles are part of what is replayed: after a crash each
//! handler has run as often as before, at the same place among the requests.

mod common;

use common::{KEEP, Scratch, count, events, lacks, lacks_tracking, until};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};

struct Server {
    scratch: Scratch,
    pid: i32,
    stream: UnixStream,
}

impl Server {
    fn ask(&mut self, what: u8) -> u8 {
        let mut answer = [0];
        self.stream.write_all(&[what]).expect("sent");
        self.stream.read_exact(&mut answer).expect("an answer");
        answer[0]
    }

    /// The history as the program has it now; that includes the request for it.
    fn history(&mut self) -> String {
        let mut bytes = vec![0; 65536];
        self.stream.write_all(b"h").expect("sent");
        let n = self.stream.read(&mut bytes).expect("an answer");
        String::from_utf8_lossy(&bytes[..n]).into_owned()
    }

    fn send(&self, signal: i32) {
        // SAFETY: a child of an own child that lives until that one has reaped it.
        unsafe { libc::kill(self.pid, signal) };
    }

    fn crash(&self, nth: usize) {
        let mut other = UnixStream::connect(self.scratch.join("socket")).expect("connected");
        other.write_all(b"c").expect("sent");
        // Its connection ends with the request that is dropped.
        let _ = other.read(&mut [0]);
        until("it is put back", || (count(&self.scratch.join("events"), "recovered") >= nth).then_some(()));
    }
}

/// A server with one checkpoint, early: all that follows is replayed each time.
fn start(name: &str) -> (Server, Child) {
    let scratch = Scratch::new(name);
    let program = scratch.join("handler");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/handler.c");
    assert!(
        Command::new("cc").args(["-D_GNU_SOURCE", "-O1", source, "-o"]).arg(&program).status().expect("cc").success()
    );
    let log = scratch.join("events");
    let mut command = Command::new(KEEP);
    command.args(["--log", "--every", "60s", "--events"]).arg(&log).arg("--").arg(&program).arg(&scratch.0);
    let keeper = command.spawn().expect("orbit-keep");
    let kept = until("it is kept", || events(&log).into_iter().find(|e| e["event"] == "kept"));
    let pid = kept["pid"].as_i64().expect("a number") as i32;
    let stream = until("it accepts", || UnixStream::connect(scratch.join("socket")).ok());
    (Server { scratch, pid, stream }, keeper)
}

#[test]
fn handlers_run_again_where_they_ran() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let (mut server, mut keeper) = start("handler");
    let mut expected = String::new();
    for round in 0..40 {
        assert_eq!(server.ask(b'x'), b'.');
        expected.push('r');
        let (signal, letter) = if round % 3 == 0 { (libc::SIGUSR2, '2') } else { (libc::SIGUSR1, '1') };
        server.send(signal);
        expected.push(letter);
        // Handled before the next request is sent.
        until("it is handled", || {
            let now = server.history();
            expected.push('r');
            now.contains(&expected[..expected.len() - 1]).then_some(())
        });
        assert_eq!(server.ask(b'a'), b'.');
        expected += "ra";
    }
    let before = server.history();
    assert_eq!(before, expected.clone() + "r");
    for nth in 1..=2 {
        server.crash(nth);
        let after = server.history();
        assert!(after.starts_with(&before), "the same history, then what came since:\n{before}\n{after}");
        assert!(!after[before.len()..].contains(['1', '2', 'a']), "no handler has run twice: {after}");
    }
    assert_eq!(count(&server.scratch.join("events"), "diverged"), 0, "no replay left the log's order");
    server.send(libc::SIGTERM);
    let status = until("it ends", || keeper.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(7), "a signal to end is handled too");
}

#[test]
fn redis_ends_by_a_signal_that_it_had_handled_before_a_crash() {
    if lacks("redis-server") || lacks_tracking() {
        return;
    }
    for round in 0..3 {
        let mut redis = common::Redis::start("handled-redis", &["--every", "30s"]);
        let mut client = redis.client();
        client.increment("count", 1);
        let mut poison = redis.client();
        // Its handler only sets a word, which its timer sees up to 100 ms later.
        // SAFETY: a child of an own child that lives until that one has reaped it.
        unsafe { libc::kill(redis.pid, libc::SIGTERM) };
        poison.send(&["DEBUG", "SEGFAULT"]).expect("sent");
        let status = until("it shuts down", || redis.keeper.try_wait().expect("a child"));
        assert_eq!(status.code(), Some(0), "round {round}: in order, not by its crash");
    }
}

#[test]
fn a_crash_during_the_replay_takes_the_next_rung() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let (mut server, mut keeper) = start("handler-twice");
    for _ in 0..10 {
        assert_eq!(server.ask(b'x'), b'.');
    }
    assert_eq!(server.ask(b'd'), b'.', "answered by the second replay");
    assert_eq!(server.history(), "r".repeat(12));
    let log = server.scratch.join("events");
    // Reported after the program continues.
    until("that is reported", || (count(&log, "recovered") >= 1).then_some(()));
    assert_eq!((count(&log, "attempt"), count(&log, "recovered")), (2, 1), "nothing is claimed before it is proven");
    server.send(libc::SIGTERM);
    let status = until("it ends", || keeper.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(7));
}

#[test]
fn a_child_made_while_a_signal_waits_makes_its_calls() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("forks");
    let program = scratch.join("forks");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/forks.c");
    let compiled = Command::new("cc").args(["-D_GNU_SOURCE", "-O1", source, "-o"]).arg(&program).status();
    assert!(compiled.expect("cc").success());
    let log = scratch.join("events");
    let mut command = Command::new(KEEP);
    command.args(["--log", "--events"]).arg(&log).arg("--").arg(&program).arg(&scratch.0);
    let mut keeper = command.spawn().expect("orbit-keep");
    until("it is kept", || (count(&log, "kept") > 0).then_some(()));
    std::fs::write(scratch.join("go"), "").expect("written");
    let status = keeper.wait().expect("a child");
    assert_eq!((status.code(), count(&log, "crash")), (Some(5), 0));
}
