//! In log mode, each way to wait for input is replayed: poll, ppoll, pselect, and the forms that a
//! compiler with checks calls. A server whose waits fail again and again is put back like one that
//! crashes.

mod common;

use common::{KEEP, PATIENCE, Scratch, count, lacks, lacks_tracking, until};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;

#[test]
fn waits_and_checked_calls_are_replayed() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("waits");
    let (program, socket, file) = (scratch.join("waits"), scratch.join("socket"), scratch.join("events"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/waits.c");
    let flags = ["-D_GNU_SOURCE", "-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", source, "-o"];
    assert!(Command::new("cc").args(flags).arg(&program).status().expect("cc").success());
    let mut command = Command::new(KEEP);
    command.args(["--log", "--every", "60s", "--events"]).arg(&file).arg("--").args([&program, &socket]);
    let mut keeper = command.spawn().expect("orbit-keep");
    until("it is kept", || (count(&file, "kept") > 0).then_some(()));
    let connect = || {
        let stream = until("it listens", || UnixStream::connect(&socket).ok());
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream
    };
    let mut client = connect();
    let mut answered = 0u8;
    for round in 1..=5 {
        for _ in 0..20 {
            let mut answer = [0];
            client.write_all(b"x").expect("sent");
            client.read_exact(&mut answer).expect("an answer");
            answered = answered.wrapping_add(1);
            assert_eq!(answer, [answered], "none is lost or doubled");
        }
        let mut poison = connect();
        // The other way to ruin it: its waits fail, which is no crash.
        poison.write_all(if round % 2 == 1 { b"p" } else { b"w" }).expect("sent");
        assert_eq!(poison.read(&mut [0]).unwrap_or(0), 0, "its connection ends");
        until("it is put back", || (count(&file, "recovered") >= round).then_some(()));
    }
    assert!(count(&file, "hang") >= 2, "its waits failed twice, and in a replay");
    assert_eq!(count(&file, "diverged"), 0, "each replay kept to the log's order");
    keeper.kill().expect("a child");
    let _ = keeper.wait();
    let pid = common::events(&file).iter().find_map(|e| e["pid"].as_i64()).expect("events");
    // SAFETY: the program of our own keeper, which continues without it.
    unsafe { libc::kill(pid as i32, libc::SIGKILL) };
}
