//! A program that becomes a daemon, by two forks whose parents exit at once: with `--family` it is
//! kept, and the command ends with it; without, it is said that it is not.

mod common;

use common::{KEEP, Scratch, events, lacks, lacks_tracking, until};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

/// Answers each byte with how many there were.
const DAEMON: &str = r#"
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
client, _ = listener.accept()
done = 0
while client.recv(1):
    done += 1
    client.sendall(bytes([done]))
"#;

fn ask(client: &mut UnixStream) -> u8 {
    let mut answer = [0];
    client.write_all(b"x").expect("sent");
    client.read_exact(&mut answer).expect("answered");
    answer[0]
}

#[test]
fn a_daemon_is_kept_by_family() {
    if lacks("python3") || lacks_tracking() {
        return;
    }
    for (nth, options) in [["--log", "--family"], ["--every=100ms", "--family"]].iter().cycle().take(8).enumerate() {
        let scratch = Scratch::new(&format!("daemon-{nth}"));
        let (log, socket) = (scratch.join("events"), scratch.join("socket"));
        let mut keeper = Command::new(KEEP)
            .args(options)
            .arg("--events")
            .arg(&log)
            .args(["--", "/usr/bin/python3", "-c", DAEMON])
            .arg(&socket)
            .stdout(Stdio::null())
            .spawn()
            .expect("orbit-keep");
        let mut client = until("it listens", || UnixStream::connect(&socket).ok());
        client.set_read_timeout(Some(common::PATIENCE)).expect("set");
        let exited = |count| until("it exits", || (common::count(&log, "exited") >= count).then_some(()));
        exited(2);
        assert_eq!(ask(&mut client), 1, "{options:?}");
        let kept = until("the daemon is kept", || events(&log).into_iter().rfind(|e| e["event"] == "kept"));
        assert!(keeper.try_wait().expect("a child").is_none(), "{options:?}: the command ends with the last of them");
        if options[0] == "--log" {
            let pid = kept["pid"].as_i64().expect("a number") as i32;
            // SAFETY: the daemon, which lives: it has just answered.
            unsafe { libc::kill(pid, libc::SIGSEGV) };
            assert_eq!(ask(&mut client), 2, "it is put back");
        }
        drop(client);
        let status = until("it ends", || keeper.try_wait().expect("a child"));
        assert_eq!(status.code(), Some(0), "{options:?}");
    }
}

#[test]
fn without_family_it_is_said_that_a_daemon_is_not_kept() {
    if lacks("python3") || lacks_tracking() {
        return;
    }
    for (nth, options) in [["--log", "--every=1s"], ["--state", "exact"]].iter().cycle().take(8).enumerate() {
        let scratch = Scratch::new(&format!("daemon-alone-{nth}"));
        let socket = scratch.join("socket");
        let said = scratch.join("said");
        let keeper = Command::new(KEEP)
            .args(options)
            .args(["--", "/usr/bin/python3", "-c", DAEMON])
            .arg(&socket)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&said).expect("created"))
            .status()
            .expect("orbit-keep");
        // The daemon ends with its client.
        drop(until("it listens", || UnixStream::connect(&socket).ok()));
        let said = std::fs::read_to_string(said).expect("text");
        assert!(keeper.success() && said.contains("its children are not kept"), "{options:?}: {said}");
    }
}
