//! The program's end is the guard's end, signals continue to the program, and a killed guard leaves
//! the program alone.

use crate::guard_common;
use guard_common::{Dir, Guard, signal};
use std::process::Command;
use std::time::{Duration, Instant};

fn status(program: &[&str]) -> Option<i32> {
    Guard::start(&Dir::new("status"), &[], program).finish().status.code()
}

#[test]
fn status_passes_through() {
    assert_eq!(status(&["true"]), Some(0));
    assert_eq!(status(&["sh", "-c", "exit 42"]), Some(42));
    assert_eq!(status(&["sh", "-c", "kill -9 $$"]), Some(137));
    assert_eq!(status(&["/no/such/program"]), Some(127));
    assert_eq!(status(&["/etc/passwd"]), Some(126));
}

#[test]
fn output_passes_through() {
    let out = Guard::start(&Dir::new("output"), &[], &["sh", "-c", "echo hello; echo there >&2"]).finish();
    assert_eq!(out.stdout, b"hello\n");
    assert_eq!(out.stderr, b"there\n");
}

#[test]
fn signals_go_on_to_the_program() {
    let dir = Dir::new("signals");
    let script = "trap 'exit 7' TERM; trap 'exit 8' USR1; echo >$0; while :; do sleep 0.02; done";
    for (sig, code) in [(libc::SIGTERM, 7), (libc::SIGUSR1, 8)] {
        let ready = dir.0.join(format!("ready-{sig}"));
        let guard = Guard::start(&dir, &[], &["sh", "-c", script, ready.to_str().expect("a path")]);
        let start = Instant::now();
        while !ready.exists() {
            assert!(start.elapsed() < guard_common::PATIENCE);
            std::thread::sleep(Duration::from_millis(5));
        }
        signal(guard.id(), sig);
        assert_eq!(guard.finish().status.code(), Some(code));
    }
}

#[test]
fn so_do_others_that_would_end_it() {
    let dir = Dir::new("signals-others");
    let script = "trap 'exit 9' $1; echo >$0; while :; do sleep 0.02; done";
    let real_time = [libc::SIGRTMIN(), libc::SIGRTMIN() + 3, libc::SIGRTMAX()];
    let others =
        [libc::SIGABRT, libc::SIGALRM, libc::SIGVTALRM, libc::SIGPROF, libc::SIGIO, libc::SIGPWR, libc::SIGSTKFLT];
    for sig in others.into_iter().chain(real_time) {
        let (ready, number) = (dir.0.join(format!("ready-{sig}")), sig.to_string());
        let program = ["sh", "-c", script, ready.to_str().expect("a path"), &number];
        let mut guard = Guard::start(&dir, &[], &program);
        guard.program();
        guard_common::until("the program", || ready.exists().then_some(()));
        signal(guard.id(), sig);
        assert_eq!(guard.finish().status.code(), Some(9), "signal {sig}");
    }
}

#[test]
fn nothing_is_begun_where_it_can_make_no_thread() {
    // Without -f unshare becomes the command, whose first child is to be the first process of the
    // namespace.
    let unshare = |of: &[&str]| Command::new("unshare").arg("-p").args(of).output();
    let tried = unshare(&["sh", "-c", "sh -c 'test $$ = 1'; exit $?"]);
    if !tried.is_ok_and(|out| out.status.success()) {
        println!("SKIP: needs unshare and the right to make namespaces of processes");
        return;
    }
    let out = unshare(&[env!("CARGO_BIN_EXE_orbit"), "watch", "--", "echo", "begun"]).expect("unshare");
    let said = String::from_utf8(out.stderr).expect("text");
    assert_eq!(out.status.code(), Some(125), "{said}");
    assert!(out.stdout.is_empty() && said.contains("use `unshare -pf --mount-proc`"), "{said}");
}

#[test]
fn a_killed_guard_leaves_the_program_alone() {
    let dir = Dir::new("killed");
    let done = dir.0.join("done");
    let mut guard = Guard::start(&dir, &[], &["sh", "-c", "sleep 1; echo >$0", done.to_str().expect("a path")]);
    guard.program();
    signal(guard.id(), libc::SIGKILL);
    let start = Instant::now();
    while !done.exists() {
        assert!(start.elapsed() < guard_common::PATIENCE, "the program did not go on");
        std::thread::sleep(Duration::from_millis(10));
    }
}
