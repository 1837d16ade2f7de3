//! Data of a kept redis-server is zeroed from outside: it crashes, and is put back without anyone
//! noticing.

mod common;

use common::{Redis, events, lacks, lacks_tracking, until};
use orbit_linux::{maps, remote};

/// Zeroes what the last words of the main thread's data point to: the first writable mapping of the
/// program itself.
fn ruin(pid: i32) {
    let of = maps::of(pid).expect("alive");
    let data =
        of.iter().find(|e| e.name.contains("/redis-") && e.protection & libc::PROT_WRITE != 0).expect("its data");
    let zeros = vec![0u8; (data.end - data.start) as usize];
    remote::write(pid, data.start, &zeros).expect("written");
}

#[test]
fn a_transient_crash_loses_nothing() {
    if lacks("redis-server") || lacks_tracking() {
        return;
    }
    let redis = Redis::start("corruption", &["--skip-handlers"]);
    let mut client = redis.client();
    for n in 1..=200 {
        client.increment("count", n);
    }
    ruin(redis.pid);
    for n in 201..=400 {
        client.increment("count", n);
    }
    let found = until("the recovery is reported", || {
        events(&redis.events_file()).into_iter().find(|e| e["event"] == "recovered")
    });
    assert!(found["rung"] == "newest" || found["rung"] == "older", "{found}");
    assert_eq!(client.call(&["GET", "count"]).expect("an answer"), "400");
}
