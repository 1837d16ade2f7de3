//! In the pause before a restart a signal that asks for the end is heard: the guard ends with the status that the program would have
//! had, and starts nothing; a signal that the program ignored ends nothing.

mod guard_common;
use guard_common::{Dir, Guard, build, signal, skipped};

/// Pauses double from 0.1 s: the last of so many is one of 3.2 s.
const RESTARTS: usize = 6;

#[test]
fn in_the_pause() {
    if skipped() {
        return;
    }
    let dir = Dir::new("restart-ended");
    let (program, starts) = (build(&dir, "hangs.c"), dir.0.join("starts"));
    let script = format!("trap '' HUP; echo >>{}; exec {} ring2", starts.display(), program.display());
    let mut guard = Guard::start(&dir, &["--on-hang", "restart"], &["sh", "-c", &script]);
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
    let started = std::fs::read_to_string(&starts).expect("a file").lines().count();
    assert_eq!(started, RESTARTS, "{said}");
}
