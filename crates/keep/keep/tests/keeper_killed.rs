//! The keeper is killed with -9: the program continues unkept, and dies of its own crash later.

mod common;

use common::{Redis, lacks, lacks_tracking, until};
use std::fs;

fn is_gone(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

#[test]
fn the_program_continues_unkept() {
    if lacks("redis-server") || lacks_tracking() {
        return;
    }
    // Checkpoints so often that one is likely under way.
    let mut redis = Redis::start("killed", &["--every", "2ms"]);
    let mut client = redis.client();
    for n in 1..=50 {
        client.increment("count", n);
    }
    redis.keeper.kill().expect("killed");
    redis.keeper.wait().expect("reaped");
    for n in 51..=500 {
        client.increment("count", n);
    }
    redis.crash();
    until("it dies of its own crash", || is_gone(redis.pid).then_some(()));
}
