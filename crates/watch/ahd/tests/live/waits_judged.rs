//! Waits of the same form are distinguished: what only resembles a dead end is not reported, what
//! is one is.

use crate::common::{Dir, Program, Watcher, at_once};
use orbit_ahd::{Config, Kind};
use orbit_inspect::Sure;
use std::process::Command;
use std::time::Duration;

/// Starts `fares WAY [PATH]`, with a path in a directory of this test's.
fn start(name: &str, way: &str, argument: &str, limit: Duration) -> Option<(Dir, Program, Watcher)> {
    let dir = Dir::new(name);
    let fares = dir.program()?;
    let argument = argument.replace("DIR", &dir.0.display().to_string());
    let program = Program::start(Command::new(fares).args([way, &argument]));
    let watcher = Watcher::of(program.pid(), Config { limit, ..Config::default() });
    Some((dir, program, watcher))
}

/// Nothing is reported for so long.
fn quiet(name: &str, way: &str, argument: &str, limit: Duration, span: Duration) {
    let Some((_dir, _program, mut watcher)) = start(name, way, argument, limit) else { return };
    watcher.run(span);
    watcher.quiet();
}

#[test]
fn a_pipe_that_a_signals_handler_writes() {
    quiet("judged-self", "self-pipe", "3", Duration::from_secs(2), Duration::from_secs(7));
}

#[test]
fn whoever_waits_for_ctrl_c() {
    at_once(["pipe", "thread", "word"], |how| {
        quiet("judged-int", "ctrl-c", how, Duration::from_secs(2), Duration::from_secs(4));
    });
}

#[test]
fn a_pipe_with_a_name() {
    // A daemon that keeps the writing end open itself, so that it never reads an end.
    let one_second = Duration::from_secs(1);
    quiet("judged-fifo", "fifo", "DIR/fifo", one_second, Duration::from_secs(3));
    quiet("judged-fifo2", "fifo-and-worker", "DIR/fifo", one_second, Duration::from_secs(3));
}

#[test]
fn a_pipe_whose_other_end_is_on_its_way() {
    quiet("judged-sent", "sent-pipe", "4", Duration::from_secs(2), Duration::from_secs(6));
}

#[test]
fn a_latch_with_the_form_of_a_lock() {
    quiet("judged-latch", "latch", "", Duration::from_secs(2), Duration::from_secs(5));
}

#[test]
fn a_lock_that_many_get_in_turns() {
    at_once(["held", "free", "stutters"], |word| {
        quiet("judged-queue", "queue", word, Duration::from_secs(2), Duration::from_secs(6));
    });
}

#[test]
fn a_lock_that_another_one_waits_for_whom_signals_wake() {
    let Some((_dir, _program, mut watcher)) = start("judged-ticks", "queue-and-ticks", "", Duration::from_secs(2))
    else {
        return;
    };
    assert_eq!(watcher.hang().kind, Kind::Blocked);
}

#[test]
fn a_worker_without_a_job_yet() {
    quiet("judged-job", "job-pipe", "", Duration::from_secs(1), Duration::from_secs(4));
}

#[test]
fn a_lock_held_by_one_whose_child_works() {
    quiet("judged-work", "lock-and-work", "DIR/lock", Duration::from_secs(3), Duration::from_secs(5));
}

#[test]
fn a_lock_whose_taker_has_ended() {
    // A child has it from the taker.
    quiet("judged-left", "lock-left-and-work", "DIR/lock", Duration::from_secs(3), Duration::from_secs(5));
}

#[test]
fn two_processes_with_two_locks_on_files() {
    // Long before the limit.
    let Some((_dir, program, mut watcher)) = start("judged-cross", "crosswise", "DIR", Duration::from_secs(600)) else {
        return;
    };
    let hang = watcher.hang();
    assert_eq!((hang.kind, hang.cycle.len(), hang.sure), (Kind::Blocked, 2, Sure::Likely), "{hang:#?}");
    assert!(hang.cycle.iter().any(|e| e.pid == program.pid()), "{hang:#?}");
    watcher.run(Duration::from_secs(3));
    assert_eq!(watcher.hangs().len(), 1, "one hang, reported once");
}

#[test]
fn the_only_thread_of_a_process_whose_memory_another_one_shares() {
    let limit = Duration::from_secs(600);
    quiet("judged-memory", "shares-memory", "5", limit, Duration::from_secs(7));
    // A copy is of no use.
    let Some((_dir, program, mut watcher)) = start("judged-copy", "copies-memory", "2", limit) else { return };
    let hang = watcher.hang();
    assert!(hang.pid == program.pid() && hang.why.contains("nobody else can end that"), "{hang:#?}");
    // Where the kernel may not be asked it is a guess.
    assert!(hang.sure <= Sure::Likely, "{hang:#?}");
}

#[test]
fn two_descriptors_of_one_thread() {
    let Some((_dir, program, mut watcher)) = start("judged-two", "locks-twice", "DIR/lock", Duration::from_secs(600))
    else {
        return;
    };
    let hang = watcher.hang();
    assert_eq!((hang.tid, hang.cycle.len(), hang.sure), (program.pid(), 1, Sure::Likely), "{hang:#?}");
}

#[test]
fn a_reader_that_wants_to_write() {
    let Some((_dir, _program, mut watcher)) = start("judged-upgrade", "upgrades", "", Duration::from_secs(2)) else {
        return;
    };
    let hang = watcher.hang();
    assert_eq!(hang.kind, Kind::Blocked, "{hang:#?}");
    assert!(
        hang.threads.iter().any(|t| crate::common::functions(hang).contains(&"upgrades_here") && t.tid == hang.tid),
        "{hang:#?}"
    );
}
