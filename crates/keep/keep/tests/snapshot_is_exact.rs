//! Without a log: a program that nothing has left since the checkpoint is put back, and nobody sees
//! it. A connection from which it had only read is reset, others stay.

mod common;

use common::{KEEP, PATIENCE, Scratch, count, events, lacks, lacks_tracking, until};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// Computes until there is a file, and prints what it has counted to.
const COMPUTES: &str = r#"
import os, sys
n = steps = 0
open(sys.argv[1] + "/made", "w").close()
while not os.path.exists(sys.argv[1] + "/stop"):
    steps += 1
    n += steps
print("right" if n == steps * (steps + 1) // 2 else "wrong", flush=True)
sys.exit(7)
"#;

/// Answers each byte of each connection with how many it has had from it; dies of `p`.
const SERVES: &str = r#"
import ctypes, select, socket, sys
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

fn start(scratch: &Scratch, program: &str) -> (Child, i32) {
    let log = scratch.join("events");
    let keeper = Command::new(KEEP)
        .args(["--every", "50ms", "--events"])
        .arg(&log)
        .args(["--", "/usr/bin/python3", "-c", program])
        .arg(&scratch.0)
        .stdout(fs::File::create(scratch.join("out")).expect("a file"))
        .stderr(Stdio::inherit())
        .spawn()
        .expect("orbit-keep");
    let kept = until("it is kept", || events(&log).into_iter().find(|e| e["event"] == "kept"));
    let pid = kept["pid"].as_i64().expect("a number") as i32;
    until("it has begun", || fs::read_to_string(scratch.join("made")).ok());
    another_checkpoint(pid);
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
    let taken = || {
        let said = Command::new(KEEP).args(["--status", "--json"]).output().expect("orbit-keep").stdout;
        let all: serde_json::Value = serde_json::from_slice(&said).unwrap_or_default();
        let mut rows = all["keepers"].as_array()?.iter().flat_map(|k| k["programs"].as_array()).flatten();
        rows.find(|row| row["pid"] == pid)?["figures"]["checkpoints"].as_u64()
    };
    let before = until("it is listed", taken);
    // One may be under way, and another may have been taken but not published.
    until("it has another checkpoint", || taken().filter(|now| *now >= before + 12));
}

#[test]
fn a_computation_is_put_back() {
    if is_missing() {
        return;
    }
    let scratch = Scratch::new("snapshot-computes");
    let (mut keeper, pid) = start(&scratch, COMPUTES);
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
    let (mut keeper, pid) = start(&scratch, SERVES);
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
