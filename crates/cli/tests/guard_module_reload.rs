//! A detector that is killed or no longer answers is loaded again, the guard says so, and a hang
//! after that is found.

mod guard_common;
use guard_common::{Dir, Guard, build, signal, skipped};
use serde_json::Value;

/// The next event about the detector, which must be this one.
fn module(guard: &mut Guard, state: &str) -> Value {
    let event = guard.next("module");
    assert_eq!((&event["module"], &event["state"]), (&"ahd".into(), &state.into()), "{event}");
    event
}

/// Has the detector fail once, then the program hang.
fn fails(name: &str, options: &[&str], fault: i32, said: &str) {
    if skipped() {
        return;
    }
    let dir = Dir::new(name);
    let program = build(&dir, "later.c");
    let now = dir.0.join("now");
    let config = dir.file("guard.toml", "deadline_ms = 1000\n");
    let mut all = vec!["--config", config.to_str().expect("a path")];
    all.extend(options);
    let arguments = [program.to_str().expect("a path"), now.to_str().expect("a path"), "self"];
    let mut guard = Guard::start(&dir, &all, &arguments);
    let loaded = module(&mut guard, "loaded");
    let pid = guard.program();
    let first = loaded["pid"].as_i64().expect("a pid") as i32;
    assert!(first > 0 && first != pid && first != guard.id(), "{loaded}");
    signal(first, fault);
    let failed = module(&mut guard, "failed");
    assert!(failed["text"].as_str().is_some_and(|text| text.contains(said)), "{failed}");
    // On a slow machine the next life may fail to begin in time too.
    let again = loop {
        let event = guard.next("module");
        if event["state"] == "reloaded" {
            break event;
        }
    };
    assert!(again["pid"].as_i64().is_some_and(|pid| pid > 0 && pid as i32 != first), "{again}");
    dir.file("now", "");
    let hang = guard.next("hang");
    assert_eq!((&hang["kind"], &hang["pid"]), (&"blocked".into(), &pid.into()), "{hang:#}");
    let joined = guard.events().iter().filter(|event| event["event"] == "joined").count();
    assert_eq!(joined, 1, "a program joins once");
}

#[test]
fn a_detector_that_is_killed() {
    fails("killed-detector", &[], libc::SIGKILL, "");
}

#[test]
fn a_detector_that_no_longer_answers() {
    // Stopped, it is to the core as if it looped.
    fails("stopped-detector", &[], libc::SIGSTOP, "not done at its deadline");
}

#[test]
fn in_the_guard_itself() {
    if skipped() {
        return;
    }
    let dir = Dir::new("in-process");
    let program = build(&dir, "later.c");
    let now = dir.file("now", "");
    let arguments = [program.to_str().expect("a path"), now.to_str().expect("a path"), "self"];
    let mut guard = Guard::start(&dir, &["--in-process"], &arguments);
    module(&mut guard, "in-process");
    assert_eq!(guard.next("hang")["kind"], "blocked");
}
