//! Processes that wait for each other over pipes, sockets and the exits of children are reported as
//! one cycle; those that somebody else may wake, or time, are not.

use crate::common::{Dir, Program, Watcher, at_once};
use orbit_ahd::{Config, Hang, Kind};
use orbit_inspect::Sure;
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

/// Long before this a hang is reported, and nothing is reported for having waited so long.
const LIMIT: Duration = Duration::from_secs(600);
/// Nothing is reported for so long, several times what a hang takes.
const QUIET: Duration = Duration::from_secs(6);

/// Starts `rings WAY [PATH]`, with a path in a directory of this test's.
fn start(way: &str, config: Config) -> Option<(Dir, Program, Watcher)> {
    let dir = Dir::new(&format!("rings-{way}"));
    let rings = dir.build("rings", include_str!("c/rings.c"))?;
    let program = Program::start(Command::new(rings).arg(way).arg(dir.0.join("fifo")));
    let watcher = Watcher::of(program.pid(), config);
    Some((dir, program, watcher))
}

/// A hang of so many threads in so many processes, whose stacks have this function, is reported
/// once.
fn is_reported(way: &str, (threads, processes): (usize, usize), functions: &[&str]) -> Option<Sure> {
    let (_dir, program, mut watcher) = start(way, Config { limit: LIMIT, ..Config::default() })?;
    watcher.hang();
    watcher.run(Duration::from_secs(3));
    let [hang] = watcher.hangs()[..] else { panic!("one hang, reported once: {:#?}", watcher.hangs()) };
    let Hang { kind, cycle, why, .. } = hang;
    let of: BTreeSet<i32> = cycle.iter().map(|e| e.pid).collect();
    assert_eq!((*kind, cycle.len(), of.len()), (Kind::Blocked, threads, processes), "{hang:#?}");
    assert!(why.contains("only these could wake each other"), "{why}");
    // Each waits for the next one, and the last for the first.
    assert!(cycle.iter().zip(cycle.iter().cycle().skip(1)).all(|(e, next)| e.held_by == next.tid), "{cycle:#?}");
    assert!(hang.threads.iter().any(|t| t.pid == program.pid()), "{hang:#?}");
    let seen: Vec<&str> = hang.threads.iter().flat_map(|t| &t.stack).filter_map(|f| f.function.as_deref()).collect();
    assert!(functions.iter().all(|f| seen.contains(f)), "{hang:#?}");
    assert!(hang.sure >= Sure::Likely || why.contains("cannot be seen"), "{hang:#?}");
    Some(hang.sure)
}

/// Nothing is reported.
fn quiet(way: &str) {
    let Some((_dir, _program, mut watcher)) = start(way, Config { limit: LIMIT, ..Config::default() }) else { return };
    watcher.run(QUIET);
    watcher.quiet();
}

#[test]
fn two_that_read_what_the_other_writes() {
    is_reported("read", (2, 2), &["reads_here"]);
}

#[test]
fn two_that_fill_each_others_pipe() {
    is_reported("write", (2, 2), &["writes_here"]);
}

#[test]
fn two_ends_of_a_socket() {
    at_once([("socket-read", "reads_here"), ("socket-write", "writes_here")], |(way, function)| {
        // Where no descriptor is available of another process (Docker's profile) a time limit of
        // the socket cannot be ruled out.
        is_reported(way, (2, 2), &[function]);
    });
}

#[test]
fn a_parent_that_waits_for_the_child_whose_output_it_does_not_read() {
    is_reported("child", (2, 2), &["waits_here", "writes_here"]);
}

#[test]
fn a_child_whose_thread_cannot_hand_over_what_it_has() {
    // The thread that waits for the writer is not of the cycle, but of the hang.
    is_reported("thread", (2, 2), &["waits_here", "writes_here"]);
}

#[test]
fn three_in_a_ring_and_one_that_waits_for_them() {
    let Some((_dir, program, mut watcher)) = start("three", Config { limit: LIMIT, ..Config::default() }) else {
        return;
    };
    watcher.hang();
    watcher.run(Duration::from_secs(3));
    let [hang] = watcher.hangs()[..] else { panic!("one hang, reported once: {:#?}", watcher.hangs()) };
    assert_eq!(hang.cycle.len(), 3, "{hang:#?}");
    assert!(hang.cycle.iter().all(|e| e.pid != program.pid()), "{hang:#?}");
}

#[test]
fn a_place_where_they_waited_before() {
    is_reported("loop", (2, 2), &["reads_here"]);
}

#[test]
fn a_third_process_that_is_not_watched() {
    quiet("outside");
    // Nor is the second one here.
    let config = Config { limit: LIMIT, children: false, ..Config::default() };
    let Some((_dir, _program, mut watcher)) = start("read", config) else { return };
    watcher.run(QUIET);
    watcher.quiet();
}

#[test]
fn one_of_them_waits_for_events() {
    quiet("terminal");
}

#[test]
fn waits_that_time_ends() {
    at_once(["sleeps", "limit", "timer"], |way| {
        quiet(way);
    });
}

#[test]
fn waits_that_a_signal_ends() {
    at_once(["signal", "ends", "stopped"], |way| {
        quiet(way);
    });
}

#[test]
fn ends_that_others_may_have_yet() {
    at_once(["sent", "named"], |way| {
        quiet(way);
    });
}
