//! `--on-hang` acts on certain reports, and on likely ones or guesses only where that was asked
//! for.

use crate::guard_common;
use guard_common::{Dir, build, skipped};
use serde_json::Value;
use std::process::{Command, Output, Stdio};

/// Runs a program under the guard to its end.
fn watched(dir: &Dir, on_hang: &str, program: &[&str]) -> (Output, Vec<Value>) {
    let events = dir.0.join(format!("events-{}", on_hang.replace([':', ' '], "-")));
    let output = Command::new(env!("CARGO_BIN_EXE_orbit"))
        .args(["watch", "--on-hang", on_hang, "--events"])
        .arg(&events)
        .arg("--")
        .args(program)
        .stdin(Stdio::null())
        .output()
        .expect("the guard");
    let text = std::fs::read_to_string(events).expect("events");
    let read = |line| serde_json::from_str(line).expect("JSON");
    (output, text.lines().map(|line| orbit_testing::described("watch-events", read(line))).collect())
}

fn sent(events: &[Value]) -> bool {
    events.iter().any(|e| e["event"] == "action" && e["did"].as_str().is_some_and(|did| did.starts_with("sent signal")))
}

#[test]
fn a_batch_job_is_left_alone() {
    if skipped() {
        return;
    }
    let dir = Dir::new("certain-batch");
    let program = build(&dir, "poll_then_compute.c");
    let (output, events) = watched(&dir, "kill", &[program.to_str().expect("a path")]);
    assert!(output.status.success() && !sent(&events), "{output:?} {events:#?}");
    // What was reported was not certain, and it is said why nothing was done.
    let hangs: Vec<&Value> = events.iter().filter(|e| e["event"] == "hang").collect();
    assert!(hangs.iter().all(|hang| hang["sure"] != "certain"), "{hangs:#?}");
    let spared = events.iter().filter(|e| e["did"].as_str().is_some_and(|did| did.starts_with("did nothing"))).count();
    assert_eq!(spared, usize::from(!hangs.is_empty()), "{events:#?}");
}

#[test]
fn a_deadlock_is_killed() {
    if skipped() {
        return;
    }
    let dir = Dir::new("certain-ring");
    let program = build(&dir, "hangs.c");
    let (output, events) = watched(&dir, "kill", &[program.to_str().expect("a path"), "ring2"]);
    assert!(!output.status.success() && sent(&events), "{output:?} {events:#?}");
}
