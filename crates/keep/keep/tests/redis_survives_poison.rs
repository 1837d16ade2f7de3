//! Debian's redis-server is put back in place after requests that kill it: other clients see no
//! error, nothing is lost or done twice.

mod common;

use common::{Redis, count, events, lacks, lacks_tracking, threads, until};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

const CRASHES: usize = 4;

#[test]
fn other_clients_see_nothing() {
    if lacks("redis-server") || lacks_tracking() {
        return;
    }
    let redis = Redis::start("poison", &["--every", "500ms"]);
    let (before, stop) = (threads(redis.pid), AtomicBool::new(false));
    let done = [AtomicU64::new(0), AtomicU64::new(0)];
    thread::scope(|scope| {
        for (i, done) in done.iter().enumerate() {
            let (mut client, key, stop) = (redis.client(), format!("count{i}"), &stop);
            scope.spawn(move || {
                let mut n = 0;
                while !stop.load(SeqCst) {
                    n += 1;
                    client.increment(&key, n);
                    done.store(n, SeqCst);
                }
            });
        }
        let driven = thread::Builder::new()
            .spawn_scoped(scope, || {
                for crash in 1..=CRASHES {
                    let at = done[0].load(SeqCst);
                    until("the client gets on", || (done[0].load(SeqCst) > at + 50).then_some(()));
                    redis.crash();
                    until("its connection was dropped by the last rung", || {
                        let dropped = events(&redis.events_file())
                            .iter()
                            .filter(|e| e["event"] == "recovered" && e["rung"] == "drop")
                            .count();
                        (dropped >= crash).then_some(())
                    });
                }
                thread::sleep(Duration::from_millis(300));
            })
            .expect("a thread")
            .join();
        stop.store(true, SeqCst);
        driven.expect("driven");
    });
    let mut client = redis.client();
    for (i, done) in done.iter().enumerate() {
        let held = client.call(&["GET", &format!("count{i}")]).expect("an answer");
        assert_eq!(held, done.load(SeqCst).to_string(), "no INCR is lost or doubled");
    }
    assert_eq!(threads(redis.pid).len(), before.len(), "the same process, with as many threads");
    let crashes = events(&redis.events_file()).into_iter().find(|e| e["event"] == "crash").expect("a crash");
    assert_eq!((crashes["signal"].as_str(), crashes["thread"].as_str()), (Some("SIGSEGV"), Some("redis-server")));
    assert_eq!(count(&redis.events_file(), "gave-up"), 0);
}
