//! A program whose thread mostly waits for answers of its back end: it is reported when these stay
//! away, likely where the back end is shown to be stopped, else as a guess; and not while the back
//! end went back for events or sleeps by the clock.

use crate::common::{Program, Watcher, have};
use orbit_ahd::{Config, Hang, Sure};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Says its port, and answers each byte 10 ms later: `n` of them, then it does what `then` says.
const BACK: &str = "
import socket, select, sys, time
n, then = int(sys.argv[1]), sys.argv[2]
listener = socket.create_server(('127.0.0.1', 0))
print(listener.getsockname()[1], flush=True)
peer, _ = listener.accept()
while True:
    peer.recv(1)
    n -= 1
    if n > 0:
        time.sleep(0.01)
        peer.sendall(b'r')
    elif then == 'events':
        select.select([listener, peer], [], [])
    elif then == 'naps':
        time.sleep(1000)
";

const FRONT: &str = "
import socket, sys
back = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
while True:
    back.sendall(b'q')
    back.recv(1)
";

/// A back end and the program that asks it, with a limit of 2 s.
fn pair(n: u32, then: &str) -> (Program, Watcher, Program) {
    let mut back = Command::new("python3");
    let back = back.args(["-c", BACK, &n.to_string(), then]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut back: Child = back.spawn().expect("python3");
    let mut port = String::new();
    BufReader::new(back.stdout.take().expect("stdout")).read_line(&mut port).expect("a line");
    let front = Program::start(Command::new("python3").args(["-c", FRONT, port.trim()]));
    let config = Config { limit: Duration::from_secs(3), ..Config::default() };
    let watcher = Watcher::of(front.pid(), config);
    (Program(back), watcher, front)
}

#[test]
fn a_back_end_that_reads_on() {
    if !have("python3", "--version") {
        return;
    }
    let (back, mut watcher, _front) = pair(400, "reads");
    let hang: &Hang = watcher.hang();
    assert_eq!(hang.sure, Sure::Guess, "{}", hang.why);
    let of_back = format!("process {} at the other side", back.pid());
    assert!(hang.why.contains("waited for an answer from port") && hang.why.contains(&of_back), "{}", hang.why);
}

#[test]
fn a_back_end_that_is_stopped() {
    if !have("python3", "--version") {
        return;
    }
    let (back, mut watcher, _front) = pair(u32::MAX / 2, "");
    watcher.run(Duration::from_secs(6));
    back.signal(libc::SIGSTOP);
    let hang: &Hang = watcher.hang();
    assert_eq!(hang.sure, Sure::Likely, "{}", hang.why);
    assert!(hang.why.contains("is stopped"), "{}", hang.why);
}

#[test]
fn a_back_end_that_will_answer() {
    if !have("python3", "--version") {
        return;
    }
    crate::common::at_once(["events", "naps"], |then| {
        let (_back, mut watcher, _front) = pair(400, then);
        watcher.run(Duration::from_secs(14));
        assert!(watcher.hangs().is_empty(), "{then}: {:#?}", watcher.hangs());
    });
}
