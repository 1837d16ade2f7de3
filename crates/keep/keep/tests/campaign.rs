//! A thousand crashes (a short form: twenty) each of Redis, nginx and Apache's children (in request
//! mode) under checking clients: half by a request that kills, half by zeroed data; and as many by
//! a signal from outside.
//!
//! No other client sees an error of poison or of a signal, and the process exits with its own
//! status; of zeroed data each error is one that the keeper has reported. No `INCR` is lost or
//! doubled. The process stays the same.

mod common;

use common::apache::{self, Apache};
use common::campaign::{Client, Kind, Outcome, Server, run};
use common::nginx::{Nginx, module};
use common::{Redis, lacks, lacks_tracking, until};
use orbit_testing::Random;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

fn crashes() -> usize {
    if let Some(given) = std::env::var("ORBIT_TEST_CRASHES").ok().and_then(|text| text.parse().ok()) {
        return given;
    }
    if std::env::var_os("ORBIT_TEST_FULL").is_some() { 500 } else { 10 }
}

fn check(kind: Kind, outcome: &Outcome) {
    println!("{kind:?}: {}", outcome.text());
    let errors = outcome.errors.len() as u64;
    match kind {
        Kind::Poison | Kind::Killed => assert_eq!(errors, 0, "other clients see nothing: {}", outcome.text()),
        Kind::Zeroed => assert!(errors <= outcome.reported, "each error is one that was reported: {}", outcome.text()),
    }
}

fn crash_nginx(kind: Kind) {
    let Some(module) = module().filter(|_| !lacks_tracking()) else { return };
    let nginx = Nginx::start(&format!("campaign-nginx-{kind:?}"), &module, &["--every", "500ms"]);
    let outcome = run(&nginx, kind, crashes(), 3, Random::from_environment());
    check(kind, &outcome);
    // A ruined worker may write alerts to its log before it crashes, which no replay of a healthy
    // one gives out; or it is ruined for longer than every checkpoint. Then it is given up, which
    // is reported, and its master makes another one. How often is for chance to decide: it has a
    // bound only where there are many.
    let given_up = if kind == Kind::Zeroed { common::count(nginx.events(), "gave-up") } else { 0 };
    println!("{given_up} workers were given up");
    let is_many = outcome.crashes >= 100;
    assert!(!is_many || given_up <= outcome.crashes / 4, "{given_up} workers were given up: {}", outcome.text());
    assert!(given_up > 0 || nginx.has_kept_its_worker(), "the same worker: {}", outcome.text());
    if kind != Kind::Zeroed {
        assert_eq!(nginx.stop(), Some(0), "its own status");
    }
}

#[test]
fn nginx_by_poison() {
    crash_nginx(Kind::Poison);
}

#[test]
fn nginx_by_zeroed_data() {
    crash_nginx(Kind::Zeroed);
}

#[test]
fn nginx_by_signals() {
    crash_nginx(Kind::Killed);
}

/// `requests`, `more`: see [`Apache::start`].
fn crash_apache(kind: Kind, requests: &str, more: &str) {
    let Some(module) = apache::module().filter(|_| !lacks_tracking()) else { return };
    let apache = Apache::start(&format!("campaign-apache-{kind:?}-{}", more.len()), &module, requests, more);
    let outcome = run(&apache, kind, crashes(), 2, Random::from_environment());
    check(kind, &outcome);
    assert!(apache.has_kept_its_children(), "the same children: {}", outcome.text());
    assert_eq!(apache.stop(), Some(0), "its own status");
}

#[test]
fn apache_by_poison() {
    crash_apache(Kind::Poison, "--requests", "");
}

#[test]
fn apache_by_zeroed_data() {
    crash_apache(Kind::Zeroed, "--requests", "");
}

#[test]
fn apache_by_signals() {
    crash_apache(Kind::Killed, "--requests", "");
}

/// With two listeners its children hold a mutex from before they wait until they have accepted; a
/// crash neither keeps nor releases it twice.
#[test]
fn apache_with_an_accept_mutex() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
    for (kind, mutex) in [(Kind::Killed, "pthread"), (Kind::Killed, "sysvsem"), (Kind::Poison, "fcntl:/tmp")] {
        let more = format!("Listen 127.0.0.1:{port}\nMutex {mutex} default");
        crash_apache(kind, "--requests=epoll", &more);
    }
}

/// Increments a key of its own; what it must answer next is known beyond its connection.
struct Counter<'r> {
    client: common::Client,
    redis: &'r KeptRedis,
    nth: usize,
}

struct KeptRedis {
    redis: Redis,
    events: std::path::PathBuf,
    /// What each client's key holds; after a lost connection it may be one more.
    counts: Mutex<Vec<(u64, bool)>>,
    wrong: AtomicU64,
}

impl Client for Counter<'_> {
    fn ask(&mut self) -> Result<(), String> {
        let (held, is_unsure) = self.redis.counts.lock().expect("no panic")[self.nth];
        let answer = self.client.call(&["INCR", &format!("key{}", self.nth)]);
        let answer = answer.map_err(|e| {
            self.redis.counts.lock().expect("no panic")[self.nth].1 = true;
            format!("after {held}: {e}")
        })?;
        let value = answer.strip_prefix(':').and_then(|n| n.parse().ok());
        let is_right = value == Some(held + 1) || is_unsure && value == Some(held + 2);
        self.redis.counts.lock().expect("no panic")[self.nth] = (value.unwrap_or(held), !is_right && value.is_none());
        if !is_right {
            self.redis.wrong.fetch_add(1, SeqCst);
            return Err(format!("INCR after {held} answers {answer}"));
        }
        Ok(())
    }
}

impl Server for KeptRedis {
    fn pid(&self) -> i32 {
        self.redis.pid
    }

    fn connect(&self, nth: usize) -> Option<Box<dyn Client + '_>> {
        Some(Box::new(Counter { client: self.redis.try_client()?, redis: self, nth }))
    }

    fn poison(&self) -> Box<dyn std::any::Any> {
        let mut client = self.redis.client();
        client.send(&["DEBUG", "SEGFAULT"]).expect("sent");
        Box::new(client)
    }

    fn events(&self) -> &Path {
        &self.events
    }

    fn has_ended(&self) -> bool {
        common::count(&self.events, "exited") > 0
    }
}

fn crash_redis(kind: Kind) {
    if lacks("redis-server") || lacks_tracking() {
        return;
    }
    // What is ruined may do something else before it crashes, which no replay of a healthy one
    // does: then it is given up. That chance decides so each time is as good as impossible.
    let attempts = if kind == Kind::Zeroed { 3 } else { 1 };
    assert!((0..attempts).any(|_| is_kept_to_the_end(kind)), "given up in each of {attempts} runs");
}

/// Whether it was never given up.
fn is_kept_to_the_end(kind: Kind) -> bool {
    const CLIENTS: usize = 3;
    let redis = Redis::start(&format!("campaign-redis-{kind:?}"), &["--every", "500ms"]);
    let events = redis.events_file();
    let counts = Mutex::new(vec![(0, false); CLIENTS]);
    let mut kept = KeptRedis { redis, events, counts, wrong: AtomicU64::new(0) };
    let mut outcome = run(&kept, kind, crashes(), CLIENTS, Random::from_environment());
    let has_ended = kept.has_ended();
    if has_ended {
        assert!(kind == Kind::Zeroed && common::count(&kept.events, "gave-up") == 1, "{}", outcome.text());
        // Each client loses its connection.
        outcome.reported += CLIENTS as u64;
    }
    check(kind, &outcome);
    assert_eq!(kept.wrong.load(SeqCst), 0, "no INCR is lost or doubled: {}", outcome.text());
    if has_ended {
        return false;
    }
    assert!(Path::new(&format!("/proc/{}", kept.redis.pid)).exists(), "the same process");
    if kind != Kind::Zeroed {
        let _ = kept.redis.client().call(&["SHUTDOWN", "NOSAVE"]);
        let status = until("it exits", || kept.redis.keeper.try_wait().expect("a child"));
        assert_eq!(status.code(), Some(0), "its own status");
    }
    true
}

#[test]
fn redis_by_poison() {
    crash_redis(Kind::Poison);
}

#[test]
fn redis_by_zeroed_data() {
    crash_redis(Kind::Zeroed);
}

#[test]
fn redis_by_signals() {
    crash_redis(Kind::Killed);
}
