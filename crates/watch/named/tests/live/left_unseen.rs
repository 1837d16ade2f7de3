//! A section by name that is left by a way which no probe sees is not reported to hang, whatever is
//! called from where afterwards; what it really hangs in is reported without delay.

use crate::common::{Dir, Program, Watcher, have};
use orbit_ahd::{Config, Event, Kind};
use orbit_modules::hangs::Settings;
use orbit_named::Named;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// One after the other: each needs a CPU for its program and one for the watcher.
static ONE: Mutex<()> = Mutex::new(());
const LIMIT: Duration = Duration::from_secs(1);

fn start(name: &str, way: [&str; 2]) -> Option<(Dir, Program, Watcher)> {
    if !have("c++", "--version") {
        return None;
    }
    let dir = Dir::new(name);
    let out = dir.0.join("unseen");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/live/c/unseen.cpp");
    let built = Command::new("c++").args(["-O2", "-g", "-o"]).arg(&out).arg(source).status();
    assert!(built.expect("c++").success());
    let program = Program::start(Command::new(out).args(way));
    let section = Named { name: "work".into(), function: "work".parse().expect("a function") };
    let watcher = Watcher::of(
        program.pid(),
        Settings {
            config: Config { limit: LIMIT, ..Config::default() },
            sections: vec![section],
            ..Settings::default()
        },
    );
    Some((dir, program, watcher))
}

/// Whether there are no uprobes; says so.
fn lacking(watcher: &Watcher) -> bool {
    let lacks = watcher.events.iter().any(|e| match e {
        Event::Trouble { text, .. } => text.contains("found by stacks and breakpoints"),
        _ => false,
    });
    if lacks {
        println!("SKIP: needs uprobes");
    }
    lacks
}

fn healthy(name: &str, way: &str) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((_dir, mut program, mut watcher)) = start(name, [way, "60"]) else { return };
    while program.0.try_wait().expect("wait").is_none() {
        watcher.scan();
    }
    watcher.quiet();
}

#[test]
fn by_longjmp() {
    healthy("unseen-longjmp", "longjmp");
}

#[test]
fn by_an_exception() {
    healthy("unseen-exception", "throw");
}

#[test]
fn by_a_jump_through_a_table() {
    healthy("unseen-virtual", "virtual");
}

#[test]
fn what_is_used_outside_is_not_learnt() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((_dir, _program, mut watcher)) = start("unseen-outside", ["outside", "20"]) else { return };
    let hang = watcher.hang();
    assert_eq!((hang.kind, hang.section.as_deref()), (Kind::Busy, Some("work")), "{hang:#?}");
    // Less than that where fifty executions were seen.
    assert!(u128::from(hang.check_value) <= LIMIT.as_nanos(), "an execution takes 2 ms: {hang:#?}");
}

#[test]
fn one_that_calls_itself_without_end_is_reported() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((_dir, _program, mut watcher)) = start("unseen-itself", ["itself", "0"]) else { return };
    watcher.scan();
    watcher.until("a hang, or a word that there are no uprobes", |all| {
        all.iter().any(|e| matches!(e, Event::Hang(_) | Event::Trouble { .. }))
    });
    if lacking(&watcher) {
        return;
    }
    let hang = watcher.hang();
    assert_eq!((hang.kind, hang.section.as_deref()), (Kind::Busy, Some("work")), "{hang:#?}");
}
