//! A request that is not answered is explained by the program's own runtime: Go's goroutines, the
//! JVM's deadlock, a pool whose threads wait for tasks of their own pool.

use crate::common::{Dir, PATIENCE, Program, Watcher, have};
use orbit_ahd::{Config, Event, Hang, Sure};
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

/// Starts the server, has it answer, then has so many requests hang it, and hands over the report
/// that its runtime explains.
fn explained(port: u16, command: &mut Command, hanging: usize, is_explained: impl Fn(&Hang) -> bool) {
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
    let _waiting: Vec<TcpStream> = (0..hanging).map(|_| ask(port, "/hang").expect("a connection")).collect();
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
    explained(port, Command::new(server).args([&port.to_string(), "send_under_lock"]), 2, |hang| {
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
    explained(port, java.arg("-cp").arg(&dir.0).args(["Hangs", &port.to_string(), "monitors"]), 2, |hang| {
        let says = |parts: &[&str]| hang.runtime.iter().any(|line| parts.iter().all(|part| line.contains(part)));
        says(&["Found one Java-level deadlock"])
            && says(&["waits to enter", "holds", "of class java.lang.Object", "Hangs.hang", " at Hangs.java:"])
    });
}

/// A server with a pool of four: four requests at once each wait for a task of the same pool, while
/// another thread ticks.
const NESTED: &str = r#"
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.concurrent.*;

public class Nested {
    static final ExecutorService pool = Executors.newFixedThreadPool(4);
    static final CyclicBarrier four = new CyclicBarrier(4);

    static int answer(boolean together) throws Exception {
        if (together) four.await();
        return CompletableFuture.supplyAsync(() -> 42, pool).join();
    }

    public static void main(String[] args) throws Exception {
        Executors.newScheduledThreadPool(1).scheduleAtFixedRate(() -> { }, 0, 200, TimeUnit.MILLISECONDS);
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(args[0])), 50);
        server.setExecutor(pool);
        server.createContext("/", exchange -> {
            try {
                answer(exchange.getRequestURI().getPath().equals("/hang"));
            } catch (Exception e) {
                throw new RuntimeException(e);
            }
            exchange.sendResponseHeaders(200, 2);
            exchange.getResponseBody().write(new byte[] {'o', 'k'});
            exchange.close();
        });
        server.start();
    }
}
"#;

#[test]
fn a_pool_whose_threads_wait_for_tasks_of_their_own_pool() {
    let dir = Dir::new("runtime-pool");
    if !have("javac", "-version") {
        return;
    }
    let (port, source) = (free_port(), dir.0.join("Nested.java"));
    std::fs::write(&source, NESTED).expect("a file");
    assert!(Command::new("javac").arg("-d").arg(&dir.0).arg(&source).status().expect("javac").success());
    let line = NESTED.lines().position(|line| line.contains("supplyAsync")).expect("such a line") as u32 + 1;
    let mut java = Command::new("java");
    explained(port, java.arg("-cp").arg(&dir.0).args(["Nested", &port.to_string()]), 4, |hang| {
        // Of a JVM that compiles meanwhile an earlier guess may be of one request.
        let waits = hang.threads.iter().filter(|thread| {
            let own = |f: &&orbit_inspect::stacks::Frame| f.function.as_deref() == Some("Nested.answer");
            thread.stack.iter().find(own).is_some_and(|f| f.line == Some(line))
        });
        let all_four = "no thread of the pool pool-1-thread-N is free: all 4 wait for the result of a task \
                        (Nested.answer at Nested.java:";
        let is_explained = hang.why.contains(all_four) && waits.count() == 4;
        if is_explained {
            assert!(hang.threads[0].comm.starts_with("pool-1-thread-"), "{:#?}", hang.threads);
            assert!(hang.threads.iter().any(|thread| thread.tid == hang.pid), "its first thread: {:#?}", hang.threads);
            assert!(hang.sure < Sure::Certain, "{hang:#?}");
        }
        is_explained
    });
}
