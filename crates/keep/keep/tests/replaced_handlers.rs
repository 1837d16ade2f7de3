//! A program that sets the action of a fatal signal by whatever call is put back, or it is said
//! that it will not be, and it ends as without a keeper. A signal that it was started to ignore is
//! ignored by what it starts.

mod common;

use common::{KEEP, Scratch, count, events, lacks, lacks_tracking, until};
use std::fs;
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};

fn start(scratch: &Scratch, options: &[&str], how: &str) -> Child {
    let program = scratch.join("replaced");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/replaced.c");
    let compiled = Command::new("cc")
        .args(["-O1", "-D_GNU_SOURCE", "-D_XOPEN_SOURCE=700", "-w", source, "-o"])
        .arg(&program)
        .status()
        .expect("cc");
    assert!(compiled.success());
    let mut command = Command::new(KEEP);
    command.args(options).arg("--events").arg(scratch.join("events")).arg("--").arg(&program).arg(how).arg(&scratch.0);
    if how == "spawn" {
        // SAFETY: one system call between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGTRAP, libc::SIG_IGN);
                Ok(())
            });
        }
    }
    command.spawn().expect("orbit-keep")
}

fn warned(scratch: &Scratch, of: &str) -> usize {
    let is_it = |e: &&serde_json::Value| e["event"] == "warning" && e["text"].as_str().is_some_and(|t| t.contains(of));
    events(&scratch.join("events")).iter().filter(is_it).count()
}

#[test]
fn other_names_of_signal_keep_the_handler() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    for how in ["sigset", "ssignal", "sysv"] {
        let scratch = Scratch::new(&format!("replaced-{how}"));
        let mut keeper = start(&scratch, &["--log", "--every", "50ms"], how);
        fs::write(scratch.join("ready"), "").expect("written");
        until("it is kept", || (count(&scratch.join("events"), "kept") > 0).then_some(()));
        fs::write(scratch.join("crash"), "").expect("written");
        let status = until("it ends", || keeper.try_wait().expect("a child"));
        // The crash comes again in each replay.
        let log = scratch.join("events");
        assert_eq!((status.signal(), count(&log, "crash") > 0), (Some(libc::SIGSEGV), true), "{how}");
        assert_eq!((count(&log, "gave-up"), warned(&scratch, "SIGSEGV")), (1, 0), "{how}");
    }
}

#[test]
fn a_handler_set_behind_our_back_is_reported() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    for options in [&["--every", "50ms"][..], &["--log", "--every", "50ms"]] {
        let scratch = Scratch::new(&format!("replaced-raw{}", options.len()));
        let mut keeper = start(&scratch, options, "raw");
        fs::write(scratch.join("ready"), "").expect("written");
        until("it is reported", || (warned(&scratch, "SIGSEGV does not come to the keeper") == 1).then_some(()));
        fs::write(scratch.join("crash"), "").expect("written");
        let status = until("it ends", || keeper.try_wait().expect("a child"));
        assert_eq!(status.signal(), Some(libc::SIGSEGV));
        assert_eq!(warned(&scratch, "it died of SIGSEGV, which has not come to the keeper"), 1);
    }
}

#[test]
fn an_ignored_signal_is_ignored_by_what_it_starts() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("replaced-spawn");
    let mut keeper = start(&scratch, &["--every", "50ms"], "spawn");
    until("it is kept", || (count(&scratch.join("events"), "kept") > 0).then_some(()));
    fs::write(scratch.join("ready"), "").expect("written");
    let status = until("it ends", || keeper.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(7), "SIGTRAP was ignored");
}

#[test]
fn a_program_with_functions_of_its_own_and_raw_clones_is_unharmed() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("overrides");
    let program = scratch.join("overrides");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/overrides.c");
    let compiled = Command::new("cc").args(["-O1", "-D_GNU_SOURCE", "-rdynamic", source, "-o"]).arg(&program).status();
    assert!(compiled.expect("cc").success());
    for options in [&[][..], &["--log"]] {
        let log = scratch.join(&format!("events{}", options.len()));
        let mut command = Command::new(KEEP);
        let status = command.args(options).arg("--events").arg(&log).arg("--").arg(&program).status();
        assert_eq!((status.expect("orbit-keep").code(), count(&log, "crash")), (Some(5), 0), "{options:?}");
    }
}
