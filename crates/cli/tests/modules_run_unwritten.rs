//! Reports that cannot be written do not end `orbit modules run`, which would leave its program
//! unwatched.

mod guard_common;
use guard_common::{Dir, build, skipped};
use std::fs::File;
use std::process::{Command, Stdio};

#[test]
fn the_program_is_watched_to_its_end() {
    if skipped() {
        return;
    }
    let dir = Dir::new("unwritten");
    let script = "\"$0\" ring2 & sleep 3; kill -9 $!; exit 7";
    for events in [&["--events", "/dev/full"][..], &[]] {
        let child = Command::new(env!("CARGO_BIN_EXE_orbit"))
            .args(["modules", "run", "ahd"])
            .args(events)
            .args(["--", "sh", "-c", script])
            .arg(build(&dir, "hangs.c"))
            .stdout(Stdio::null())
            .stderr(if events.is_empty() { File::create("/dev/full").expect("a file").into() } else { Stdio::piped() })
            .spawn();
        let out = child.expect("orbit").wait_with_output().expect("output");
        let said = String::from_utf8(out.stderr).expect("text");
        assert_eq!(out.status.code(), Some(7), "{said}");
        if !events.is_empty() {
            let at_first = "orbit modules: cannot write events to /dev/full: No space left";
            assert_eq!(said.matches(at_first).count(), 1, "{said}");
            assert!(said.trim_end().ends_with("events could not be written to /dev/full"), "{said}");
        }
    }
}
