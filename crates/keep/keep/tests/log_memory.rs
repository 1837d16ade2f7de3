//! How much memory a log takes: what the distance between checkpoints needs, and no more.

mod common;

use common::{Halted, KEEP, PATIENCE, Scratch, checkpoints, count, events, lacks, lacks_tracking, until};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

/// Answers each block of a fixed size with how many there were so far.
const SERVER: &str = r#"
import socket, sys
folder, size = sys.argv[1], int(sys.argv[2])
listener = socket.socket(socket.AF_UNIX)
listener.bind(folder + "/socket")
listener.listen()
client, _ = listener.accept()
blocks = 0
while True:
    left = size
    while left:
        got = client.recv(left)
        if not got: sys.exit(7)
        left -= len(got)
    blocks += 1
    client.sendall(b"%d\n" % blocks)
"#;

const MIB: usize = 1 << 20;
const BLOCK: usize = MIB / 4;

struct Server {
    keeper: Child,
    client: UnixStream,
    scratch: Scratch,
    pid: i32,
    blocks: usize,
}

fn start(name: &str) -> Server {
    let scratch = Scratch::new(name);
    let log = scratch.join("events");
    let keeper = Command::new(KEEP)
        .args(["--log", "--every", "50ms", "--events"])
        .arg(&log)
        .args(["--", "/usr/bin/python3", "-c", SERVER])
        .args([&scratch.0, &BLOCK.to_string().into()])
        .stdout(Stdio::null())
        .spawn()
        .expect("orbit-keep");
    let client = until("it listens", || UnixStream::connect(scratch.join("socket")).ok());
    client.set_read_timeout(Some(PATIENCE)).expect("set");
    let kept = until("it is kept", || events(&log).into_iter().find(|e| e["event"] == "kept"));
    let pid = kept["pid"].as_i64().expect("a number") as i32;
    Server { keeper, client, scratch, pid, blocks: 0 }
}

impl Server {
    /// Sends a block; the answer is right.
    fn ask(&mut self) {
        self.blocks += 1;
        self.client.write_all(&[b'x'; BLOCK]).expect("sent");
        let mut answer = String::new();
        let mut byte = [0];
        while self.client.read(&mut byte).is_ok_and(|read| read == 1) && byte != *b"\n" {
            answer.push(char::from(byte[0]));
        }
        assert_eq!(answer, self.blocks.to_string());
    }

    /// Until another checkpoint was taken; without a call none is.
    fn ask_until_a_checkpoint(&mut self) {
        let before = until("it is listed", || checkpoints(self.pid));
        until("it has another checkpoint", || {
            self.ask();
            checkpoints(self.pid).filter(|now| *now > before)
        });
    }

    /// Memory of the log, in bytes, as the kernel counts it.
    fn log_memory(&self) -> u64 {
        let folder = format!("/proc/{}/fd", self.keeper.id());
        let is_log =
            |path: &std::path::Path| fs::read_link(path).is_ok_and(|to| to.starts_with("/memfd:orbit-keep (deleted)"));
        let files = fs::read_dir(folder).expect("listed").flatten().map(|entry| entry.path());
        let blocks = files.filter(|path| is_log(path)).map(|path| fs::metadata(path).expect("there").blocks());
        blocks.max().expect("a log") * 512
    }

    fn stop(mut self) {
        drop(self.client);
        let status = until("it ends", || self.keeper.try_wait().expect("a child"));
        assert_eq!(status.code(), Some(7), "its own status");
        assert_eq!(count(&self.scratch.join("events"), "gave-up"), 0);
    }
}

fn is_missing() -> bool {
    lacks("python3") || lacks_tracking()
}

#[test]
fn it_stays_small_where_checkpoints_are_not_far_apart() {
    if is_missing() {
        return;
    }
    let mut server = start("log-small");
    // Three times round a log of 16 MiB.
    for _ in 0..24 {
        (0..8).for_each(|_| server.ask());
        server.ask_until_a_checkpoint();
    }
    let bytes = server.log_memory();
    assert!(bytes < 20 * MIB as u64, "{bytes}: 16 MiB, the end of an entry, and stacks for signals");
    server.stop();
}

#[test]
fn it_grows_where_a_checkpoint_comes_late() {
    if is_missing() {
        return;
    }
    let mut server = start("log-grows");
    server.ask_until_a_checkpoint();
    for _ in 0..2 {
        let halted = Halted::new(server.keeper.id(), server.pid);
        (0..12 * MIB / BLOCK).for_each(|_| server.ask());
        drop(halted);
        server.ask_until_a_checkpoint();
    }
    assert!(server.log_memory() > 20 * MIB as u64, "{}", server.log_memory());
    server.ask();
    // SAFETY: a child of an own child that lives until that one has reaped it.
    unsafe { libc::kill(server.pid, libc::SIGSEGV) };
    server.ask();
    let log = server.scratch.join("events");
    let recovered = until("that is reported", || events(&log).into_iter().find(|e| e["event"] == "recovered"));
    assert_eq!(recovered["exact"], true, "{recovered}");
    server.stop();
}
