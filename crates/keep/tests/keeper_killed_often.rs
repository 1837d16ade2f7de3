//! The keeper is killed with -9 at random moments of checkpoints and rollbacks, 300 times (a short form: 12): the program continues, or dies of its
//! own crash where it had one. Nothing is left stopped.

mod common;

use common::{Redis, lacks, lacks_tracking, until};
use std::fs;
use std::thread::sleep;
use std::time::Duration;

/// The letter of its state, `None` if it is gone.
fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[test]
fn at_any_moment() {
    if lacks("redis-server") || lacks_tracking() {
        return;
    }
    let rounds = if std::env::var_os("ORBIT_TEST_FULL").is_some() { 300 } else { 12 };
    let mut seed = u64::from(std::process::id()) | 1 << 40;
    println!("seed {seed}");
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let (mut continued, mut died) = (0, 0);
    for round in 0..rounds {
        let mut redis = Redis::start("killed-often", &["--quiet", "--every", "2ms"]);
        let mut client = redis.client();
        for n in 1..=20 {
            client.increment("count", n);
        }
        let has_crash = round % 2 == 1;
        let mut poison = redis.client();
        if has_crash {
            poison.send(&["DEBUG", "SEGFAULT"]).expect("sent");
        }
        sleep(Duration::from_micros(random(6000)));
        redis.keeper.kill().expect("killed");
        redis.keeper.wait().expect("reaped");
        // Either it answers, or it is gone, which only one with a crash may be.
        let mut answer = None;
        if let Ok(text) = client.call(&["INCR", "count"]) {
            assert_eq!(text, ":21", "round {round}");
            answer = Some(text);
        }
        match answer {
            Some(_) => {
                continued += 1;
                let now = state(redis.pid);
                assert!(now.is_some_and(|letter| !matches!(letter, 't' | 'T')), "round {round}: {now:?}");
            }
            None => {
                assert!(has_crash, "round {round}: it had no crash");
                until("it has died of its crash", || matches!(state(redis.pid), None | Some('Z' | 'X')).then_some(()));
                died += 1;
            }
        }
    }
    println!("{continued} continued, {died} died of their own crash");
    assert!(continued >= rounds / 2);
}
