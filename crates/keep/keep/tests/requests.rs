//! Request mode: a server has one checkpoint for life; a request that kills it is dropped after
//! many others, and no other client sees anything.

mod common;

use common::{KEEP, Scratch, count, events, lacks, lacks_tracking, until};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

/// One request; returns all of the answer.
fn ask(socket: &Path, word: &str) -> String {
    let mut stream = until("it listens", || UnixStream::connect(socket).ok());
    stream.set_read_timeout(Some(common::PATIENCE)).expect("set");
    stream.write_all(format!("{word}\n").as_bytes()).expect("sent");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn a_poison_request_is_dropped_and_others_are_answered() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("requests");
    let (program, socket, file) = (scratch.join("requests"), scratch.join("socket"), scratch.join("events"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/requests.c");
    assert!(Command::new("cc").args(["-O1", source, "-o"]).arg(&program).status().expect("cc").success());
    let mut keeper = Command::new(KEEP)
        .args(["--log", "--requests", "--every", "50ms", "--events"])
        .arg(&file)
        .arg("--")
        .args([&program, &socket])
        .spawn()
        .expect("orbit-keep");
    until("it is kept", || (count(&file, "kept") > 0).then_some(()));
    for round in 0..3 {
        for nth in 0..40 {
            let word = format!("{round}-{nth}");
            assert_eq!(ask(&socket, &word), format!("got {word}\n"));
        }
        assert_eq!(ask(&socket, "poison"), "", "its connection ends");
    }
    // Its waits for a request fail from then on, which is no crash.
    assert_eq!(ask(&socket, "ruin"), "got ruin\n");
    assert_eq!(ask(&socket, "after it"), "got after it\n", "it is put back to where it can accept");
    assert!(count(&file, "hang") >= 1);
    assert_eq!(ask(&socket, "stop"), "");
    assert_eq!(until("it exits", || keeper.try_wait().expect("a child")).code(), Some(7));
    let all = events(&file);
    let exit = all.last().expect("events");
    assert_eq!(exit["figures"]["by_rung"][3], 3, "three requests were dropped: {exit}");
    let checkpoints = exit["figures"]["checkpoints"].as_u64().expect("a number");
    assert!(checkpoints <= 2, "checkpoints for life: {exit}");
    assert!(all.iter().all(|e| e["event"] != "diverged"), "each replay kept to the log's order");
}
