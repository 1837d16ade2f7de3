//! A page of metrics over HTTP, by the standard library alone.
//!
//! Promises: at most [`MAX_CONNECTIONS`] at a time, beyond which one is answered 503 and closed; a
//! request has [`MAX_REQUEST_BYTES`] and, with its answer, ten seconds; each connection carries one
//! request. Refuses: everything but GET and HEAD of `/metrics` and `/healthz`; bodies are not read.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
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

/// Serves pages made by `page` (true: OpenMetrics) in a thread that lives as long as the process.
/// Answers the address, whose port was chosen if it was 0.
///
/// # Errors
/// Those of making the socket and the thread.
pub fn serve(at: SocketAddr, page: impl Fn(bool) -> String + Send + Sync + 'static) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(at)?;
    let bound = listener.local_addr()?;
    let page = Arc::new(page);
    std::thread::Builder::new().name("orbit-metrics".into()).spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            };
            // Each connection holds a clone of `page`.
            if Arc::strong_count(&page) > MAX_CONNECTIONS {
                let _ = answer(&stream, "503 Service Unavailable", "text/plain", "too many connections\n", true);
                continue;
            }
            let page = page.clone();
            // Without a thread the connection is closed.
            let _ = std::thread::Builder::new().name("orbit-request".into()).spawn(move || {
                // A peer that has left, or was too slow, has no reader for an error.
                let _ = serve_one(&stream, &*page);
            });
        }
    })?;
    Ok(bound)
}

fn serve_one(stream: &TcpStream, page: &impl Fn(bool) -> String) -> io::Result<()> {
    let until = Instant::now() + MAX_TIME;
    let Some(head) = read_head(stream, until)? else {
        return answer(stream, "431 Request Header Fields Too Large", "text/plain", "too long\n", true);
    };
    let mut lines = head.lines();
    let request: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, path, version] = request[..] else {
        return answer(stream, "400 Bad Request", "text/plain", "no request\n", true);
    };
    if !version.starts_with("HTTP/1.") {
        return answer(stream, "505 HTTP Version Not Supported", "text/plain", "HTTP/1.1 only\n", true);
    }
    if !["GET", "HEAD"].contains(&method) {
        return answer(stream, "405 Method Not Allowed", "text/plain", "GET or HEAD\n", true);
    }
    let has_body = method == "GET";
    let accepts = |kind: &str| {
        let fields = lines.clone().filter_map(|line| line.split_once(':'));
        let mut accept = fields.filter(|(name, _)| name.eq_ignore_ascii_case("accept"));
        accept.any(|(_, value)| value.to_ascii_lowercase().contains(kind))
    };
    match path.split('?').next() {
        Some("/metrics") if accepts("application/openmetrics-text") => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            answer(stream, "200 OK", kind, &page(true), has_body)
        }
        Some("/metrics") => {
            answer(stream, "200 OK", "text/plain; version=0.0.4; charset=utf-8", &page(false), has_body)
        }
        Some("/healthz") => answer(stream, "200 OK", "text/plain", "ok\n", has_body),
        _ => answer(stream, "404 Not Found", "text/plain", "/metrics\n", has_body),
    }
}

/// The head of a request; `None` if it is too long.
fn read_head(mut stream: &TcpStream, until: Instant) -> io::Result<Option<String>> {
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
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut room)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => head.extend_from_slice(&room[..n]),
        }
    }
    Ok(Some(String::from_utf8_lossy(&head).into_owned()))
}

fn answer(stream: &TcpStream, status: &str, kind: &str, body: &str, has_body: bool) -> io::Result<()> {
    let until = Instant::now() + MAX_TIME;
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    let text = if has_body { head + body } else { head };
    let (mut left, mut to) = (text.as_bytes(), stream);
    while !left.is_empty() {
        let time = until.saturating_duration_since(Instant::now());
        if time.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(time))?;
        match to.write(left)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => left = &left[n..],
        }
    }
    stream.shutdown(std::net::Shutdown::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served() -> SocketAddr {
        let at = SocketAddr::from(([127, 0, 0, 1], 0));
        serve(at, |open| if open { "open\n".into() } else { "plain\n".into() }).expect("served")
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
            ("GET /metrics HTTP/1.1\r\n\r\n", "200", "plain\n"),
            ("GET /metrics?x=y HTTP/1.0\r\n\r\n", "200", "plain\n"),
            ("GET /metrics HTTP/1.1\r\naccept: text/html, Application/OpenMetrics-Text;q=1\r\n\r\n", "200", "open\n"),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", "200", ""),
            ("GET /healthz HTTP/1.1\r\n\r\n", "200", "ok\n"),
            ("GET / HTTP/1.1\r\n\r\n", "404", "/metrics\n"),
            ("GET /../etc/passwd HTTP/1.1\r\n\r\n", "404", "/metrics\n"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405", "GET or HEAD\n"),
            ("GET /metrics HTTP/2\r\n\r\n", "505", "HTTP/1.1 only\n"),
            ("\r\n\r\n", "400", "no request\n"),
        ] {
            let answer = ask(at, request.as_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
            assert!(answer.ends_with(&format!("\r\n\r\n{body}")), "{request}: {answer}");
        }
        let long = format!("GET /metrics HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(2 * MAX_REQUEST_BYTES));
        assert!(["", "HTTP/1.1 431"].iter().any(|status| ask(at, long.as_bytes()).starts_with(status)));
        assert!(!ask(at, long.as_bytes()).ends_with("plain\n"));
    }

    #[test]
    fn silent_connections_keep_nobody_else_out_for_long() {
        let at = served();
        let silent: Vec<TcpStream> = (0..MAX_CONNECTIONS).map(|_| TcpStream::connect(at).expect("connected")).collect();
        let start = Instant::now();
        // Refused while all are taken, served once their time is over.
        while !ask(at, b"GET /healthz HTTP/1.1\r\n\r\n").ends_with("ok\n") {
            assert!(start.elapsed() < Duration::from_secs(60), "never served");
            std::thread::sleep(Duration::from_millis(100));
        }
        drop(silent);
    }
}
