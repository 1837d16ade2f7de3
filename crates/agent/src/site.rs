//! What is served at which path: `/metrics`, the status page at `/`, its data at `/status.json`.
//!
//! Promises: what is not configured is not there. The page and its data are answered to readers
//! that name this machine by a loopback address or `localhost` only, so that a page of another
//! server whose name leads here cannot read them; no other page may hold them in a frame, and no
//! cache keeps them. The page runs its own script and style alone, by a number that is another in
//! each answer, and loads nothing.

use crate::http::{Answer, Request};
use crate::page;
use crate::state::{Kept, State, View};
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

/// What is served at one address.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// `/metrics`.
    pub metrics: bool,
    /// `/` and `/status.json`.
    pub page: bool,
}

/// Of every answer about what hangs.
const PRIVATE: &str = "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\n\
                       Cross-Origin-Resource-Policy: same-origin\r\nCross-Origin-Opener-Policy: same-origin\r\n";
/// Bytes of a number that is used once.
const NONCE_BYTES: usize = 16;

impl Site {
    /// Answers a request.
    pub fn answer(&self, request: &Request<'_>, state: &Mutex<State>) -> Answer {
        match request.path {
            "/metrics" if self.metrics => metrics(request, state),
            "/healthz" => Answer::text("200 OK", "ok\n"),
            "/" | "/status.json" if self.page && !is_addressed(request) => {
                let why = "this page is answered under a loopback address or localhost only\n";
                Answer { head: PRIVATE.to_owned(), ..Answer::text("421 Misdirected Request", why) }
            }
            "/" if self.page => shown(state),
            "/status.json" if self.page => Answer {
                kind: "application/json",
                head: format!("{PRIVATE}Content-Security-Policy: default-src 'none'\r\n"),
                ..Answer::text("200 OK", format!("{}\n", view(state).json()))
            },
            _ => Answer::text("404 Not Found", self.paths()),
        }
    }

    fn paths(self) -> String {
        let all = [("/metrics\n", self.metrics), ("/\n", self.page), ("/status.json\n", self.page)];
        all.iter().filter(|(_, is_there)| *is_there).map(|(path, _)| *path).collect()
    }
}

fn metrics(request: &Request<'_>, state: &Mutex<State>) -> Answer {
    let open =
        request.fields("accept").any(|value| value.to_ascii_lowercase().contains("application/openmetrics-text"));
    let kind = match open {
        true => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        false => "text/plain; version=0.0.4; charset=utf-8",
    };
    let body = state.lock().unwrap_or_else(PoisonError::into_inner).page(open);
    Answer { kind, ..Answer::text("200 OK", body) }
}

fn shown(state: &Mutex<State>) -> Answer {
    let nonce = match nonce() {
        Ok(nonce) => nonce,
        // Without it the page would run what it shows, or nothing.
        Err(e) => return Answer::text("500 Internal Server Error", format!("/dev/urandom: {e}\n")),
    };
    let policy = format!(
        "Content-Security-Policy: default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    );
    Answer {
        kind: "text/html; charset=utf-8",
        head: format!("{PRIVATE}{policy}"),
        ..Answer::text("200 OK", page::html(&view(state), &nonce))
    }
}

/// What is known now. Keepers are asked first, while nobody waits for the state.
fn view(state: &Mutex<State>) -> View {
    let kept = Kept::now();
    state.lock().unwrap_or_else(PoisonError::into_inner).view(kept)
}

fn nonce() -> io::Result<String> {
    let mut bytes = [0; NONCE_BYTES];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether the reader names this machine itself. A file has no other name.
fn is_addressed(request: &Request<'_>) -> bool {
    let mut hosts = request.fields("host");
    let (first, is_alone) = (hosts.next(), hosts.next().is_none());
    !request.is_tcp || (is_alone && first.is_some_and(is_loopback))
}

fn is_loopback(host: &str) -> bool {
    if let Ok(at) = host.parse::<SocketAddr>() {
        return at.ip().is_loopback();
    }
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    if let Ok(at) = bare.parse::<IpAddr>() {
        return at.is_loopback();
    }
    let (name, port) = host.split_once(':').unwrap_or((host, "0"));
    name.eq_ignore_ascii_case("localhost") && port.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::Listen;
    use crate::http;
    use std::io::Write;
    use std::net::TcpStream;
    use std::sync::Arc;

    fn ask(site: Site, request: &str) -> String {
        let state = Arc::new(Mutex::new(State::default()));
        let at = Listen::Tcp(([127, 0, 0, 1], 0).into());
        let bound = http::serve(&at, move |request| site.answer(request, &state)).expect("served");
        let mut stream = TcpStream::connect(bound.to_string()).expect("connected");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        answer
    }

    #[test]
    fn what_is_not_configured_is_not_there() {
        for (metrics, page) in [(false, false), (true, false), (false, true), (true, true)] {
            let status = |path: &str| {
                let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
                ask(Site { metrics, page }, &request).get(9..12).map(str::to_owned)
            };
            let expected = |is_there: bool| Some(if is_there { "200" } else { "404" }.to_owned());
            assert_eq!(status("/metrics"), expected(metrics));
            assert_eq!([status("/"), status("/status.json")], [expected(page), expected(page)]);
            assert_eq!([status("/healthz"), status("/x")], [expected(true), expected(false)]);
        }
    }

    #[test]
    fn metrics_come_in_the_format_that_is_asked_for() {
        let site = Site { metrics: true, page: false };
        let plain = ask(site, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(plain.contains("\r\nContent-Type: text/plain; version=0.0.4") && !plain.contains("# EOF"), "{plain}");
        let open = "GET /metrics HTTP/1.1\r\naccept: text/html, Application/OpenMetrics-Text;q=1\r\n\r\n";
        let open = ask(site, open);
        assert!(open.contains("\r\nContent-Type: application/openmetrics-text") && open.ends_with("# EOF\n"), "{open}");
    }

    #[test]
    fn the_page_is_answered_to_readers_of_this_machine_alone() {
        for (host, status) in [
            ("Host: 127.0.0.1:9107\r\n", "200"),
            ("host: LOCALHOST:8080\r\n", "200"),
            ("Host: [::1]\r\n", "200"),
            ("Host: [::1]:1\r\n", "200"),
            ("", "421"),
            ("Host: \r\n", "421"),
            ("Host: example.org\r\n", "421"),
            ("Host: localhost.example.org\r\n", "421"),
            ("Host: 127.0.0.1.example.org\r\n", "421"),
            ("Host: 192.0.2.1\r\n", "421"),
            ("Host: localhost:x\r\n", "421"),
            ("Host: localhost\r\nHost: example.org\r\n", "421"),
        ] {
            for path in ["/", "/status.json"] {
                let answer = ask(Site { metrics: true, page: true }, &format!("GET {path} HTTP/1.1\r\n{host}\r\n"));
                assert_eq!(answer.get(9..12), Some(status), "{host}: {answer}");
                assert!(answer.contains("\r\nCache-Control: no-store\r\n"), "{answer}");
            }
        }
    }

    #[test]
    fn the_page_runs_nothing_but_its_own() {
        let get = || ask(Site { metrics: false, page: true }, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let of = |answer: &str| {
            let rule = answer.lines().find(|line| line.starts_with("Content-Security-Policy: ")).expect("a policy");
            let nonce = rule.split("script-src 'nonce-").nth(1).and_then(|rest| rest.split('\'').next());
            let nonce = nonce.expect("a number").to_owned();
            assert_eq!(nonce.len(), 2 * NONCE_BYTES);
            let whole = format!(
                "Content-Security-Policy: default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
                 base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            );
            assert_eq!(rule, whole);
            for tag in ["<script", "<style"] {
                let own = format!("{tag} nonce=\"{nonce}\">");
                assert_eq!([answer.matches(tag).count(), answer.matches(&own).count()], [1, 1], "{answer}");
            }
            nonce
        };
        assert_ne!(of(&get()), of(&get()));
    }
}
