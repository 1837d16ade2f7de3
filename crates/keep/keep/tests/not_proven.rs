//! What cannot be shown to be right is not continued: the program ends with the status of its own
//! crash, and nothing of a replay has happened outside.

mod common;

use common::{KEEP, Scratch, count, events, lacks, lacks_tracking, until};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A server of one connection, in Python. Each byte that it reads is a command; each answer is the
/// number of commands so far. What it does at a crash is named by its second argument.
const SERVER: &str = r#"
import ctypes, mmap, os, socket, sys, threading
folder, how = sys.argv[1], sys.argv[2]
listener = socket.socket(socket.AF_UNIX)
listener.bind(folder + "/socket")
listener.listen()
if how == "shares":
    with open(folder + "/shared", "wb") as made: made.write(bytes(4096))
    shared = open(folder + "/shared", "r+b")
    memory = mmap.mmap(shared.fileno(), 4096)
client, _ = listener.accept()
def other():
    theirs, _ = listener.accept()
    while True:
        if not theirs.recv(1): return
        theirs.sendall(b"other ")
if how == "threads":
    threading.Thread(target=other, daemon=True).start()
done = 0
while True:
    command = client.recv(1)
    if not command: sys.exit(7)
    done += 1
    if command == b"p":      # a poison, and something has gone out since it was read
        if how == "answers": client.sendall(b"poison ")
        ctypes.string_at(0)
    if command == b"s":      # sleeps by a call that is in no log, in a replay too
        ctypes.CDLL(None).syscall(35, (ctypes.c_long * 2)(5, 300_000_000), None)
    # computes without end where a file is, which is asked by a call that is in no log
    if command == b"e" and ctypes.CDLL(None).syscall(21, (folder + "/endless").encode(), 0) == 0:
        while True: pass
    if command == b"d":      # what it answers is in no log
        now = ctypes.create_string_buffer(16)
        ctypes.CDLL(None).syscall(228, 1, now)
        client.sendall(b"%d " % int.from_bytes(now.raw[8:], sys.byteorder))
        continue
    client.sendall(b"%d " % done)
"#;

struct Server {
    keeper: Child,
    client: UnixStream,
    scratch: Scratch,
    pid: i32,
}

fn start(name: &str, how: &str, options: &[&str]) -> Server {
    let scratch = Scratch::new(&format!("proven-{name}"));
    let log = scratch.join("events");
    let keeper = Command::new(KEEP)
        .args(options)
        .arg("--events")
        .arg(&log)
        .args(["--", "/usr/bin/python3", "-c", SERVER])
        .args([&scratch.0, Path::new(how)])
        .stdout(Stdio::null())
        .spawn()
        .expect("orbit-keep");
    let client = until("it listens", || UnixStream::connect(scratch.join("socket")).ok());
    client.set_read_timeout(Some(common::PATIENCE)).expect("set");
    let kept = until("it is kept", || events(&log).into_iter().find(|e| e["event"] == "kept"));
    let pid = kept["pid"].as_i64().expect("a number") as i32;
    Server { keeper, client, scratch, pid }
}

/// Sends one command and reads an answer, which ends with a space.
fn ask(client: &mut UnixStream, command: u8) -> String {
    client.write_all(&[command]).expect("sent");
    let mut answer = String::new();
    let mut byte = [0];
    while client.read(&mut byte).is_ok_and(|read| read == 1) && byte != *b" " {
        answer.push(char::from(byte[0]));
    }
    answer
}

impl Server {
    /// It ends with the status of its crash, and says that it was given up, once.
    fn ends_by_its_crash(mut self) {
        let status = until("it ends", || self.keeper.try_wait().expect("a child"));
        let log = self.scratch.join("events");
        assert_eq!(status.signal(), Some(libc::SIGSEGV), "its true status");
        assert_eq!((count(&log, "gave-up"), count(&log, "recovered")), (1, 0));
    }

    fn kill(&self) {
        // SAFETY: a child of an own child that lives until that one has reaped it.
        unsafe { libc::kill(self.pid, libc::SIGSEGV) };
    }
}

fn is_missing() -> bool {
    lacks("python3") || lacks_tracking()
}

#[test]
fn a_replay_that_is_proven_continues() {
    if is_missing() {
        return;
    }
    let mut server = start("proven", "plain", &["--log", "--every", "60s"]);
    assert_eq!(ask(&mut server.client, b'x'), "1");
    assert_eq!(ask(&mut server.client, b'x'), "2");
    server.kill();
    assert_eq!(ask(&mut server.client, b'x'), "3", "nothing is lost or sent twice");
    let log = server.scratch.join("events");
    let recovered = until("that is reported", || events(&log).into_iter().find(|e| e["event"] == "recovered"));
    assert_eq!((&recovered["exact"], &recovered["rung"]), (&true.into(), &"newest".into()), "{recovered}");
    drop(server.client);
    let status = until("it ends", || server.keeper.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(7), "its own status");
}

/// At any moment of it: also while the program waits for the verdict on its replay, or has just had
/// it.
#[test]
fn signals_that_come_while_it_is_put_back_are_other_crashes() {
    if is_missing() {
        return;
    }
    let bursts = if std::env::var_os("ORBIT_TEST_FULL").is_some() { 1000 } else { 60 };
    let mut server = start("bursts", "plain", &["--log", "--every", "200ms", "-q"]);
    for burst in 1..=bursts {
        for pause in [0, burst * 37 % 4000, burst * 61 % 4000] {
            std::thread::sleep(std::time::Duration::from_micros(pause));
            server.kill();
        }
        assert_eq!(ask(&mut server.client, b'x'), burst.to_string(), "nothing is lost or hangs");
    }
    drop(server.client);
    let status = until("it ends", || server.keeper.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(7), "its own status");
}

#[test]
fn a_replay_that_gives_out_other_bytes_is_not_continued() {
    if is_missing() {
        return;
    }
    let mut server = start("differs", "plain", &["--log", "--every", "60s"]);
    assert_eq!(ask(&mut server.client, b'x'), "1");
    // The clock's nanoseconds, by a call that is in no log.
    let ticks = ask(&mut server.client, b'd');
    assert!(ticks.parse::<u64>().is_ok(), "{ticks}");
    // From here on another answer would be given.
    std::thread::sleep(std::time::Duration::from_millis(50));
    server.kill();
    let mut rest = String::new();
    let _ = server.client.read_to_string(&mut rest);
    assert_eq!(rest, "", "nothing of the replays was sent");
    let log = server.scratch.join("events");
    assert!(count(&log, "differed") > 0);
    // A signal from outside is one crash, whatever is tried.
    assert!(count(&log, "attempt") <= 8, "each rung is tried once");
    server.ends_by_its_crash();
}

#[test]
fn a_recovery_ends_in_time() {
    if is_missing() {
        return;
    }
    let mut server = start("slow", "plain", &["--log", "--every", "60s"]);
    assert_eq!(ask(&mut server.client, b's'), "1");
    assert!(ask(&mut server.client, b'd').parse::<u64>().is_ok());
    server.kill();
    let mut rest = String::new();
    let _ = server.client.read_to_string(&mut rest);
    let all = events(&server.scratch.join("events"));
    let why = all.iter().find(|e| e["event"] == "gave-up").and_then(|e| e["why"].as_str()).unwrap_or_default();
    assert!(why.contains("it has not come back within"), "{why}");
    assert_eq!(all.iter().filter(|e| e["event"] == "attempt").count(), 1);
    server.ends_by_its_crash();
}

#[test]
fn a_replay_without_end_is_given_up() {
    if is_missing() {
        return;
    }
    let mut server = start("endless", "plain", &["--log", "--every", "60s"]);
    assert_eq!(ask(&mut server.client, b'e'), "1");
    std::fs::write(server.scratch.join("endless"), "").expect("written");
    server.kill();
    let mut rest = String::new();
    let _ = server.client.read_to_string(&mut rest);
    let all = events(&server.scratch.join("events"));
    let why = all.iter().find(|e| e["event"] == "gave-up").and_then(|e| e["why"].as_str()).unwrap_or_default();
    assert!(why.contains("its replay has not ended within"), "{why}");
    server.ends_by_its_crash();
}

#[test]
fn an_input_is_not_dropped_after_something_went_out() {
    if is_missing() {
        return;
    }
    let mut server = start("answers", "answers", &["--log", "--every", "60s"]);
    assert_eq!(ask(&mut server.client, b'x'), "1");
    assert_eq!(ask(&mut server.client, b'p'), "poison", "sent before the crash, and once");
    let mut rest = String::new();
    let _ = server.client.read_to_string(&mut rest);
    assert_eq!(rest, "", "nothing of the replays was sent");
    server.ends_by_its_crash();
}

#[test]
fn an_input_that_kills_is_dropped() {
    if is_missing() {
        return;
    }
    let mut server = start("drops", "plain", &["--log", "--every", "60s"]);
    assert_eq!(ask(&mut server.client, b'x'), "1");
    assert_eq!(ask(&mut server.client, b'p'), "", "its connection ends");
    let status = until("it ends", || server.keeper.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(7), "it has seen the connection end");
    let recovered: Vec<_> =
        events(&server.scratch.join("events")).into_iter().filter(|e| e["event"] == "recovered").collect();
    assert!(recovered.len() == 1 && recovered[0]["rung"] == "drop" && recovered[0]["exact"] == false, "{recovered:?}");
}

#[test]
fn memory_shared_by_a_file_is_in_no_log() {
    if is_missing() {
        return;
    }
    let mut server = start("shares", "shares", &["--log", "--every", "60s"]);
    assert_eq!(ask(&mut server.client, b'x'), "1");
    server.kill();
    server.ends_by_its_crash();
}

#[test]
fn what_another_thread_has_read_is_in_no_log() {
    if is_missing() {
        return;
    }
    let mut server = start("threads", "threads", &["--log", "--every", "60s"]);
    assert_eq!(ask(&mut server.client, b'x'), "1");
    let mut other = UnixStream::connect(server.scratch.join("socket")).expect("it listens");
    assert_eq!(ask(&mut other, b'x'), "other");
    server.kill();
    server.ends_by_its_crash();
}

#[test]
fn without_a_log_what_has_answered_ends_by_its_crash() {
    if is_missing() {
        return;
    }
    let mut server = start("snapshot", "answers", &["--every", "50ms"]);
    assert_eq!(ask(&mut server.client, b'x'), "1");
    assert_eq!(ask(&mut server.client, b'p'), "poison", "sent before the crash, and once");
    server.ends_by_its_crash();
}

#[test]
fn states_below_exact_are_refused_where_random_numbers_could_be_used_twice() {
    for options in [["--state", "independent"], ["--state", "best-effort"], ["--log", "--requests"]] {
        let run = Command::new(KEEP).args(options).args(["--", "true"]).output().expect("runs");
        let said = String::from_utf8_lossy(&run.stderr);
        let is_named = said.contains("--allow-repeats") && said.contains(options[1]);
        assert!(run.status.code() == Some(125) && is_named, "{said}");
    }
    let run = Command::new(KEEP)
        .args(["--log", "--state", "best-effort", "--allow-repeats", "--", "true"])
        .output()
        .expect("runs");
    assert!(!run.status.success(), "a log is exact, or gives up");
}
