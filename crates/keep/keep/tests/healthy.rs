//! A program that nothing is wrong with does under a keeper what it does without: vectors of many
//! pieces, changed users, cancelled threads, handlers of signals that it sends to itself, waits
//! with a time limit.

mod common;

use common::{KEEP, Scratch, count, lacks, lacks_tracking, until};
use std::io::Write;
use std::process::{Command, Stdio};

#[test]
fn calls_do_what_they_do_without_a_keeper() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("healthy");
    let program = scratch.join("healthy");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/healthy.c");
    let compiled = Command::new("cc").args(["-O1", "-D_GNU_SOURCE", "-pthread", source, "-o"]).arg(&program).status();
    assert!(compiled.expect("cc").success());
    for (options, how) in [(&["--log"][..], "log"), (&["--every", "20ms"], "plain")] {
        let log = scratch.join(how);
        let mut command = Command::new(KEEP);
        command.args(options).arg("--events").arg(&log).arg("--").arg(&program);
        let mut keeper = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("orbit-keep");
        until("it is kept", || (count(&log, "kept") > 0).then_some(()));
        keeper.stdin.take().expect("a pipe").write_all(b"x").expect("sent");
        let status = until("it exits", || keeper.try_wait().expect("a child"));
        let said = std::io::read_to_string(keeper.stdout.take().expect("a pipe")).expect("read");
        assert_eq!((status.code(), said.as_str()), (Some(7), ""), "{how}");
    }
}
