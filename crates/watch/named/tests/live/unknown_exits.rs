//! Sections by name whose exits are not known: not reported while they are healthy, reported when
//! they hang, and nothing that is used outside counts as theirs.

use crate::common::{Dir, Program, Watcher};
use orbit_ahd::{Config, Kind};
use orbit_modules::hangs::Settings;
use orbit_named::Named;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// One after the other: each needs a CPU for its program and one for the watcher.
static ONE: Mutex<()> = Mutex::new(());
const LIMIT: Duration = Duration::from_secs(1);

fn start(name: &str, function: &str, way: [&str; 2]) -> Option<(Dir, Program, Watcher)> {
    let dir = Dir::new(name);
    let program = dir.build("unknown", include_str!("c/unknown.c"))?;
    let program = Program::start(Command::new(program).args(way));
    let section = Named { name: function.into(), function: function.parse().expect("a function") };
    let config = Settings {
        config: Config { limit: LIMIT, ..Config::default() },
        sections: vec![section],
        ..Settings::default()
    };
    let watcher = Watcher::of(program.pid(), config);
    Some((dir, program, watcher))
}

#[test]
fn turns_by_way_of_the_first_instruction() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((_dir, mut program, mut watcher)) = start("unknown-turns", "turns", ["turns", "70"]) else { return };
    while program.0.try_wait().expect("wait").is_none() {
        watcher.scan();
    }
    watcher.quiet();
}

#[test]
fn turns_without_end_are_reported() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((_dir, _program, mut watcher)) = start("unknown-endless", "turns", ["endless", "20"]) else { return };
    let h = watcher.hang();
    assert_eq!((h.kind, h.section.as_deref()), (Kind::Busy, Some("turns")), "{h:#?}");
}

#[test]
fn what_is_used_outside_is_not_learnt() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((_dir, _program, mut watcher)) = start("unknown-outside", "constants", ["constants", "60"]) else {
        return;
    };
    let h = watcher.hang();
    assert_eq!((h.kind, h.section.as_deref()), (Kind::Busy, Some("constants")), "{h:#?}");
    assert_eq!(u128::from(h.check_value), LIMIT.as_nanos(), "nothing can be learnt: {h:#?}");
}
