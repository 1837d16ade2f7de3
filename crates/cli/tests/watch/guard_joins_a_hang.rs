//! `orbit watch --pid` of a program that hangs already says so at once and shows it as `orbit why`
//! does; of one that sleeps it says nothing.

use crate::guard_common::{Dir, Owned, build, signal, skipped, until};
use serde_json::Value;
use std::fs::{File, read_to_string};
use std::process::{Command, Stdio};

const SAID: &str = "it may hang already";

/// What `orbit watch --pid` of this process says on stderr until `done` is satisfied with that and
/// its events.
fn said_of(dir: &Dir, pid: u32, done: impl Fn(&str, &str) -> bool) -> String {
    let (stderr, events) = (dir.0.join(format!("stderr-{pid}")), dir.0.join(format!("events-{pid}")));
    // It is appended to.
    let _ = std::fs::remove_file(&events);
    let mut orbit = Command::new(env!("CARGO_BIN_EXE_orbit"));
    orbit.args(["watch", "--pid", &pid.to_string(), "--events"]).arg(&events);
    let mut watch = Owned(orbit.stderr(File::create(&stderr).expect("a file")).spawn().expect("orbit watch"));
    let said = until("what it says", || {
        let text = |path| read_to_string(path).unwrap_or_default();
        let (said, events) = (text(&stderr), text(&events));
        done(&said, &events).then_some(said)
    });
    signal(watch.0.id() as i32, libc::SIGTERM);
    assert!(watch.0.wait().expect("its end").success(), "{said}");
    said
}

fn start(program: &std::path::Path, arguments: &[&str]) -> Owned {
    Owned(Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("a program"))
}

/// Whether `orbit why` shows the process so.
fn why(pid: u32, shows: impl Fn(&Value) -> bool) -> Option<()> {
    let why = Command::new(env!("CARGO_BIN_EXE_orbit")).args(["why", "--json", &pid.to_string()]).output();
    let seen = serde_json::from_slice(&why.expect("orbit why").stdout).ok()?;
    shows(&seen).then_some(())
}

#[test]
fn a_deadlock() {
    if skipped() {
        return;
    }
    let dir = Dir::new("joins-ring");
    let child = start(&build(&dir, "hangs.c"), &["ring2"]);
    let pid = child.0.id();
    until("the deadlock", || why(pid, |seen| seen["deadlocks"][0].is_object()));
    let said = said_of(&dir, pid, |said, _| said.contains("deadlock: "));
    let (first, sample) = said.split_once('\n').expect("lines");
    assert!(first.contains(&format!("process {pid} ")) && first.contains(SAID), "{said}");
    assert!(first.contains(&format!("`orbit why {pid}`")) && sample.contains("held by thread"), "{said}");
}

#[test]
fn a_thread_that_computes_without_a_pause() {
    if skipped() {
        return;
    }
    let dir = Dir::new("joins-spin");
    let child = start("/bin/sh".as_ref(), &["-c", "while :; do :; done"]);
    let pid = child.0.id();
    until("it runs", || why(pid, |seen| seen["threads"][0]["waits_for"].is_null()));
    // On a loaded machine it may get no CPU during the sample, which is of a moment.
    let said = until("that it may hang", || {
        let said = said_of(&dir, pid, |_, events| events.contains("\"joined\""));
        said.contains(SAID).then_some(said)
    });
    assert!(said.contains(&format!("process {pid} ")) && said.contains("% of a CPU"), "{said}");
}

#[test]
fn one_that_sleeps() {
    if skipped() {
        return;
    }
    let dir = Dir::new("joins-sleep");
    let child = start("/bin/sleep".as_ref(), &["600"]);
    let pid = child.0.id();
    until("it sleeps", || why(pid, |seen| seen["threads"][0]["waits_for"].is_string()));
    // The sample comes before anything is watched.
    let said = said_of(&dir, pid, |_, events| events.contains("\"joined\""));
    assert!(!said.contains(SAID), "{said}");
}
