//! A client that keeps asking a server for many things, so that it comes by all the places where it
//! may hang; and does not mind if it gets no answer.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Between two requests.
const PAUSE: Duration = Duration::from_micros(400);
/// An answer that does not come in this time does not come.
const ANSWER: Duration = Duration::from_millis(50);
/// Requests a connection.
const REQUESTS: usize = 20;
/// Requests between two snapshots of Redis.
const SAVE_EVERY: usize = 150;

/// Requests that make Redis sort, calculate, free in the background.
fn redis_requests() -> Vec<String> {
    let mut hash = "HSET hash".to_owned();
    for n in 0..200 {
        hash += &format!(" field{n} value{n}");
    }
    let all = [
        "SET key 1".to_owned(),
        "GET key".to_owned(),
        "INCRBYFLOAT float 1.5".to_owned(),
        "GEOADD places 13.36 38.11 a 15.08 37.50 b".to_owned(),
        "GEODIST places a b".to_owned(),
        "DEL list".to_owned(),
        "RPUSH list d b c a e".to_owned(),
        "SORT list ALPHA".to_owned(),
        "INFO".to_owned(),
        "INJECT.PASS".to_owned(),
        hash,
        "UNLINK hash".to_owned(),
    ];
    all.into_iter().map(|line| line + "\r\n").collect()
}

fn nginx_requests() -> Vec<String> {
    ["/1k", "/aio/1k"].map(|path| format!("GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n")).into()
}

/// Asks a Redis until asked to stop.
pub fn to_redis(socket: &Path, stop: &AtomicBool) {
    let requests = redis_requests();
    let next =
        |nth: usize| if nth.is_multiple_of(SAVE_EVERY) { "SAVE\r\n" } else { requests[nth % requests.len()].as_str() };
    ask(socket, stop, next);
}

/// Asks an nginx until asked to stop.
pub fn to_nginx(socket: &Path, stop: &AtomicBool) {
    let requests = nginx_requests();
    ask(socket, stop, |nth| &requests[nth % requests.len()]);
}

fn ask<'a>(socket: &Path, stop: &AtomicBool, next: impl Fn(usize) -> &'a str) {
    let mut answer = vec![0; 1 << 16];
    let mut nth = 0;
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut connection) = UnixStream::connect(socket) else {
            std::thread::sleep(ANSWER);
            continue;
        };
        // Without limits a hang of the server would be one of the bench: then rather no request.
        if connection.set_read_timeout(Some(ANSWER)).is_err() || connection.set_write_timeout(Some(ANSWER)).is_err() {
            return;
        }
        for _ in 0..REQUESTS {
            nth += 1;
            if connection.write_all(next(nth).as_bytes()).is_err() || stop.load(Ordering::Relaxed) {
                break;
            }
            // However much of the answer has come: the next one is asked for all the same.
            if connection.read(&mut answer).is_err() {
                break;
            }
            std::thread::sleep(PAUSE);
        }
    }
}
