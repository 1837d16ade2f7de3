//! Pages over HTTP, by the standard library alone.
//!
//! Promises: at most [`MAX_CONNECTIONS`] at a time, beyond which one is answered 503 and closed; a
//! request has [`MAX_REQUEST_BYTES`] and, with its answer, ten seconds; each connection carries one
//! request; the threads have no capabilities. Refuses: everything but GET and HEAD; bodies are not
//! read. Which paths there are is [`crate::site`]'s.

use crate::export::Listen;
use crate::{plain, socket};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections at a time.
const MAX_CONNECTIONS: usize = 8;
/// Bytes of a request's head.
const MAX_REQUEST_BYTES: usize = 8 << 10;
/// For the request, and again for the answer.
const MAX_TIME: Duration = Duration::from_secs(5);
/// Pause when no connection can be accepted, as for want of a descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A request whose head was read.
#[derive(Debug)]
pub struct Request<'a> {
    /// What is asked for, without a query.
    pub path: &'a str,
    /// Whether it came over a network, and not by a file.
    pub is_tcp: bool,
    lines: std::str::Lines<'a>,
}

impl<'a> Request<'a> {
    /// Values of the head's fields of this name.
    pub fn fields(&self, name: &str) -> impl Iterator<Item = &'a str> {
        let fields = self.lines.clone().filter_map(|line| line.split_once(':'));
        fields.filter(move |(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// What is answered.
#[derive(Debug)]
pub struct Answer {
    /// As `200 OK`.
    pub status: &'static str,
    /// The body's type.
    pub kind: &'static str,
    /// Further lines of the head, each with its end.
    pub head: String,
    /// The body.
    pub body: String,
}

impl Answer {
    /// One of text.
    pub fn text(status: &'static str, body: impl Into<String>) -> Answer {
        Answer { status, kind: "text/plain; charset=utf-8", head: String::new(), body: body.into() }
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
            Listener::Unix(listener) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
        }
    }
}

impl Stream {
    fn read(&self, room: &mut [u8], time: Duration) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(Some(time)).and_then(|()| (&*stream).read(room)),
            Stream::Unix(stream) => stream.set_read_timeout(Some(time)).and_then(|()| (&*stream).read(room)),
        }
    }

    fn write(&self, bytes: &[u8], time: Duration) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.set_write_timeout(Some(time)).and_then(|()| (&*stream).write(bytes)),
            Stream::Unix(stream) => stream.set_write_timeout(Some(time)).and_then(|()| (&*stream).write(bytes)),
        }
    }

    fn end(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

/// Serves what `site` answers in a thread that lives as long as the process. Answers where, with
/// the port that was chosen if it was 0.
///
/// # Errors
/// Those of making the socket and the thread.
pub fn serve(at: &Listen, site: impl Fn(&Request<'_>) -> Answer + Send + Sync + 'static) -> io::Result<Listen> {
    let (listener, bound) = match at {
        Listen::Tcp(at) => {
            let listener = TcpListener::bind(at)?;
            let bound = Listen::Tcp(listener.local_addr()?);
            (Listener::Tcp(listener), bound)
        }
        Listen::File(path) => (Listener::Unix(socket::listen(path)?), at.clone()),
    };
    let site = Arc::new(site);
    plain::spawn("orbit-http", move || {
        loop {
            let Ok(stream) = listener.accept() else {
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            };
            // Each connection holds a clone of `site`.
            if Arc::strong_count(&site) > MAX_CONNECTIONS {
                let full = Answer::text("503 Service Unavailable", "too many connections\n");
                let _ = send(&stream, &full, true);
                continue;
            }
            let site = site.clone();
            // Without a thread the connection is closed.
            let _ = std::thread::Builder::new().name("orbit-request".into()).spawn(move || {
                // A peer that has left, or was too slow, has no reader for an error.
                let _ = serve_one(&stream, &*site);
            });
        }
    })?;
    Ok(bound)
}

fn serve_one(stream: &Stream, site: &impl Fn(&Request<'_>) -> Answer) -> io::Result<()> {
    let until = Instant::now() + MAX_TIME;
    let Some(head) = read_head(stream, until)? else {
        return send(stream, &Answer::text("431 Request Header Fields Too Large", "too long\n"), true);
    };
    let mut lines = head.lines();
    let request: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, path, version] = request[..] else {
        return send(stream, &Answer::text("400 Bad Request", "no request\n"), true);
    };
    if !version.starts_with("HTTP/1.") {
        return send(stream, &Answer::text("505 HTTP Version Not Supported", "HTTP/1.1 only\n"), true);
    }
    if !["GET", "HEAD"].contains(&method) {
        return send(stream, &Answer::text("405 Method Not Allowed", "GET or HEAD\n"), true);
    }
    let path = path.split('?').next().unwrap_or_default();
    let request = Request { path, is_tcp: matches!(stream, Stream::Tcp(_)), lines };
    send(stream, &site(&request), method == "GET")
}

/// The head of a request; `None` if it is too long.
fn read_head(stream: &Stream, until: Instant) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    let mut room = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() >= MAX_REQUEST_BYTES {
            return Ok(None);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match stream.read(&mut room, left)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => head.extend_from_slice(&room[..n]),
        }
    }
    Ok(Some(String::from_utf8_lossy(&head).into_owned()))
}

fn send(stream: &Stream, answer: &Answer, has_body: bool) -> io::Result<()> {
    let until = Instant::now() + MAX_TIME;
    let Answer { status, kind, head, body } = answer;
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n{head}\r\n"
    );
    let body = if has_body { body.as_str() } else { "" };
    for mut left in [head.as_bytes(), body.as_bytes()] {
        while !left.is_empty() {
            let time = until.saturating_duration_since(Instant::now());
            if time.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match stream.write(left, time)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => left = &left[n..],
            }
        }
    }
    stream.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn served() -> SocketAddr {
        let site = |request: &Request<'_>| match request.path {
            "/a" => {
                let head = "X-Own: yes\r\n".to_owned();
                let body = request.fields("accept").collect::<Vec<_>>().join("|");
                Answer { head, ..Answer::text("200 OK", body + "\n") }
            }
            _ => Answer::text("404 Not Found", "no\n"),
        };
        let at = Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
        match serve(&at, site).expect("served") {
            Listen::Tcp(at) => at,
            Listen::File(_) => unreachable!("an address was asked for"),
        }
    }

    fn ask(at: SocketAddr, text: &[u8]) -> String {
        let mut stream = TcpStream::connect(at).expect("connected");
        // One that is refused early may have closed its end.
        let _ = stream.write_all(text);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).expect("text")
    }

    #[test]
    fn what_is_asked_for_is_answered_and_nothing_else() {
        let at = served();
        for (request, status, body) in [
            ("GET /a HTTP/1.1\r\n\r\n", "200", "\n"),
            ("GET /a?x=y HTTP/1.0\r\n\r\n", "200", "\n"),
            ("GET /a HTTP/1.1\r\naccept: b, c\r\nx: y\r\nAccept:d\r\n\r\n", "200", "b, c|d\n"),
            ("HEAD /a HTTP/1.1\r\n\r\n", "200", ""),
            ("GET / HTTP/1.1\r\n\r\n", "404", "no\n"),
            ("GET /../etc/passwd HTTP/1.1\r\n\r\n", "404", "no\n"),
            ("POST /a HTTP/1.1\r\n\r\n", "405", "GET or HEAD\n"),
            ("GET /a HTTP/2\r\n\r\n", "505", "HTTP/1.1 only\n"),
            ("\r\n\r\n", "400", "no request\n"),
        ] {
            let answer = ask(at, request.as_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
            assert!(answer.ends_with(&format!("\r\n\r\n{body}")), "{request}: {answer}");
            assert_eq!(answer.contains("\r\nX-Own: yes\r\n"), status == "200", "{request}: {answer}");
        }
        let long = format!("GET /a HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(2 * MAX_REQUEST_BYTES));
        assert!(["", "HTTP/1.1 431"].iter().any(|status| ask(at, long.as_bytes()).starts_with(status)));
        assert!(!ask(at, long.as_bytes()).contains("200 OK"));
    }

    #[test]
    fn a_file_serves_the_same() {
        let path = std::env::temp_dir().join(format!("orbit-http-{}", std::process::id()));
        let at = serve(&Listen::File(path.clone()), |_| Answer::text("200 OK", "x")).expect("served");
        assert_eq!(at, Listen::File(path.clone()));
        let mut stream = UnixStream::connect(&path).expect("connected");
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nx"), "{answer}");
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn silent_connections_keep_nobody_else_out_for_long() {
        let at = served();
        let silent: Vec<TcpStream> = (0..MAX_CONNECTIONS).map(|_| TcpStream::connect(at).expect("connected")).collect();
        let start = Instant::now();
        // Refused while all are taken, served once their time is over.
        while !ask(at, b"GET /a HTTP/1.1\r\n\r\n").contains("200 OK") {
            assert!(start.elapsed() < Duration::from_secs(60), "never served");
            std::thread::sleep(Duration::from_millis(100));
        }
        drop(silent);
    }
}
