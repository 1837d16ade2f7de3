//! Of many hangs at once a few commands run at a time, in turn, and what is left out is counted; a signal is sent once.

mod guard_common;
use guard_common::{Dir, Guard, PATIENCE, build, skipped};
use serde_json::Value;
use std::process::Stdio;
use std::time::{Duration, Instant};

const THREADS: usize = 150;

fn start(dir: &Dir, on_hang: &str, program: &[&str]) -> Guard {
    Guard::start_saying(dir, &["--on-hang", on_hang], program, Stdio::null())
}

fn of<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|e| e["event"] == name).collect()
}

/// What the guard did, in words.
fn did(events: &[Value]) -> Vec<&str> {
    of(events, "action").iter().filter_map(|e| e["did"].as_str()).collect()
}

/// All events, once this holds of them.
fn until(guard: &Guard, what: &str, holds: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let start = Instant::now();
    loop {
        let events = guard.events();
        if holds(&events) {
            return events;
        }
        assert!(start.elapsed() < PATIENCE, "waited for {what}: {:?}", did(&events));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn commands() {
    if skipped() {
        return;
    }
    let dir = Dir::new("bounds-exec");
    let (program, at) = (build(&dir, "many.c"), dir.0.display().to_string());
    let command = format!("exec:f=$(mktemp {at}/r.XXXXXX); ls {at}/r.* | wc -l >>{at}/seen; sleep 0.05; rm $f");
    let threads = THREADS.to_string();
    let guard = start(&dir, &command, &[program.to_str().expect("a path"), &threads]);
    let ran = |events: &[Value]| did(events).iter().filter(|did| **did == "ran the command").count();
    let left_out = |events: &[Value]| -> usize {
        let counts = did(events).into_iter().filter_map(|did| did.strip_prefix("did not run the command for "));
        counts.filter_map(|rest| rest.split(' ').next()?.parse::<usize>().ok()).sum()
    };
    let all = |events: &[Value]| ran(events) + left_out(events) >= THREADS;
    let events = until(&guard, "all commands", all);
    assert_eq!(ran(&events) + left_out(&events), of(&events, "hang").len());
    assert!(ran(&events) >= 100, "a hundred wait: {}", ran(&events));
    let seen = std::fs::read_to_string(dir.0.join("seen")).expect("a file");
    let most = seen.lines().filter_map(|line| line.trim().parse::<u32>().ok()).max();
    assert!(most <= Some(4), "{most:?} at a time");
}

#[test]
fn signals() {
    if skipped() {
        return;
    }
    let dir = Dir::new("bounds-signal");
    let (program, threads) = (build(&dir, "many.c"), THREADS.to_string());
    let guard = start(&dir, "signal:USR1", &[program.to_str().expect("a path"), &threads]);
    let events = until(&guard, "all hangs", |events| of(events, "hang").len() >= THREADS);
    assert_eq!(did(&events).iter().filter(|did| did.starts_with("sent signal 10")).count(), 1);
}
