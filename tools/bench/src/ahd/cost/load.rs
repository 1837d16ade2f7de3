//! Clients that keep a server at work: each asks again as soon as it is answered, and none sleeps.
//! So the server always has others to serve, and does not spend CPU on waking its clients,
//! sometimes more and sometimes less.

use orbit_console::out::Failure;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Connections of the clients.
const CONNECTIONS: usize = 16;
/// Requests in flight on each, at Redis.
const IN_FLIGHT: usize = 16;
/// An answer that does not come in this time does not come.
const ANSWER: Duration = Duration::from_secs(30);

/// A connection whose reads do not wait.
trait Connection: Read + Write {}
impl Connection for TcpStream {}
impl Connection for UnixStream {}

/// What is sent in one go, how many requests that is, and how long the answer is.
struct Batch {
    text: String,
    requests: u64,
    answer: usize,
}

/// The clients of one server.
pub struct Clients {
    connections: Vec<Box<dyn Connection>>,
    batches: Vec<Batch>,
    /// The batch that all connections wait for the answer of.
    asked: usize,
    answer: Vec<u8>,
}

impl Clients {
    /// SET and GET of 64 bytes, several in flight.
    pub fn of_redis(socket: &Path) -> Result<Clients, Failure> {
        let value = "v".repeat(64);
        let set = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$64\r\n{value}\r\n");
        let get = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
        let several = |text: &str, answer: &str| Batch {
            text: text.repeat(IN_FLIGHT),
            requests: IN_FLIGHT as u64,
            answer: answer.len() * IN_FLIGHT,
        };
        let batches = vec![several(&set, "+OK\r\n"), several(get, &format!("$64\r\n{value}\r\n"))];
        let connect = || {
            let connection = UnixStream::connect(socket)?;
            connection.set_nonblocking(true)?;
            Ok(Box::new(connection) as Box<dyn Connection>)
        };
        Clients::begin(connect, batches)
    }

    /// One file from an HTTP server, one request in flight. The server answers with the same number
    /// of bytes each time.
    pub fn of_nginx(place: SocketAddr, path: &str) -> Result<Clients, Failure> {
        let text = format!("GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n");
        let connect = || {
            let connection = TcpStream::connect(place)?;
            connection.set_nodelay(true)?;
            connection.set_nonblocking(true)?;
            Ok(Box::new(connection) as Box<dyn Connection>)
        };
        let answer = answer_length(&mut *connect()?, &text)?;
        Clients::begin(connect, vec![Batch { text, requests: 1, answer }])
    }

    fn begin(
        mut connect: impl FnMut() -> Result<Box<dyn Connection>, Failure>,
        batches: Vec<Batch>,
    ) -> Result<Clients, Failure> {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut connection = connect()?;
            connection.write_all(batches[0].text.as_bytes())?;
            connections.push(connection);
        }
        let most = batches.iter().map(|b| b.answer).max().unwrap_or(0);
        Ok(Clients { connections, batches, asked: 0, answer: vec![0; most] })
    }

    /// Keeps the server at work for so long at least; how many requests were answered.
    pub fn ask(&mut self, span: Duration) -> Result<u64, Failure> {
        let (begun, mut answered) = (Instant::now(), 0);
        while begun.elapsed() < span {
            let next = (self.asked + 1) % self.batches.len();
            let batch = &self.batches[self.asked];
            for connection in &mut self.connections {
                receive(&mut **connection, &mut self.answer[..batch.answer])?;
                connection.write_all(self.batches[next].text.as_bytes())?;
                answered += batch.requests;
            }
            self.asked = next;
        }
        Ok(answered)
    }
}

/// Fills the buffer.
fn receive(connection: &mut dyn Connection, buffer: &mut [u8]) -> Result<(), Failure> {
    let (mut got, begun) = (0, Instant::now());
    while got < buffer.len() {
        match connection.read(&mut buffer[got..]) {
            Ok(0) => return Err(Failure::text("the server closed a connection while its cost was measured")),
            Ok(n) => got += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock && begun.elapsed() < ANSWER => std::hint::spin_loop(),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// How long the answer to an HTTP request is, its head and its body.
fn answer_length(connection: &mut dyn Connection, request: &str) -> Result<usize, Failure> {
    connection.write_all(request.as_bytes())?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        receive(connection, &mut byte)?;
        head.push(byte[0]);
    }
    let text = String::from_utf8_lossy(&head);
    let length = text.lines().find_map(|l| l.strip_prefix("Content-Length: ")?.trim().parse::<usize>().ok());
    match length {
        Some(body) if text.starts_with("HTTP/1.1 200 ") => Ok(head.len() + body),
        _ => Err(Failure::text(format!("the server does not give the file: {text}"))),
    }
}
