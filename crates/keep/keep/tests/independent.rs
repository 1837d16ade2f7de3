//! `--state independent`: a proxy with two threads is killed by signals under load, without a log.
//! Connections that had moved end; no client gets an answer that is not its own, and one that was
//! idle sees nothing.

mod common;

use common::{KEEP, PATIENCE, Scratch, count, events, lacks_tracking, until};
use orbit_testing::{free_port, signal, times};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

/// Reads what ends with an empty line; the rest stays in `kept`.
fn head(stream: &mut TcpStream, kept: &mut Vec<u8>) -> io::Result<String> {
    loop {
        if let Some(at) = kept.windows(4).position(|end| end == b"\r\n\r\n") {
            let head = kept.drain(..at + 4).collect();
            return String::from_utf8(head).map_err(io::Error::other);
        }
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => kept.extend_from_slice(&bytes[..len]),
        }
    }
}

/// A server that answers each request with its own path.
fn serve(listener: TcpListener) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { continue };
        thread::spawn(move || {
            let mut kept = Vec::new();
            while let Ok(request) = head(&mut stream, &mut kept) {
                let path = request.split(' ').nth(1).unwrap_or_default();
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}", path.len());
                if stream.write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
        });
    }
}

/// A client that keeps its connection.
struct Client {
    stream: TcpStream,
    kept: Vec<u8>,
}

impl Client {
    fn connect(port: u16) -> io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Client { stream, kept: Vec::new() })
    }

    /// The status and the body of an answer.
    fn get(&mut self, path: &str) -> io::Result<(String, String)> {
        self.stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())?;
        let answer = head(&mut self.stream, &mut self.kept)?;
        let length = answer.to_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let length: usize = length.ok_or(io::ErrorKind::InvalidData)?;
        while self.kept.len() < length {
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => self.kept.extend_from_slice(&bytes[..len]),
            }
        }
        let body = String::from_utf8(self.kept.drain(..length).collect()).map_err(io::Error::other)?;
        Ok((answer.split(' ').nth(1).unwrap_or_default().to_owned(), body))
    }
}

/// What clients have seen.
#[derive(Default)]
struct Seen {
    right: AtomicUsize,
    resets: AtomicUsize,
    foreign: AtomicUsize,
    refused: AtomicUsize,
}

/// Asks, each time for another path, until `stop`.
fn ask(port: u16, name: usize, stop: &AtomicBool, seen: &Seen) {
    let mut client = None;
    for nth in 0.. {
        if stop.load(SeqCst) {
            return;
        }
        let path = format!("/{name}-{nth}");
        let Some(mut asked) = client.take().or_else(|| Client::connect(port).ok()) else {
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        match asked.get(&path) {
            Ok((status, body)) if status == "200" => {
                let to = if body == path { &seen.right } else { &seen.foreign };
                to.fetch_add(1, SeqCst);
                client = Some(asked);
            }
            Ok(_) => drop(seen.refused.fetch_add(1, SeqCst)),
            Err(_) => drop(seen.resets.fetch_add(1, SeqCst)),
        }
    }
}

#[test]
fn clients_of_haproxy_with_threads_get_their_own_answers() {
    if let orbit_linux::Support::No(why) = orbit_linux::calls_made::probe() {
        println!("SKIP: needs {why}");
        return;
    }
    if !Path::new("/usr/sbin/haproxy").exists() {
        println!("SKIP: needs haproxy");
        return;
    }
    if lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("independent-haproxy");
    let back = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let (behind, port) = (back.local_addr().expect("bound").port(), free_port());
    thread::spawn(|| serve(back));
    let settings = format!(
        "global\n  nbthread 2\n  maxconn 200\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 5m\n  \
         timeout server 5m\n  timeout http-keep-alive 5m\nfrontend f\n  bind 127.0.0.1:{port}\n  default_backend \
         b\nbackend b\n  server s1 127.0.0.1:{behind}\n"
    );
    fs::write(scratch.join("haproxy.cfg"), settings).expect("written");
    let log = scratch.join("events");
    let mut keeper = Command::new(KEEP)
        .args(["--every", "100ms", "--state", "independent", "--allow-repeats", "--events"])
        .arg(&log)
        .args(["--", "/usr/sbin/haproxy", "-db", "-f"])
        .arg(scratch.join("haproxy.cfg"))
        .stdout(Stdio::null())
        .spawn()
        .expect("orbit-keep");
    let kept = until("it is kept", || events(&log).into_iter().find(|e| e["event"] == "kept"));
    let pid = kept["pid"].as_i64().expect("a number") as i32;
    let mut idle = until("it serves", || Client::connect(port).ok());
    assert_eq!(idle.get("/idle").expect("an answer"), ("200".into(), "/idle".into()));
    // More than a checkpoint's time and those that follow a recovery.
    thread::sleep(Duration::from_millis(500));
    let (stop, seen) = (AtomicBool::new(false), Seen::default());
    let crashes = times(10, 100);
    let mut is_given_up = false;
    thread::scope(|scope| {
        for name in 0..4 {
            let (stop, seen) = (&stop, &seen);
            scope.spawn(move || ask(port, name, stop, seen));
        }
        for crash in 1..=crashes {
            let before = seen.right.load(SeqCst);
            until("clients are served", || (seen.right.load(SeqCst) > before + 200).then_some(()));
            signal(pid, libc::SIGSEGV);
            until("it is put back", || {
                is_given_up = count(&log, "gave-up") > 0;
                (is_given_up || count(&log, "recovered") >= crash).then_some(())
            });
            if is_given_up {
                break;
            }
        }
        stop.store(true, SeqCst);
    });
    assert!(!is_given_up, "{:?}", events(&log).pop());
    let [right, foreign, refused, resets] =
        [&seen.right, &seen.foreign, &seen.refused, &seen.resets].map(|count| count.load(SeqCst));
    println!("{crashes} crashes: {right} right answers, {foreign} foreign, {refused} refused, {resets} resets");
    assert_eq!((foreign, refused), (0, 0));
    assert!(resets > 0, "connections that moved end");
    assert_eq!(idle.get("/idle-still").expect("its connection stayed"), ("200".into(), "/idle-still".into()));
    signal(keeper.id() as i32, libc::SIGTERM);
    until("it ends", || keeper.try_wait().expect("a child"));
}
