//! Of many hangs at once a few commands run at a time, in turn, and what is left out is counted; a
//! signal is sent once.

use crate::guard_common::{Dir, Guard, PATIENCE, build, skipped};
use serde_json::Value;
use std::process::Stdio;
use std::time::{Duration, Instant};

const PROCESSES: usize = 150;

fn start(dir: &Dir, on_hang: &str, program: &[&str]) -> Guard {
    Guard::start_saying(dir, &["--on-hang", &format!("guess:{on_hang}")], program, Stdio::null())
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
    let processes = PROCESSES.to_string();
    let guard = start(&dir, &command, &[program.to_str().expect("a path"), &processes]);
    let ran = |events: &[Value]| did(events).iter().filter(|did| **did == "started the command").count();
    let left_out = |events: &[Value]| -> usize {
        let counts = did(events).into_iter().filter_map(|did| did.strip_prefix("did not run the command for "));
        counts.filter_map(|rest| rest.split(' ').next()?.parse::<usize>().ok()).sum()
    };
    let all = |events: &[Value]| ran(events) + left_out(events) >= PROCESSES;
    let events = until(&guard, "all commands", all);
    assert_eq!(ran(&events) + left_out(&events), of(&events, "hang").len());
    assert!(ran(&events) >= 100, "a hundred wait: {}", ran(&events));
    let seen = std::fs::read_to_string(dir.0.join("seen")).expect("a file");
    let most = seen.lines().filter_map(|line| line.trim().parse::<u32>().ok()).max();
    assert!(most <= Some(4), "{most:?} at a time");
}

#[test]
fn how_a_command_failed() {
    if skipped() {
        return;
    }
    let dir = Dir::new("bounds-status");
    let (program, at) = (build(&dir, "many.c"), dir.0.display().to_string());
    let command = format!(
        "exec:for n in 1 2 3; do mkdir {at}/$n && break; done; [ $n != 1 ] || exit 3; [ $n != 2 ] || kill -KILL $$"
    );
    let guard = start(&dir, &command, &[program.to_str().expect("a path"), "3"]);
    let events = until(&guard, "both that fail", |events| {
        did(events).iter().filter(|did| did.starts_with("the command ")).count() == 2
    });
    for how in ["the command ended with status 3", "the command was ended by signal 9"] {
        let reported = events.iter().filter(|e| e["did"] == how);
        assert_eq!(
            reported.map(|e| of(&events, "hang").iter().any(|h| h["pid"] == e["pid"])).collect::<Vec<_>>(),
            [true],
            "{how}"
        );
    }
    let all = until(&guard, "all commands", |events| {
        did(events).iter().filter(|did| **did == "started the command").count() == 3
    });
    assert_eq!(did(&all).len(), 5, "of one that ended well nothing is reported: {:?}", did(&all));
}

#[test]
fn signals() {
    if skipped() {
        return;
    }
    let dir = Dir::new("bounds-signal");
    let program = build(&dir, "many.c");
    // Each thread two seconds after the one before: within one second they are one report.
    let guard = start(&dir, "signal:USR1", &[program.to_str().expect("a path"), "4", "2"]);
    let events = until(&guard, "several hangs", |events| of(events, "hang").len() >= 3);
    assert_eq!(did(&events).iter().filter(|did| did.starts_with("sent signal 10")).count(), 1);
}
