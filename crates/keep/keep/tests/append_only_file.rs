//! Redis with an append-only file that another thread writes to the disk each second (`everysec`,
//! Redis' default) survives crashes with `--log`: no increment that was answered is lost, neither
//! in memory nor in the file that a plain Redis starts from afterwards.

mod common;

use common::{Client, Redis, count, lacks, lacks_tracking, until};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

const CLIENTS: usize = 4;

/// Increments a key of its own until it is stopped; returns what was answered last.
fn client(redis: &Redis, nth: usize, good: &AtomicU64, stop: &AtomicBool) -> u64 {
    let (mut client, mut at, key) = (redis.client(), 0, format!("key{nth}"));
    while !stop.load(SeqCst) {
        at += 1;
        client.increment(&key, at);
        good.fetch_add(1, SeqCst);
    }
    at
}

/// Crashes a kept Redis while clients check each answer; returns what was answered last to each.
fn crash_often(redis: &Redis, crashes: usize, between: impl Fn(usize) + Sync) -> Vec<u64> {
    let (good, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let (good, stop) = (&good, &stop);
        let clients: Vec<_> = (0..CLIENTS).map(|nth| scope.spawn(move || client(redis, nth, good, stop))).collect();
        let driven = scope.spawn(|| {
            for nth in 0..crashes {
                let at = good.load(SeqCst);
                until("answers come", || (good.load(SeqCst) > at + 200).then_some(()));
                between(nth);
                // Crashes at any time of the second in which the file is written to the disk.
                thread::sleep(Duration::from_millis(137 * (nth as u64 % 5)));
                redis.crash();
            }
            let at = good.load(SeqCst);
            until("answers come", || (good.load(SeqCst) > at + 200).then_some(()));
        });
        let driven = driven.join();
        stop.store(true, SeqCst);
        driven.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        clients.into_iter().map(|client| client.join().expect("no wrong answer")).collect()
    })
}

struct Plain(Child);

impl Drop for Plain {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn no_answered_increment_is_lost() {
    if lacks("redis-server") || lacks_tracking() {
        return;
    }
    let crashes = if std::env::var_os("ORBIT_TEST_FULL").is_some() { 300 } else { 12 };
    let more = ["--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0"];
    let mut redis = Redis::start_with("append-only", &["--every", "200ms"], &more);
    // A file that is written anew: another thread closes the old one.
    let rewrite = |nth: usize| {
        if nth % 4 == 1 {
            redis.client().call(&["BGREWRITEAOF"]).expect("answered");
        }
    };
    let answered = crash_often(&redis, crashes, rewrite);
    let file = redis.events_file();
    println!(
        "{} answers, {} crashes, {} diverged, {} left the order",
        answered.iter().sum::<u64>(),
        count(&file, "crash"),
        count(&file, "diverged"),
        count(&file, "differed")
    );
    assert_eq!(count(&file, "diverged"), 0, "each replay kept to the log's order");
    assert_eq!(count(&file, "gave-up"), 0);
    // SAFETY: a child of our own keeper, which has not been waited for.
    unsafe { libc::kill(redis.pid, libc::SIGTERM) };
    assert_eq!(until("it exits", || redis.keeper.try_wait().expect("a child")).code(), Some(0), "its own status");

    let plain = Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--appendonly", "yes", "--dir"])
        .arg(&redis.scratch.0)
        .arg("--unixsocket")
        .arg(redis.scratch.join("plain"))
        .stdout(Stdio::null())
        .spawn();
    let _plain = Plain(plain.expect("redis-server"));
    let connected = || UnixStream::connect(redis.scratch.join("plain")).ok();
    let mut client = Client::of(until("a plain Redis listens", connected));
    until("it has read the file", || client.call(&["PING"]).ok().filter(|answer| answer == "+PONG"));
    for (nth, answered) in answered.into_iter().enumerate() {
        let kept = client.call(&["GET", &format!("key{nth}")]).expect("answered");
        assert_eq!(kept.trim(), answered.to_string(), "key{nth} in the file");
    }
}
