//! A request that is not answered is explained by the program's own runtime: Go's goroutines, the
//! JVM's deadlock.

use crate::common::{Dir, PATIENCE, Program, Watcher, have};
use orbit_ahd::{Config, Event, Hang};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Requests before the one that hangs.
const BEFORE: usize = 80;

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port()
}

fn ask(port: u16, path: &str) -> std::io::Result<TcpStream> {
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    write!(server, "GET {path} HTTP/1.0\r\nHost: x\r\n\r\n")?;
    Ok(server)
}

/// Starts the server, has it answer, then has it hang, and hands over the report that its runtime
/// explains.
fn explained(port: u16, command: &mut Command, is_explained: impl Fn(&Hang) -> bool) {
    let program = Program::start(command);
    let mut watcher = Watcher::of(program.pid(), Config { limit: Duration::from_secs(1), ..Config::default() });
    let begun = Instant::now();
    let mut answered = 0;
    while answered < BEFORE {
        assert!(begun.elapsed() < PATIENCE, "the server answered {answered} requests");
        let answer = ask(port, "/").and_then(|mut server| server.read_to_end(&mut Vec::new()));
        answered += usize::from(answer.is_ok_and(|n| n > 0));
        watcher.scan();
    }
    let _waiting = [ask(port, "/hang").expect("a connection"), ask(port, "/hang").expect("a connection")];
    let explains = |all: &[Event]| all.iter().any(|e| matches!(e, Event::Hang(hang) if is_explained(hang)));
    watcher.until("a report with what the runtime says", explains);
    println!("{:#?}", watcher.hangs().last().map(|hang| &hang.runtime));
}

fn outside(file: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/outside").join(file)
}

#[test]
fn goroutines_by_what_they_wait_for() {
    let dir = Dir::new("runtime-go");
    if !have("go", "version") {
        return;
    }
    let (server, port) = (dir.0.join("server"), free_port());
    let built = Command::new("go").args(["build", "-o"]).arg(&server).arg(outside("hangs.go")).status();
    assert!(built.expect("go").success());
    explained(port, Command::new(server).args([&port.to_string(), "send_under_lock"]), |hang| {
        hang.runtime.iter().any(|line| line.contains("main.monitor") && line.contains("hangs.go:"))
    });
}

#[test]
fn a_deadlock_that_the_jvm_finds() {
    let dir = Dir::new("runtime-java");
    if !have("javac", "-version") {
        return;
    }
    let port = free_port();
    let built = Command::new("javac").arg("-d").arg(&dir.0).arg(outside("Hangs.java")).status();
    assert!(built.expect("javac").success());
    let mut java = Command::new("java");
    explained(port, java.arg("-cp").arg(&dir.0).args(["Hangs", &port.to_string(), "monitors"]), |hang| {
        let says = |part: &str| hang.runtime.iter().any(|line| line.contains(part));
        says("Found one Java-level deadlock") && says("Hangs.hang(Hangs.java:")
    });
}
