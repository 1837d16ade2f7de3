//! Probes learn what an execution of a section by name usually uses, by exit; what they cost stays
//! below its bound and is reported; nothing healthy is reported to hang.

use crate::common::{Dir, Program, Watcher, have};
use orbit_ahd::{Event, Kind, SectionUse};
use orbit_modules::hangs::Settings;
use orbit_named::Named;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// One after the other: each needs a CPU for its program and one for the watcher.
static ONE: Mutex<()> = Mutex::new(());

fn start(name: &str, function: &str, way: [&str; 2]) -> Option<(Dir, Program, Watcher)> {
    if !have("cc", "--version") {
        return None;
    }
    let dir = Dir::new(name);
    let out = dir.0.join("named");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/live/c/named.c");
    let built = Command::new("cc").args(["-O2", "-g", "-pthread", "-o"]).arg(&out).arg(source).status();
    assert!(built.expect("cc").success());
    let program = Program::start(Command::new(out).args(way));
    let section = Named { name: function.into(), function: function.parse().expect("a function") };
    let watcher = Watcher::of(program.pid(), Settings { sections: vec![section], ..Settings::default() });
    Some((dir, program, watcher))
}

/// Whether there are no uprobes; says so.
fn lacking(watcher: &Watcher) -> bool {
    let lacks = watcher.events.iter().find_map(|e| match e {
        Event::Trouble { text, .. } if text.contains("found by stacks and breakpoints") => Some(text),
        _ => None,
    });
    if let Some(text) = lacks {
        println!("SKIP: needs uprobes ({text})");
    }
    lacks.is_some()
}

fn used(events: &[Event]) -> Option<&SectionUse> {
    events.iter().find_map(|e| match e {
        Event::Sections { list, .. } => list.first(),
        _ => None,
    })
}

#[test]
fn a_hot_function_costs_no_more_than_its_bound() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut shares = Vec::new();
    // In advance and by a thread that is delayed while it probes it may overdraw, to be paid back
    // later: which the end of the program may forestall, if that was late.
    while shares.len() < 3 && !shares.iter().any(|&share| share <= 0.03) {
        let Some((_dir, mut program, mut watcher)) = start("named-hot", "hot", ["hot", "100"]) else { return };
        while program.0.try_wait().expect("wait").is_none() {
            watcher.scan();
        }
        watcher.until("the end", |all| all.iter().any(|e| matches!(e, Event::Left { .. })));
        if lacking(&watcher) {
            return;
        }
        watcher.quiet();
        let used = used(&watcher.events).expect("a word on what it cost");
        assert_eq!(used.function, "hot");
        assert!(used.hits > 100 && used.windows >= 1 && used.ns_per_hit > 10.0 && used.share > 0.0, "{used:?}");
        shares.push(used.share);
    }
    assert!(shares.iter().any(|&share| share <= 0.03), "{shares:?}");
}

#[test]
fn slow_requests_have_an_exit_and_so_a_history_of_their_own() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((_dir, _program, mut watcher)) = start("named-slow", "request", ["slow", "120"]) else { return };
    let start = Instant::now();
    let hang = watcher.hang();
    let (kind, section, usual) = (hang.kind, hang.section.clone(), hang.usual);
    let text = format!("{hang:#?}");
    if lacking(&watcher) {
        return;
    }
    // The last request hangs; none of the slow ones before it was reported, which take 305 ms where
    // most take 5.
    assert_eq!((kind, section.as_deref()), (Kind::Busy, Some("request")), "{text}");
    assert!(start.elapsed().as_millis() > 11_000, "a slow request was reported: {text}");
    // Not the 5 ms of most; what it is exactly depends on how steadily the machine ran.
    assert!(usual.is_some_and(|u| (150_000_000..2_000_000_000).contains(&u)), "{text}");
}

#[test]
fn healthy_requests_are_not_reported() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((_dir, mut program, mut watcher)) = start("named-healthy", "request", ["fast", "60"]) else { return };
    while program.0.try_wait().expect("wait").is_none() {
        watcher.scan();
    }
    watcher.quiet();
}
