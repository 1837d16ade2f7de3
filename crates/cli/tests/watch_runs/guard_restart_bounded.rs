//! `--on-hang restart` of a program that a killing does not end, for one of its threads is in a
//! call that no signal ends: that is reported, a signal that asks for the end ends the guard, and
//! no second program is started beside the first.

use crate::guard_common;
use guard_common::{Dir, Guard, Owned, build, signal, skipped};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn a_program_that_does_not_end() {
    if skipped() {
        return;
    }
    let dir = Dir::new("restart-bounded");
    let (stuck, mount, starts) = (build(&dir, "stuck.c"), dir.0.join("mount"), dir.0.join("starts"));
    std::fs::create_dir(&mount).expect("a directory");
    let server = Command::new(&stuck).arg("serve").arg(&mount).stdout(Stdio::piped()).spawn();
    let mut server = Owned(server.expect("a program"));
    let mut said = BufReader::new(server.0.stdout.take().expect("stdout")).lines();
    if said.next().is_none() {
        println!("SKIP: needs /dev/fuse and the right to mount");
        return;
    }
    let file = format!("/proc/{}/root{}/file", server.0.id(), mount.display());
    let script = format!("echo >>{}; exec {} hang {file}", starts.display(), stuck.display());
    let mut guard = Guard::start(&dir, &["--on-hang", "guess:restart"], &["sh", "-c", &script]);
    let program = guard.program();
    assert_eq!(said.next().expect("a line").expect("text"), "asked");
    let did = guard.next("action")["did"].as_str().expect("words").to_owned();
    assert_eq!(did, format!("process {program} has not ended yet, though killed: it is not started again before"));
    signal(guard.id(), libc::SIGTERM);
    let status = guard.ended();
    // What it waits for fails, and it ends.
    drop(server);
    let said = String::from_utf8(guard.finish().stderr).expect("text");
    assert_eq!(status.code(), Some(128 + libc::SIGTERM), "{said}");
    assert!(said.contains("did not start it again: signal 15 asked for its end"), "{said}");
    assert_eq!(std::fs::read_to_string(&starts).expect("a file").lines().count(), 1, "{said}");
}
