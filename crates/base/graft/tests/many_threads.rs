//! All threads are stopped: many, those that appear meanwhile, those of a Go program, and none is
//! harmed.

mod common;

use common::{Dir, Subject, have, may_trace, until};
use graft::{Error, Protection, Source};
use std::process::Command;

/// Whether the program stands still: its rounds do not grow while it is stopped.
fn stand_still(subject: &Subject, times: usize) {
    for _ in 0..times {
        let stood = subject.process.while_stopped(|stopped| -> Result<bool, Error> {
            let before = subject.state();
            let tids = stopped.tids();
            assert_eq!(stopped.call(libc::SYS_getpid, [0; 6])?, subject.pid() as u64);
            let region = stopped.map(None, 4096, Protection::READ_WRITE, Source::Zeroes)?;
            stopped.write(region.start, b"ours")?;
            // Each thread can make a call.
            let some = [tids[0], tids[tids.len() / 2], tids[tids.len() - 1]];
            for tid in some {
                assert_eq!(stopped.thread(tid)?.call(libc::SYS_gettid, [0; 6])?, tid as u64);
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
            let states: Vec<String> = std::fs::read_dir(format!("/proc/{}/task", subject.pid()))
                .expect("threads")
                .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok())
                .map(|status| common::field(&status, "State").to_owned())
                .filter(|state| !state.starts_with(['t', 'Z', 'X']))
                .collect();
            assert!(states.is_empty(), "threads that are not stopped: {states:?}");
            Ok(subject.state() == before)
        });
        assert!(stood.expect("stopped"), "it went on while it was stopped");
    }
    subject.is_unharmed();
}

#[test]
fn sixty_four_threads() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("threads");
    let subject = Subject::program(&dir.build("cc", "subject.c", &[]), &["threads", "64"]);
    until("all threads run", || subject.state().threads >= 64);
    let before = subject.outside();
    stand_still(&subject, 20);
    assert_eq!(subject.outside(), before);
}

#[test]
fn threads_that_make_threads() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("chain");
    let subject = Subject::program(&dir.build("cc", "subject.c", &[]), &["chain"]);
    stand_still(&subject, if common::full() { 1000 } else { 40 });
}

#[test]
fn a_go_program() {
    if !may_trace() || !have("go") {
        return;
    }
    let dir = Dir::new("go");
    let program = dir.0.join("subject");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/subject.go");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(source).env("GO111MODULE", "off").env("GOFLAGS", "");
    // A cache that stays: the standard library is compiled once.
    build.env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go-cache"));
    assert!(build.status().expect("go").success());
    let subject = Subject::program(&program, &[]);
    stand_still(&subject, if common::full() { 1000 } else { 40 });
}
