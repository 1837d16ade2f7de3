//! Heap bugs that come each time: a server survives them by a changed environment, also the client
//! that has sent what sets them off.

mod common;

use common::{KEEP, Redis, Scratch, count, events, lacks, lacks_tracking, until};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// Compiles `source` of `tests/c` to `name` in the folder.
fn compiled(scratch: &Scratch, source: &str, name: &str, options: &[&str]) -> PathBuf {
    let out = scratch.join(name);
    let source = format!("{}/tests/c/{source}", env!("CARGO_MANIFEST_DIR"));
    let done = Command::new("cc").args(["-O1", "-w"]).args(options).arg(source).arg("-o").arg(&out).status();
    assert!(done.expect("cc").success());
    out
}

struct Client(BufReader<UnixStream>);

impl Client {
    fn new(socket: &Path) -> Client {
        let stream = until("it listens", || UnixStream::connect(socket).ok());
        stream.set_read_timeout(Some(common::PATIENCE)).expect("set");
        Client(BufReader::new(stream))
    }

    fn ask(&mut self, word: &str) -> String {
        self.0.get_mut().write_all(format!("{word}\n").as_bytes()).expect("sent");
        let mut line = String::new();
        self.0.read_line(&mut line).expect("answered");
        line.trim_end().to_owned()
    }
}

/// The rungs that were taken, in order.
fn rungs(file: &Path) -> Vec<String> {
    let all = events(file);
    all.iter().filter_map(|e| Some(e["rung"].as_str()?.to_owned())).collect()
}

fn server(scratch: &Scratch, ladder: &str) -> (Child, PathBuf, PathBuf) {
    let program = compiled(scratch, "heap.c", "heap", &[]);
    let (file, socket) = (scratch.join("events"), scratch.join("socket"));
    let keeper = Command::new(KEEP)
        .args(["--log", "--every", "200ms", "--ladder", ladder, "--events"])
        .arg(&file)
        .arg("--")
        .args([&program, &socket])
        .spawn()
        .expect("orbit-keep");
    until("it is kept", || (count(&file, "kept") > 0).then_some(()));
    (keeper, file, socket)
}

/// The server survives the bug, twice, and nothing is lost.
fn is_survived(bug: &str) {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new(bug);
    let (mut keeper, file, socket) = server(&scratch, "newest,older,environment,drop");
    let mut client = Client::new(&socket);
    let mut other = Client::new(&socket);
    for expected in [2, 4] {
        assert_eq!(other.ask("hello"), format!("hello {}", expected - 1));
        assert_eq!(
            client.ask(bug),
            format!("{bug} {expected}"),
            "the right answer to the client that sets off the bug"
        );
    }
    client.0.get_mut().write_all(b"stop\n").expect("sent");
    let status = until("it exits", || keeper.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(7));
    let rungs = rungs(&file);
    assert!(rungs.iter().any(|rung| rung == "environment"), "a changed environment has helped: {rungs:?}");
    assert!(rungs.iter().all(|rung| rung != "drop"), "no input was dropped: {rungs:?}");
}

#[test]
fn an_overflow_is_survived() {
    is_survived("overflow");
}

#[test]
fn a_read_of_memory_that_was_not_written_is_survived() {
    is_survived("uninitialised");
}

#[test]
fn a_use_of_freed_memory_is_survived() {
    is_survived("freed");
}

#[test]
fn redis_survives_a_module_that_uses_freed_memory() {
    if lacks("cc") || lacks("redis-server") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("module");
    let module = compiled(&scratch, "redis_heap.c", "heap.so", &["-shared", "-fPIC"]);
    let redis = Redis::start_with("heap-redis", &["--every", "300ms"], &["--loadmodule", &module.to_string_lossy()]);
    let mut other = redis.client();
    other.increment("n", 1);
    let mut client = redis.client();
    assert_eq!(
        client.call(&["HEAP.FREED"]).expect("no error"),
        ":1",
        "the right answer to the client that sets off the bug"
    );
    other.increment("n", 2);
    let rungs = until("the recovery is reported", || {
        let rungs = rungs(&redis.events_file());
        rungs.iter().any(|rung| rung == "environment").then_some(rungs)
    });
    assert!(rungs.iter().all(|rung| rung != "drop"), "no input was dropped: {rungs:?}");
}

#[test]
fn without_that_rung_the_input_is_dropped() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("heap-drop");
    let (mut keeper, file, socket) = server(&scratch, "newest,older,drop");
    let mut other = Client::new(&socket);
    assert_eq!(other.ask("hello"), "hello 1");
    let mut client = Client::new(&socket);
    client.0.get_mut().write_all(b"freed\n").expect("sent");
    assert_eq!(client.0.read_line(&mut String::new()).expect("the end"), 0, "its connection ends");
    assert_eq!(other.ask("hello"), "hello 2");
    other.0.get_mut().write_all(b"stop\n").expect("sent");
    assert_eq!(until("it exits", || keeper.try_wait().expect("a child")).code(), Some(7));
    assert_eq!(rungs(&file).last().map(String::as_str), Some("drop"));
}
