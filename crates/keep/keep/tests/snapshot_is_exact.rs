//! Without a log: a program that nothing has left since the checkpoint is put back, and nobody sees
//! it. A connection from which it had only read is reset, others stay.

mod common;

use common::{Halted, KEEP, PATIENCE, Scratch, checkpoints, count, events, lacks, lacks_tracking, until};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Computes until there is a file, with a pipe of its own, and prints what it has counted to.
const COMPUTES: &str = r#"
import os, sys
n = steps = 0
out, into = os.pipe()
os.write(into, b"0")
open(sys.argv[1] + "/made", "w").close()
while not os.path.exists(sys.argv[1] + "/stop"):
    steps += 1
    n += steps
    assert int(os.read(out, 99)) == steps - 1
    os.write(into, b"%d" % steps)
print("right" if n == steps * (steps + 1) // 2 else "wrong", flush=True)
sys.exit(7)
"#;

/// Answers each byte of each connection with how many it has had from it; dies of `p`.
const SERVES: &str = r#"
import ctypes, os, select, socket, sys
own = os.pipe()
listener = socket.create_server(("127.0.0.1", 0))
with open(sys.argv[1] + "/made", "w") as made: made.write(str(listener.getsockname()[1]))
counts = {}
while True:
    for ready in select.select([listener, *counts], [], [], 0.01)[0]:
        if ready is listener:
            counts[listener.accept()[0]] = 0
            continue
        try: byte = ready.recv(1)
        except OSError: byte = b""
        if byte == b"p": ctypes.string_at(0)
        if byte == b"q": sys.exit(7)
        if not byte:
            del counts[ready]
            ready.close()
            continue
        counts[ready] += 1
        ready.sendall(b"%d " % counts[ready])
"#;

fn start(scratch: &Scratch, program: &str, options: &[&str]) -> (Child, i32) {
    let (keeper, pid) = begin(scratch, program, "50ms", options);
    another_checkpoint(pid);
    (keeper, pid)
}

/// Starts it and waits until it is kept, with a checkpoint `every` so often.
fn begin(scratch: &Scratch, program: &str, every: &str, options: &[&str]) -> (Child, i32) {
    let log = scratch.join("events");
    let keeper = Command::new(KEEP)
        .args(["--every", every, "--events"])
        .arg(&log)
        .args(options)
        .args(["--", "/usr/bin/python3", "-c", program])
        .arg(&scratch.0)
        .stdout(fs::File::create(scratch.join("out")).expect("a file"))
        .stderr(Stdio::inherit())
        .spawn()
        .expect("orbit-keep");
    let kept = until("it is kept", || events(&log).into_iter().find(|e| e["event"] == "kept"));
    let pid = kept["pid"].as_i64().expect("a number") as i32;
    until("it has begun", || fs::read_to_string(scratch.join("made")).ok());
    (keeper, pid)
}

fn is_missing() -> bool {
    if let orbit_linux::Support::No(why) = orbit_linux::calls_made::probe() {
        println!("SKIP: needs {why}");
        return true;
    }
    lacks("python3") || lacks_tracking()
}

/// Waits until a checkpoint was taken that began after this call.
fn another_checkpoint(pid: i32) {
    let before = until("it is listed", || checkpoints(pid));
    // One may be under way, and others may have been taken and not be shown yet.
    until("it has another checkpoint", || checkpoints(pid).filter(|now| *now >= before + 12));
}

#[test]
fn a_computation_is_put_back() {
    if is_missing() {
        return;
    }
    let scratch = Scratch::new("snapshot-computes");
    let (mut keeper, pid) = start(&scratch, COMPUTES, &[]);
    let log = scratch.join("events");
    for crash in 1..=5 {
        // SAFETY: a child of an own child that lives until that one has reaped it.
        unsafe { libc::kill(pid, libc::SIGSEGV) };
        until("it is put back", || (count(&log, "recovered") >= crash).then_some(()));
    }
    fs::write(scratch.join("stop"), "").expect("written");
    let status = until("it exits", || keeper.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(7), "its own status");
    assert_eq!(fs::read_to_string(scratch.join("out")).expect("text"), "right\n");
    let recovered = events(&log).into_iter().filter(|e| e["event"] == "recovered");
    assert!(recovered.clone().all(|e| e["exact"] == true), "{:?}", recovered.collect::<Vec<_>>());
}

fn ask(client: &mut TcpStream, byte: u8) -> String {
    let mut answer = String::new();
    let mut got = [0];
    if client.write_all(&[byte]).is_err() {
        return answer;
    }
    while client.read(&mut got).is_ok_and(|read| read == 1) && got != *b" " {
        answer.push(char::from(got[0]));
    }
    answer
}

#[test]
fn a_connection_that_was_only_read_from_is_reset_and_others_stay() {
    if is_missing() {
        return;
    }
    let scratch = Scratch::new("snapshot-serves");
    let (mut keeper, pid) = start(&scratch, SERVES, &[]);
    let log = scratch.join("events");
    let port: u16 = fs::read_to_string(scratch.join("made")).expect("a port").parse().expect("a number");
    let connect = || {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream
    };
    let (mut poison, mut other) = (connect(), connect());
    assert_eq!((ask(&mut poison, b'x'), ask(&mut other, b'x')), ("1".into(), "1".into()));
    another_checkpoint(pid);
    poison.write_all(b"p").expect("sent");
    let mut rest = Vec::new();
    let ended = poison.read_to_end(&mut rest);
    assert!(ended.is_err() && rest.is_empty(), "its connection is reset, not: {ended:?} {rest:?}");
    let recovered = until("that is reported", || events(&log).into_iter().find(|e| e["event"] == "recovered"));
    assert_eq!((&recovered["restored"]["connections_reset"], &recovered["exact"]), (&1.into(), &false.into()));
    assert_eq!(ask(&mut other, b'x'), "2", "another client sees nothing");
    another_checkpoint(pid);
    // A signal from outside while it is idle: nobody sees it.
    // SAFETY: a child of an own child that lives until that one has reaped it.
    unsafe { libc::kill(pid, libc::SIGSEGV) };
    until("it is put back", || (count(&log, "recovered") >= 2).then_some(()));
    assert_eq!(ask(&mut other, b'x'), "3");
    assert_eq!(ask(&mut connect(), b'x'), "1");
    assert_eq!(ask(&mut other, b'q'), "");
    let status = until("it exits", || keeper.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(7), "its own status");
}

/// A checkpoint comes as soon as it has answered and is quiet, not only when one is due.
#[test]
fn a_server_that_has_answered_is_put_back_exactly() {
    const EVERY: Duration = Duration::from_secs(10);
    const ASKED: u32 = 4;
    if is_missing() {
        return;
    }
    let scratch = Scratch::new("snapshot-quiet");
    let (mut keeper, pid) = begin(&scratch, SERVES, &format!("{}s", EVERY.as_secs()), &[]);
    let log = scratch.join("events");
    let port: u16 = fs::read_to_string(scratch.join("made")).expect("a port").parse().expect("a number");
    let mut client = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    client.set_read_timeout(Some(PATIENCE)).expect("set");
    let begun = Instant::now();
    for asked in 1..=ASKED {
        let before = until("it is listed", || checkpoints(pid));
        assert_eq!(ask(&mut client, b'x'), asked.to_string());
        until("it has another checkpoint", || checkpoints(pid).filter(|now| *now > before));
    }
    // The first of those could be the one that was due; from then on each would take as long.
    assert!(begun.elapsed() < EVERY * (ASKED - 1), "{:?}", begun.elapsed());
    // SAFETY: a child of an own child that lives until that one has reaped it.
    unsafe { libc::kill(pid, libc::SIGSEGV) };
    let recovered = until("it is put back", || events(&log).into_iter().find(|e| e["event"] == "recovered"));
    assert_eq!(recovered["exact"], true, "{recovered}");
    assert_eq!(ask(&mut client, b'x'), (ASKED + 1).to_string());
    assert_eq!(ask(&mut client, b'q'), "");
    assert_eq!(until("it exits", || keeper.try_wait().expect("a child")).code(), Some(7), "its own status");
}

#[test]
fn with_independent_connections_that_moved_are_reset_and_others_stay() {
    if is_missing() {
        return;
    }
    let scratch = Scratch::new("snapshot-independent");
    let (mut keeper, pid) = start(&scratch, SERVES, &["--state", "independent", "--allow-repeats"]);
    let log = scratch.join("events");
    let port: u16 = fs::read_to_string(scratch.join("made")).expect("a port").parse().expect("a number");
    let connect = || {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream
    };
    let (mut idle, mut moved, mut leaves) = (connect(), connect(), connect());
    for client in [&mut idle, &mut moved, &mut leaves] {
        assert_eq!(ask(client, b'x'), "1");
    }
    for crash in 1..=3 {
        another_checkpoint(pid);
        // All of this has been seen, and is not continued.
        let halted = Halted::new(keeper.id(), pid);
        assert_eq!(ask(&mut moved, b'x'), "2");
        let mut new = connect();
        assert_eq!(ask(&mut new, b'x'), "1");
        if crash == 1 {
            drop(std::mem::replace(&mut leaves, connect()));
            assert_eq!(ask(&mut leaves, b'x'), "1");
        }
        // SAFETY: a child of an own child that lives until that one has reaped it.
        unsafe { libc::kill(pid, libc::SIGSEGV) };
        drop(halted);
        until("it is put back", || (count(&log, "recovered") >= crash).then_some(()));
        for client in [&mut moved, &mut new] {
            assert!(client.read(&mut [0]).is_err(), "it is reset");
        }
        assert_eq!(ask(&mut idle, b'x'), (crash + 1).to_string(), "another client sees nothing");
        moved = connect();
        assert_eq!(ask(&mut moved, b'x'), "1");
    }
    let recovered = events(&log).into_iter().filter(|e| e["event"] == "recovered");
    assert!(recovered.clone().all(|e| e["exact"] == false), "{:?}", recovered.collect::<Vec<_>>());
    assert_eq!(ask(&mut idle, b'q'), "");
    assert_eq!(until("it exits", || keeper.try_wait().expect("a child")).code(), Some(7), "its own status");
}
