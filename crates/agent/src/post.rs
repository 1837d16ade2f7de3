//! A request of HTTP/1.1 that posts JSON to an address, by the standard library alone.
//!
//! Promises: it is over at its deadline, whatever the server does; one connection carries one
//! request; of an answer [`MAX_ANSWER_BYTES`] are read at most. Refuses: TLS, names, redirects,
//! compression.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of an answer, with its head.
const MAX_ANSWER_BYTES: usize = 64 << 10;

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

/// Posts a body, and reads the answer.
///
/// # Errors
/// `TimedOut` at the deadline; `InvalidData` for what is no answer of HTTP/1; those of the
/// connection.
pub fn post(to: SocketAddr, path: &str, body: &[u8], until: Instant) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&to, left(until)?)?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {to}\r\nUser-Agent: orbit-agent/{}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        env!("CARGO_PKG_VERSION"),
        body.len()
    );
    let sent = send(&mut stream, head.as_bytes(), until).and_then(|()| send(&mut stream, body, until));
    // A server may answer and close before it has read all, as for a body that is too long.
    let bytes = match receive(&mut stream, until) {
        Ok(bytes) => bytes,
        Err(e) => return Err(sent.err().unwrap_or(e)),
    };
    match answer(&bytes) {
        Some(answer) => Ok(answer),
        None => Err(sent.err().unwrap_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no answer of HTTP/1"))),
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn send(stream: &mut TcpStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if is_retried(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Reads until the answer is whole, or the server closes.
fn receive(stream: &mut TcpStream, until: Instant) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut room = [0; 4096];
    while bytes.len() < MAX_ANSWER_BYTES && !is_whole(&bytes) {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut room) {
            Ok(0) => break,
            Ok(n) => bytes.extend_from_slice(&room[..n]),
            Err(e) if is_retried(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(bytes)
}

/// The end of a socket's time is `WouldBlock`: whether the deadline is over, `left` says.
fn is_retried(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

/// The head as lines, and what has come of the body.
fn parts(bytes: &[u8]) -> Option<(Vec<&str>, &[u8])> {
    let end = bytes.windows(4).position(|end| end == b"\r\n\r\n")?;
    Some((std::str::from_utf8(&bytes[..end]).ok()?.split("\r\n").collect(), &bytes[end + 4..]))
}

fn field<'a>(head: &[&'a str], name: &str) -> Option<&'a str> {
    let mut fields = head.iter().skip(1).filter_map(|line| line.split_once(':'));
    fields.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

fn is_chunked(head: &[&str]) -> bool {
    field(head, "transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
}

/// Whether more bytes would not belong to the answer. One without a length ends with its
/// connection.
fn is_whole(bytes: &[u8]) -> bool {
    let Some((head, body)) = parts(bytes) else { return false };
    if is_chunked(&head) {
        return unchunked(body).1;
    }
    let length = field(&head, "content-length").and_then(|value| value.parse::<usize>().ok());
    length.is_some_and(|length| body.len() >= length) || head[0].split(' ').nth(1) == Some("204")
}

/// The content of chunks as far as they came, and whether the last one did.
fn unchunked(mut bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut all = Vec::new();
    while let Some(end) = bytes.windows(2).position(|end| end == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..end]).unwrap_or_default().split(';').next().unwrap_or_default();
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else { break };
        if size == 0 {
            return (all, true);
        }
        let Some(chunk) = size.checked_add(end + 2).and_then(|until| bytes.get(end + 2..until)) else { break };
        all.extend_from_slice(chunk);
        bytes = bytes.get(end + 2 + size + 2..).unwrap_or_default();
    }
    (all, false)
}

fn answer(bytes: &[u8]) -> Option<Answer> {
    let (head, body) = parts(bytes)?;
    let mut words = head.first()?.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    let status = words.next().filter(|status| status.len() == 3)?.parse().ok()?;
    let retry_after = field(&head, "retry-after").and_then(|value| value.parse().ok()).map(Duration::from_secs);
    let body = if is_chunked(&head) { unchunked(body).0 } else { body.to_vec() };
    Some(Answer { status, retry_after, body })
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
        assert_eq!(unchunked(b"ffffffffffffffff\r\nx"), (vec![], false));
        assert_eq!(unchunked(b"2\r\nab"), (b"ab".to_vec(), false));
        assert_eq!(unchunked(b"zz\r\nab\r\n"), (vec![], false));
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
