//! Where `/proc` does not show the program the guard says at once what is not watched and why, and
//! ends with the program.

mod guard_common;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Far less than the time that a process is given to start (30 s).
const SOON: Duration = Duration::from_secs(20);

/// A command in a mount namespace that has no `/proc`; nothing where there can be none.
fn without_proc() -> Option<Command> {
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", "umount -l /proc && exec \"$@\"", "sh"]);
    able(command, "to hide /proc in a mount namespace")
}

/// A command in a namespace of processes, with the `/proc` of another one.
fn with_foreign_proc() -> Option<Command> {
    let mut command = Command::new("unshare");
    command.args(["-pf", "--kill-child"]);
    able(command, "to make namespaces of processes")
}

fn able(command: Command, what: &str) -> Option<Command> {
    let mut tried = Command::new(command.get_program());
    tried.args(command.get_args()).arg("true").stderr(Stdio::null());
    if !tried.status().is_ok_and(|status| status.success()) {
        println!("SKIP: needs unshare and the right {what}");
        return None;
    }
    Some(command)
}

/// What the command did, soon.
fn soon(command: &mut Command) -> Output {
    let start = Instant::now();
    let out = command.output().expect("unshare");
    assert!(start.elapsed() < SOON, "{:?}: {out:?}", start.elapsed());
    out
}

fn events(out: &Output) -> String {
    String::from_utf8(out.stdout.clone()).expect("text")
}

#[test]
fn a_program_is_not_watched() {
    for (command, why) in [(without_proc(), "/proc is needed"), (with_foreign_proc(), "another namespace")] {
        let Some(mut command) = command else { continue };
        command.args([env!("CARGO_BIN_EXE_orbit"), "watch", "--events", "-", "--"]);
        let out = soon(command.args(["sh", "-c", "sleep 2; exit 7"]));
        let said = events(&out);
        assert_eq!(out.status.code(), Some(7), "{out:?}");
        let trouble = said.lines().find(|line| line.contains("\"trouble\"")).unwrap_or_else(|| panic!("{out:?}"));
        assert!(trouble.contains("is not watched") && trouble.contains(why), "{trouble}");
        assert!(!said.contains("\"joined\""), "{said}");
    }
}

#[test]
fn a_process_is_not_joined() {
    for (command, why) in [(without_proc(), "/proc is needed"), (with_foreign_proc(), "another namespace")] {
        let Some(mut command) = command else { continue };
        let out = soon(command.args([env!("CARGO_BIN_EXE_orbit"), "watch", "--pid", "1"]));
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(125) && said.contains(why), "{out:?}");
    }
}

#[test]
fn a_module_that_cannot_be_limited_is_refused() {
    let Some(mut command) = without_proc() else { return };
    let out = soon(command.args([env!("CARGO_BIN_EXE_orbit"), "modules", "run", "ahd", "--", "true"]));
    assert!(!out.status.success(), "{out:?}");
    assert!(String::from_utf8_lossy(&out.stderr).contains("/proc/self/statm"), "{out:?}");
}
