//! A hang that another process reports: the program is put back, the request that hangs again is
//! dropped, others are answered.

mod common;

use common::{KEEP, Scratch, count, events, lacks, lacks_tracking, until};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

fn send(socket: &Path, word: &str) -> UnixStream {
    let mut stream = until("it listens", || UnixStream::connect(socket).ok());
    stream.set_read_timeout(Some(common::PATIENCE)).expect("set");
    stream.write_all(format!("{word}\n").as_bytes()).expect("sent");
    stream
}

fn ask(socket: &Path, word: &str) -> String {
    let mut answer = String::new();
    let _ = send(socket, word).read_to_string(&mut answer);
    answer
}

/// CPU time of a process, in ticks.
fn cpu(pid: i32) -> u64 {
    orbit_linux::stat::Stat::of(pid).map_or(0, |stat| stat.user_ticks)
}

#[test]
fn a_request_that_hangs_again_is_dropped() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("hang");
    let (program, socket, file) = (scratch.join("requests"), scratch.join("socket"), scratch.join("events"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/requests.c");
    assert!(Command::new("cc").args(["-O1", source, "-o"]).arg(&program).status().expect("cc").success());
    let mut keeper = Command::new(KEEP)
        .args(["--log", "--every", "100ms", "--events"])
        .arg(&file)
        .arg("--")
        .args([&program, &socket])
        .spawn()
        .expect("orbit-keep");
    until("it is kept", || (count(&file, "kept") > 0).then_some(()));
    let pid = events(&file)[0]["pid"].as_i64().expect("a number") as i32;
    assert_eq!(ask(&socket, "first"), "got first\n");
    let mut hung = send(&socket, "loop");
    let before = cpu(pid);
    until("it loops", || (cpu(pid) > before + 20).then_some(()));
    let did = orbit_keep::recover(pid, pid, "it loops").expect("put back");
    assert!(did.contains("put it back"), "{did}");
    // The replay loops as well: the keeper finds that itself, and drops the request.
    let mut answer = String::new();
    let _ = hung.read_to_string(&mut answer);
    assert_eq!(answer, "", "its connection ends");
    assert_eq!(ask(&socket, "second"), "got second\n");
    assert_eq!(ask(&socket, "stop"), "");
    assert_eq!(until("it exits", || keeper.try_wait().expect("a child")).code(), Some(7));
    let all = events(&file);
    let hangs = all.iter().filter(|e| e["event"] == "hang").count();
    let figures = &all.last().expect("events")["figures"];
    assert_eq!((hangs, figures["hangs"].as_u64(), figures["crashes"].as_u64()), (2, Some(2), Some(0)), "{figures}");
    let by_rung = |nth: usize| figures["by_rung"][nth].as_u64().unwrap_or(0);
    // A checkpoint may have been taken inside the hang: then an older one is gone back to.
    assert_eq!((by_rung(0) + by_rung(1), by_rung(3)), (1, 1), "replayed, then dropped: {figures}");
}

#[test]
fn a_process_that_is_not_kept_is_named() {
    let me = std::process::id() as i32;
    let why = orbit_keep::recover(me, me, "it loops").expect_err("nobody keeps it");
    assert!(why.contains(&format!("process {me} is not kept")), "{why}");
}
