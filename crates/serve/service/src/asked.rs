//! Questions to services: each has a thread while it waits, so that a slow service keeps nobody
//! else's command waiting.

use crate::host::reply;
use crate::protocol::{Ask, Reply};
use orbit_services::{Error, Kind, Pending, Question, Result};
use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The longest wait of a question.
const LIMIT: Duration = Duration::from_secs(60);

/// What the host asks a service.
pub fn question(ask: &Ask) -> Question {
    let (call, arguments, path) = (ask.call, ask.arguments, ask.path.clone());
    Question { call, arguments, pid: ask.pid, tid: ask.tid, site: ask.site, path }
}

/// Waits for the answer in a thread of its own, and passes it on.
///
/// # Errors
/// `System` when no thread can be made.
pub fn pass_on(pending: Pending, ask: &Ask, stream: UnixStream) -> Result<()> {
    let limit = Duration::from_nanos(ask.limit_ns).min(LIMIT);
    let service = ask.service.clone();
    let wait = move || {
        let late = || Error::new(Kind::NotFound, format!("service {service} gave no answer within {limit:?}"));
        let answer = match pending.wait(limit) {
            Some(answer) => Reply::Answer { verdict: answer.verdict, result: answer.result },
            None => Reply::Failed(late().to_string()),
        };
        drop(pending);
        // The caller may have given up.
        let _ = reply(&stream, &answer);
    };
    let started = std::thread::Builder::new().name("orbit-asked".into()).spawn(wait);
    started.map(drop).map_err(|error: io::Error| Error::system("a thread for a question", &error))
}
