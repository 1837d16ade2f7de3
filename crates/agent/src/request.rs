//! A request of HTTP/1.1, by the standard library alone.
//!
//! Promises: it is over at its deadline, whatever the server does; one connection carries one
//! request; no more of an answer is kept than was asked for. Refuses: redirects, compression.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of a collector's answer.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Bytes of an answer's head, and of a chunk's.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// A connection of which each read and write can be given a time.
pub trait Stream: Read + Write {
    /// Ends the next read or write after this time, with `WouldBlock`.
    ///
    /// # Errors
    /// The socket's.
    fn limit(&self, time: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// As `GET`.
    pub method: &'a str,
    /// The server, as the request names it.
    pub host: &'a str,
    /// Path and query.
    pub path: &'a str,
    /// Further fields of the head.
    pub fields: &'a [(&'a str, &'a str)],
    /// What is sent, as JSON; nothing if empty.
    pub body: &'a [u8],
    /// Bytes that the answer's body may have.
    pub most: usize,
}

/// What a server answered.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// As 200.
    pub status: u16,
    /// How long it asks to be left alone.
    pub retry_after: Option<Duration>,
    /// What came of its body.
    pub body: Vec<u8>,
}

/// Posts a body to a server without TLS, and reads the answer.
///
/// # Errors
/// Those of [`exchange`] and of the connection.
pub fn post(to: SocketAddr, path: &str, body: &[u8], until: Instant) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&to, left(until)?)?;
    let host = to.to_string();
    let request = Request { method: "POST", host: &host, path, fields: &[], body, most: MAX_ANSWER_BYTES };
    exchange(&mut stream, &request, until)
}

/// Sends a request, and reads the answer.
///
/// # Errors
/// `TimedOut` at the deadline; `InvalidData` for what is no answer of HTTP/1, and for one with a
/// longer body than may be; those of the connection.
pub fn exchange(stream: &mut impl Stream, request: &Request<'_>, until: Instant) -> io::Result<Answer> {
    let Request { method, host, path, fields, body, most } = request;
    let agent = env!("CARGO_PKG_VERSION");
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: orbit-agent/{agent}\r\nConnection: close\r\n");
    for (name, value) in *fields {
        head += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() {
        head += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    }
    head += "\r\n";
    let sent = send(stream, head.as_bytes(), until).and_then(|()| send(stream, body, until));
    // A server may answer and close before it has read all, as for a body that is too long.
    receive(stream, *most, until).map_err(|e| sent.err().unwrap_or(e))
}

/// The time until a deadline.
///
/// # Errors
/// `TimedOut` once it is over.
pub fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn send(stream: &mut impl Stream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.limit(left(until)?)?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if is_retried(&e) => {}
            Err(e) => return Err(e),
        }
    }
    loop {
        stream.limit(left(until)?)?;
        match stream.flush() {
            Err(e) if is_retried(&e) => {}
            other => return other,
        }
    }
}

/// Reads until the answer is whole, or the server closes: then what came is the answer.
fn receive(stream: &mut impl Stream, most: usize, until: Instant) -> io::Result<Answer> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut room = vec![0; 16 << 10];
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
            break end;
        }
        let n = if bytes.len() < MAX_HEAD_BYTES { read(stream, &mut room, until)? } else { 0 };
        if n == 0 {
            return Err(wrong("no answer of HTTP/1"));
        }
        bytes.extend_from_slice(&room[..n]);
    };
    let Some((mut answer, mut form)) = head(&bytes[..end]) else { return Err(wrong("no answer of HTTP/1")) };
    form.take(&bytes[end + 4..], &mut answer.body);
    while !form.is_over(&answer.body) && answer.body.len() <= most {
        match read(stream, &mut room, until)? {
            0 => break,
            n => form.take(&room[..n], &mut answer.body),
        }
    }
    if answer.body.len() > most {
        return Err(wrong(&format!("an answer of more than {most} bytes")));
    }
    Ok(answer)
}

/// Reads some bytes; none: the server has closed.
fn read(stream: &mut impl Stream, room: &mut [u8], until: Instant) -> io::Result<usize> {
    loop {
        stream.limit(left(until)?)?;
        match stream.read(room) {
            // A server of TLS that closes without saying so: whether all came, the form says.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
            Err(e) if is_retried(&e) => {}
            other => return other,
        }
    }
}

/// The end of a socket's time is `WouldBlock`: whether the deadline is over, `left` says.
fn is_retried(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

/// How long the body is.
enum Form {
    /// So many bytes.
    Length(usize),
    /// Until the connection ends.
    Rest,
    /// In chunks.
    Chunks(Chunks),
}

/// What an answer's head says, with an empty body.
fn head(bytes: &[u8]) -> Option<(Answer, Form)> {
    let lines: Vec<&str> = std::str::from_utf8(bytes).ok()?.split("\r\n").collect();
    let field = |name: &str| {
        let mut fields = lines.iter().skip(1).filter_map(|line| line.split_once(':'));
        fields.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    };
    let mut words = lines.first()?.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    let status = words.next().filter(|status| status.len() == 3)?.parse().ok()?;
    let form = if field("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        Form::Chunks(Chunks { next: Next::Size, line: Vec::new() })
    } else {
        let length = field("content-length").and_then(|value| value.parse().ok());
        length.or((status == 204).then_some(0)).map_or(Form::Rest, Form::Length)
    };
    let retry_after = field("retry-after").and_then(|value| value.parse().ok()).map(Duration::from_secs);
    Some((Answer { status, retry_after, body: Vec::new() }, form))
}

impl Form {
    fn take(&mut self, bytes: &[u8], body: &mut Vec<u8>) {
        match self {
            Form::Length(_) | Form::Rest => body.extend_from_slice(bytes),
            Form::Chunks(chunks) => chunks.take(bytes, body),
        }
    }

    /// Whether more bytes would not belong to the answer.
    fn is_over(&self, body: &[u8]) -> bool {
        match self {
            Form::Length(length) => body.len() >= *length,
            Form::Rest => false,
            Form::Chunks(chunks) => matches!(chunks.next, Next::Nothing),
        }
    }
}

/// A body in chunks, as far as it came.
struct Chunks {
    next: Next,
    /// What came of a chunk's head.
    line: Vec<u8>,
}

/// What comes next of a body in chunks.
#[derive(Clone, Copy)]
enum Next {
    /// The head of a chunk.
    Size,
    /// So many bytes of it.
    Content(usize),
    /// The end of its line.
    End,
    /// It was the last one, or no chunk.
    Nothing,
}

impl Chunks {
    fn take(&mut self, mut bytes: &[u8], body: &mut Vec<u8>) {
        while !bytes.is_empty() {
            match self.next {
                Next::Nothing => return,
                Next::Content(size) => {
                    let (now, later) = bytes.split_at(size.min(bytes.len()));
                    body.extend_from_slice(now);
                    bytes = later;
                    self.next = if now.len() == size { Next::End } else { Next::Content(size - now.len()) };
                }
                Next::Size | Next::End => {
                    let end = bytes.iter().position(|byte| *byte == b'\n');
                    let (now, later) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
                    self.line.extend_from_slice(now);
                    bytes = later;
                    if end.is_some() {
                        let line = std::mem::take(&mut self.line);
                        self.next = if matches!(self.next, Next::End) { Next::Size } else { sized(&line) };
                    } else if self.line.len() > MAX_HEAD_BYTES {
                        self.next = Next::Nothing;
                    }
                }
            }
        }
    }
}

/// What a chunk's head says.
fn sized(line: &[u8]) -> Next {
    let text = std::str::from_utf8(line).unwrap_or_default().split(';').next().unwrap_or_default();
    match usize::from_str_radix(text.trim(), 16) {
        Ok(0) | Err(_) => Next::Nothing,
        Ok(size) => Next::Content(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Posts to a server that answers this once it has read the body, then closes if `closes`.
    fn exchange(body: &'static str, answer: &'static str, closes: bool) -> (io::Result<Answer>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let at = listener.local_addr().expect("an address");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut got = Vec::new();
            let mut room = [0; 4096];
            while !(got.windows(4).any(|end| end == b"\r\n\r\n") && got.ends_with(body.as_bytes())) {
                let n = stream.read(&mut room).expect("a request");
                assert!(n > 0, "cut");
                got.extend_from_slice(&room[..n]);
            }
            // In two parts: one read is not the whole answer.
            let (first, rest) = answer.as_bytes().split_at(answer.len() / 2);
            stream.write_all(first).expect("sent");
            stream.flush().expect("sent");
            std::thread::sleep(Duration::from_millis(5));
            stream.write_all(rest).expect("sent");
            if !closes {
                // The client leaves first.
                while stream.read(&mut room).is_ok_and(|n| n > 0) {}
            }
            String::from_utf8(got).expect("text")
        });
        let got = post(at, "/v1/logs", body.as_bytes(), Instant::now() + Duration::from_secs(60));
        (got, server.join().expect("a server"))
    }

    #[test]
    fn a_request_has_its_length_and_an_answer_its_parts() {
        let plain = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        let (got, request) = exchange("{\"a\":\"é\"}", plain, false);
        assert_eq!(got.expect("an answer"), Answer { status: 200, retry_after: None, body: b"{}".to_vec() });
        assert!(request.starts_with("POST /v1/logs HTTP/1.1\r\nHost: 127.0.0.1:"), "{request}");
        for line in
            ["\r\nContent-Type: application/json\r\n", "\r\nContent-Length: 10\r\n", "\r\nConnection: close\r\n"]
        {
            assert!(request.contains(line), "{line}: {request}");
        }
        let later = "HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n";
        let (got, _) = exchange("{}", later, false);
        assert_eq!(
            got.expect("an answer"),
            Answer { status: 503, retry_after: Some(Duration::from_secs(7)), body: vec![] }
        );
        let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{\"a\r\nA;x=y\r\n\":12345678\r\n\
                      1\r\n}\r\n0\r\n\r\n";
        let (got, _) = exchange("{}", chunks, false);
        assert_eq!(got.expect("an answer").body, b"{\"a\":12345678}");
        let (got, _) = exchange("{}", "HTTP/1.0 200 OK\r\n\r\n{\"b\":1}", true);
        assert_eq!(got.expect("an answer").body, b"{\"b\":1}", "its end is the connection's");
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for text in ["", "SSH-2.0-x\r\n\r\n", "HTTP/1.1 20 OK\r\n\r\n", "HTTP/1.1 200", "HTTP/2 200 OK\r\n\r\n"] {
            let (got, _) = exchange("{}", text, true);
            assert_eq!(got.expect_err(text).kind(), io::ErrorKind::InvalidData, "{text}");
        }
    }

    #[test]
    fn chunks_may_come_in_any_pieces() {
        let unchunked = |bytes: &[u8], piece: usize| {
            let mut chunks = Chunks { next: Next::Size, line: Vec::new() };
            let mut body = Vec::new();
            bytes.chunks(piece).for_each(|piece| chunks.take(piece, &mut body));
            (String::from_utf8(body).expect("text"), matches!(chunks.next, Next::Nothing))
        };
        for piece in [1, 2, 3, 100] {
            for (bytes, body, is_over) in [
                ("3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n", "abc0123456789", true),
                ("2\r\nab", "ab", false),
                ("ffffffffffffffff\r\nx", "x", false),
                ("fffffffffffffffff\r\nx", "", true),
                ("zz\r\nab\r\n", "", true),
                ("", "", false),
            ] {
                assert_eq!(unchunked(bytes.as_bytes(), piece), (body.to_owned(), is_over), "{bytes:?} by {piece}");
            }
        }
    }

    #[test]
    fn an_answer_that_is_too_long_is_an_error() {
        let long = "HTTP/1.1 200 OK\r\n\r\n".to_owned() + &"x".repeat(MAX_ANSWER_BYTES + 1);
        let (got, _) = exchange("{}", long.leak(), true);
        assert!(got.expect_err("too long").to_string().contains("more than 65536 bytes"));
    }

    #[test]
    fn a_silent_server_costs_the_time_given_and_no_more() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let at = listener.local_addr().expect("an address");
        let start = Instant::now();
        // More than the socket's room: sending waits as well.
        let body = vec![b' '; 64 << 20];
        for body in [&body[..2], &body] {
            let got = post(at, "/", body, Instant::now() + Duration::from_millis(200));
            assert_eq!(got.expect_err("nobody answers").kind(), io::ErrorKind::TimedOut);
        }
        assert!(start.elapsed() >= Duration::from_millis(400) && start.elapsed() < Duration::from_secs(30));
        drop(listener);
        let refused = post(at, "/", b"{}", Instant::now() + Duration::from_secs(60));
        assert_eq!(refused.expect_err("closed").kind(), io::ErrorKind::ConnectionRefused);
    }
}
