//! A program that execs, forks or ends is followed: histories start anew, children are watched or
//! not as asked, no stranger is reported.

use crate::common::{Dir, PATIENCE, Program, Watcher};
use orbit_ahd::{Config, Event};
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn exec_starts_histories_anew() {
    let dir = Dir::new("exec");
    let Some(fares) = dir.program() else { return };
    let other = dir.0.join("computes");
    // By a process of its own: a file that this one writes is no program as long as a child of
    // another test has it too.
    assert!(Command::new("cp").arg(&fares).arg(&other).status().expect("cp").success());
    // A loop of a second, then, by exec, another program that computes: by the habits of the first
    // one that is a hang.
    let mut p = Program::start(Command::new(&fares).args(["exec", "1"]).arg(&other).args(["wanders", "1.5"]));
    let mut w = Watcher::of(p.pid(), Config { limit: Duration::from_secs(1), ..Config::default() });
    let start = Instant::now();
    let status = loop {
        assert!(start.elapsed() < PATIENCE, "it does not end");
        if let Some(status) = p.0.try_wait().expect("wait") {
            break status;
        }
        w.scan();
    };
    assert_eq!(status.code(), Some(0), "the second program ran");
    w.quiet();
    w.until("the end to be reported", |all| all.iter().any(|e| matches!(e, Event::Left { .. })));
    assert!(w.ahd.pids().is_empty());
}

#[test]
fn exec_of_the_same_file() {
    let dir = Dir::new("exec-self");
    let Some(fares) = dir.program() else { return };
    let mut p = Program::start(Command::new(&fares).args(["exec", "1"]).arg(&fares).args(["wanders", "1.5"]));
    let mut w = Watcher::of(p.pid(), Config { limit: Duration::from_secs(1), ..Config::default() });
    let start = Instant::now();
    while p.0.try_wait().expect("wait").is_none() {
        assert!(start.elapsed() < 3 * PATIENCE, "it does not end");
        w.scan();
    }
    w.quiet();
}

#[test]
fn a_program_by_exec_is_judged_by_its_own_habits() {
    let dir = Dir::new("exec-loop");
    let Some(fares) = dir.program() else { return };
    let other = dir.0.join("loops");
    // By a process of its own: a file that this one writes is no program as long as a child of
    // another test has it too.
    assert!(Command::new("cp").arg(&fares).arg(&other).status().expect("cp").success());
    let p = Program::start(Command::new(&fares).args(["exec", "0.5"]).arg(&other).args(["loop", "0.3"]));
    let mut w = Watcher::of(p.pid(), Config { limit: Duration::from_secs(1), ..Config::default() });
    let start = Instant::now();
    while std::fs::read_link(format!("/proc/{}/exe", p.pid())).ok().as_deref() != Some(&other) {
        assert!(start.elapsed() < PATIENCE, "no exec");
        w.scan();
    }
    w.events.clear();
    w.learns(p.pid());
    p.signal(libc::SIGUSR1);
    let h = w.hang();
    assert!(crate::common::functions(h).contains(&"still_here"), "{h:#?}");
    assert!(h.threads[0].stack.iter().any(|f| f.module.ends_with("loops")), "the new program's file: {h:#?}");
}

#[test]
fn children_as_asked() {
    let dir = Dir::new("forks");
    let Some(fares) = dir.program() else { return };
    for children in [true, false] {
        let p = Program::start(Command::new(&fares).arg("forks"));
        let mut w = Watcher::of(p.pid(), Config { children, limit: Duration::from_secs(1), ..Config::default() });
        if children {
            let h = w.hang();
            assert_ne!(h.pid, p.pid(), "the child hangs");
            assert!(crate::common::functions(h).contains(&"still_here"), "{h:#?}");
        } else {
            w.run(Duration::from_secs(3));
            w.quiet();
            assert_eq!(w.ahd.pids(), [p.pid()]);
        }
    }
}

#[test]
fn a_file_that_is_gone_from_disk() {
    let dir = Dir::new("removed");
    let Some(fares) = dir.program() else { return };
    let p = Program::start(Command::new(&fares).args(["loop", "0.3"]));
    let mut w = Watcher::of(p.pid(), Config { limit: Duration::from_secs(1), ..Config::default() });
    w.learns(p.pid());
    std::fs::remove_file(&fares).expect("removed");
    w.run(Duration::from_millis(400));
    p.signal(libc::SIGUSR1);
    let h = w.hang();
    assert!(crate::common::functions(h).contains(&"still_here"), "named all the same: {h:#?}");
    assert!(h.usual.is_some(), "habits are kept: {h:#?}");
}

/// Starts a program under a process id that is free; nothing if that may not be chosen.
fn start_as(pid: i32, program: &std::ffi::CStr, arg: &std::ffi::CStr) -> Option<i32> {
    #[repr(C)]
    #[derive(Default)]
    struct Args {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_size: u64,
        tls: u64,
        set_tid: u64,
        set_tid_size: u64,
    }
    let ids = [pid];
    let args =
        Args { exit_signal: libc::SIGCHLD as u64, set_tid: ids.as_ptr() as u64, set_tid_size: 1, ..Args::default() };
    let argv = [program.as_ptr(), arg.as_ptr(), std::ptr::null()];
    // SAFETY: `args` is a clone_args of the size it says; without CLONE_VM the child has memory of
    // its own, and makes only calls that may be made after fork until exec.
    unsafe {
        match libc::syscall(libc::SYS_clone3, &raw const args, size_of::<Args>()) {
            0 => {
                libc::execv(program.as_ptr(), argv.as_ptr());
                libc::_exit(127)
            }
            n if n > 0 => Some(n as i32),
            _ => None,
        }
    }
}

#[test]
fn a_process_id_that_is_given_again() {
    let dir = Dir::new("reused");
    let Some(fares) = dir.program() else { return };
    let mut p = Program::start(Command::new(&fares).args(["loop", "0.3"]));
    let pid = p.pid();
    let config = Config { limit: Duration::from_secs(1), ..Config::default() };
    let mut w = Watcher::of(pid, config);
    w.run(Duration::from_secs(1));
    let _ = p.0.kill();
    let _ = p.0.wait();
    let path = std::ffi::CString::new(fares.to_str().expect("a path")).expect("a path");
    let Some(stranger) = start_as(pid, &path, c"still") else {
        println!("SKIP: needs the right to choose a process id (CAP_CHECKPOINT_RESTORE), and clone3");
        return;
    };
    assert_eq!(stranger, pid);
    w.run(Duration::from_secs(3));
    // SAFETY: plain calls on the child made above, which nothing else reaps.
    unsafe {
        libc::kill(stranger, libc::SIGKILL);
        libc::waitpid(stranger, std::ptr::null_mut(), 0);
    }
    w.quiet();
    assert!(w.events.iter().any(|e| matches!(e, Event::Left { pid: p } if *p == pid)));
    assert!(w.ahd.pids().is_empty(), "the stranger is not watched");
}
