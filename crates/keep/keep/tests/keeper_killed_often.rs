//! The keeper is killed with -9 at random moments of checkpoints and rollbacks, 300 times (a short
//! form: 12): the program continues, or dies of its own crash where it had one. Nothing is left
//! stopped.

mod common;

use common::{KEEP, Redis, Scratch, events, lacks, lacks_tracking, until};
use orbit_testing::Random;
use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

/// The letter of its state, `None` if it is gone.
fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Without a log: with threads, mappings that come and go, and a file that is put back.
#[test]
fn of_a_program_without_a_log() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let rounds = if std::env::var_os("ORBIT_TEST_FULL").is_some() { 300 } else { 10 };
    let mut random = Random::from_environment_or(u64::from(std::process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/worker.c");
    let (mut continued, mut died) = (0, 0);
    let built = Scratch::new("killed-often-worker");
    let program = built.join("worker");
    assert!(Command::new("cc").args(["-O1", "-pthread", source, "-o"]).arg(&program).status().expect("cc").success());
    for round in 0..rounds {
        let scratch = Scratch::new("killed-often-folder");
        let log = scratch.join("events");
        let mut command = Command::new(KEEP);
        command
            .args(common::BEST_EFFORT)
            .args(["--quiet", "--every", "3ms", "--events"])
            .arg(&log)
            .arg("--")
            .arg(&program)
            .arg(&scratch.0);
        let mut keeper = command.spawn().expect("orbit-keep");
        let kept = until("it is kept", || events(&log).into_iter().find(|e| e["event"] == "kept"));
        let pid = kept["pid"].as_i64().expect("a number") as i32;
        let has_crash = round % 2 == 1;
        if has_crash {
            fs::write(scratch.join("crash1"), "").expect("written");
        }
        sleep(Duration::from_micros(random.below(9000)));
        keeper.kill().expect("killed");
        keeper.wait().expect("reaped");
        let lines = || fs::read_to_string(scratch.join("lines")).unwrap_or_default().lines().count();
        let before = lines();
        // It continues, or it is gone, which only one with a crash may be.
        let continues = until("it continues or is gone", || match state(pid) {
            None | Some('Z' | 'X') => Some(false),
            _ => (lines() > before + 3).then_some(true),
        });
        assert!(continues || has_crash, "round {round}: it had no crash");
        if continues {
            continued += 1;
            fs::write(scratch.join("stop"), "").expect("written");
            until("it comes to its end", || matches!(state(pid), None | Some('Z' | 'X')).then_some(()));
            let text = fs::read_to_string(scratch.join("lines")).expect("lines");
            for (i, line) in text.lines().enumerate() {
                assert_eq!(line, i.to_string(), "round {round}: each line is there once");
            }
        } else {
            died += 1;
        }
    }
    println!("{continued} continued, {died} died of their own crash");
    assert!(continued >= rounds / 2);
}

#[test]
fn at_any_moment() {
    if lacks("redis-server") || lacks_tracking() {
        return;
    }
    let rounds = if std::env::var_os("ORBIT_TEST_FULL").is_some() { 300 } else { 12 };
    let mut random = Random::from_environment_or(u64::from(std::process::id()));
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
        sleep(Duration::from_micros(random.below(6000)));
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
