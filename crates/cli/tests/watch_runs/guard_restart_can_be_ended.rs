//! A program that was asked to end is not started again, whether it hung before that was heard,
//! while it ended, or is gone already, in the pause before a restart: the guard ends with the
//! status that the program would have had. A signal that the program ignored ends nothing, nor does
//! one that it catches for something else.

use crate::guard_common;
use guard_common::{Dir, Guard, build, signal, skipped, until};
use orbit_linux::procfs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Pauses double from 0.1 s: the last of so many is one of 6.4 s.
const RESTARTS: usize = 7;

#[test]
fn in_the_pause() {
    if skipped() {
        return;
    }
    let dir = Dir::new("restart-ended");
    let (program, starts) = (build(&dir, "hangs.c"), dir.0.join("starts"));
    let script = format!("trap '' HUP; echo >>{}; exec {} ring2", starts.display(), program.display());
    let mut guard = Guard::start(&dir, &["--on-hang", "guess:restart"], &["sh", "-c", &script]);
    for restart in 1..=RESTARTS {
        guard.next("hang");
        // It is killed, and not started again yet.
        guard.next("left");
        if restart < RESTARTS {
            guard.next("action");
        }
    }
    signal(guard.id(), libc::SIGHUP);
    signal(guard.id(), libc::SIGTERM);
    let out = guard.finish();
    let said = String::from_utf8(out.stderr).expect("text");
    assert_eq!(out.status.code(), Some(128 + libc::SIGTERM), "{said}");
    assert!(said.contains("did not start it again: signal 15"), "{said}");
    assert_eq!(self::starts(&starts), RESTARTS, "{said}");
}

fn starts(of: &Path) -> usize {
    std::fs::read_to_string(of).unwrap_or_default().lines().count()
}

/// Over a program that hangs once a signal asks for its end, in a process group of its own.
fn hangs_while_ending(dir: &Dir) -> Guard {
    let (program, starts) = (build(dir, "hangs.c"), dir.0.join("starts"));
    let script = format!("echo >>{}; exec {} ending", starts.display(), program.display());
    let mut orbit = Command::new(env!("CARGO_BIN_EXE_orbit"));
    orbit.process_group(0);
    Guard::start_by(dir, orbit, &["--on-hang", "guess:restart"], &["sh", "-c", &script], Stdio::piped())
}

/// Waits until the program catches what asks for its end.
fn catches(guard: &mut Guard) {
    let program = guard.program();
    until("the program to be ready", || {
        let status = procfs::text(format!("/proc/{program}/status")).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).map(str::trim)?;
        let caught = u64::from_str_radix(caught, 16).expect("hexadecimal");
        (caught >> (libc::SIGHUP - 1) & 1 == 1).then_some(())
    });
}

#[test]
fn while_it_ends() {
    if skipped() {
        return;
    }
    for (number, to_group) in [(libc::SIGTERM, false), (libc::SIGINT, false), (libc::SIGINT, true)] {
        let dir = Dir::new(&format!("restart-ending-{number}-{to_group}"));
        let mut guard = hangs_while_ending(&dir);
        catches(&mut guard);
        signal(if to_group { -guard.id() } else { guard.id() }, number);
        let out = guard.finish();
        let said = String::from_utf8(out.stderr).expect("text");
        assert_eq!(out.status.code(), Some(128 + number), "{said}");
        assert!(said.contains(&format!("did not start it again: signal {number}")), "{said}");
        assert_eq!(starts(&dir.0.join("starts")), 1, "{said}");
    }
}

#[test]
fn not_by_what_it_catches_for_something_else() {
    if skipped() {
        return;
    }
    let dir = Dir::new("restart-not-ending");
    let mut guard = hangs_while_ending(&dir);
    catches(&mut guard);
    signal(guard.id(), libc::SIGHUP);
    guard.next("hang");
    let did = guard.next("action")["did"].as_str().expect("words").to_owned();
    assert!(did.contains("started it again"), "{did}");
    // The new one knows of no signal that came to the old one.
    catches(&mut guard);
    signal(guard.id(), libc::SIGTERM);
    let out = guard.finish();
    assert_eq!(out.status.code(), Some(128 + libc::SIGTERM), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(starts(&dir.0.join("starts")), 2);
}
