//! A tracer that is killed at any of its system calls harms nothing: the program continues, calls
//! in progress too, with the mappings, descriptors, signal masks and handlers that it had.

mod common;

use common::{Dir, Subject, may_trace, until};
use graft::{Error, Process, Protection, Source, free_address};
use orbit_linux::ptrace;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

/// What the helper process does to the program with this id.
fn session(pid: i32) -> Result<(), Error> {
    let process = Process::find(pid)?;
    let address = free_address(&[&process], 8192)?;
    let memory = orbit_linux::memfd::create("graft-test", 4096, false).expect("a file");
    // The mark from which on the killer counts.
    // SAFETY: integers.
    unsafe { libc::syscall(libc::SYS_getpriority, 7, 8, 9) };
    process.while_stopped(|stopped| {
        stopped.call(libc::SYS_getpid, [0; 6])?;
        stopped.map(Some(address), 8192, Protection::READ_EXECUTE, Source::Bytes(&[0xc3; 5000]))?;
        let file = Source::File { file: memory.as_fd(), offset: 0, shared: true };
        stopped.map(None, 4096, Protection::READ_WRITE, file)?;
        stopped.take_from(libc::SYS_eventfd2, [5, 0, 0, 0, 0, 0])?;
        for tid in stopped.tids() {
            assert_eq!(stopped.thread(tid)?.call(libc::SYS_gettid, [0; 6])?, tid as u64);
        }
        Ok(())
    })
}

/// Not a test of its own: the process that is killed.
#[test]
fn helper() {
    let Some(pid) = std::env::var("GRAFT_TEST_PID").ok().and_then(|pid| pid.parse().ok()) else { return };
    let mut go = [0u8];
    std::io::stdin().read_exact(&mut go).expect("a byte");
    session(pid).expect("the whole session");
}

/// Runs a session in another process and kills that at its `at`th stop before or after a system
/// call; false if it had fewer.
#[expect(clippy::zombie_processes, reason = "its end is collected by waitpid")]
fn killed(subject: &Subject, at: usize) -> bool {
    let mut helper = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "helper", "--nocapture"])
        .env("GRAFT_TEST_PID", subject.pid().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("a helper");
    let pid = helper.id() as i32;
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    // The one that runs the test waits for the byte.
    until("it waits", || {
        threads() == 2
            && std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads").any(|task| {
                let call = std::fs::read_to_string(task.expect("a thread").path().join("syscall")).unwrap_or_default();
                call.starts_with("0 0x0 ")
            })
    });
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads") {
        let tid = task.expect("a thread").file_name().to_string_lossy().parse().expect("a number");
        ptrace::seize(tid, ptrace::CLONES | ptrace::CALLS_MARKED).expect("traced");
        ptrace::interrupt(tid).expect("asked");
    }
    helper.stdin.take().expect("a pipe").write_all(b"g").expect("a byte");
    let (mut counts, mut count) = (false, 0);
    loop {
        let mut status = 0;
        // SAFETY: a live local; children and traced threads of this thread only.
        let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
        assert!(tid > 0, "the helper is gone");
        if !libc::WIFSTOPPED(status) {
            if tid == pid {
                assert!(libc::WIFSIGNALED(status) || libc::WEXITSTATUS(status) == 0, "the session failed: {status:#x}");
                return libc::WIFSIGNALED(status);
            }
            continue;
        }
        let signal = libc::WSTOPSIG(status);
        if signal == ptrace::CALL {
            let call = ptrace::call(tid);
            counts |= call.is_some_and(|call| call.number == libc::SYS_getpriority);
            // Those that are made any number of times while it waits.
            let waits =
                call.is_some_and(|call| [libc::SYS_sched_yield, libc::SYS_clock_nanosleep].contains(&call.number));
            count += usize::from(counts && !waits);
            if count == at {
                helper.kill().expect("killed");
                continue;
            }
        }
        let passed = if status >> 16 == 0 && signal != ptrace::CALL { signal } else { 0 };
        // Fails for one that was killed.
        let _ = ptrace::go_to_call(tid, passed);
    }
}

/// Kills sessions at every `step`th stop; how many.
fn kill_at_each(subject: &Subject, step: usize) -> usize {
    let before = subject.outside();
    let mut kills = 0;
    while killed(subject, 1 + kills * step) {
        kills += 1;
        until("nobody traces it", || {
            !subject.status().contains("TracerPid:\t") || common::field(&subject.status(), "TracerPid") == "0"
        });
        let since = std::time::Instant::now();
        while subject.outside() != before && since.elapsed().as_secs() < 30 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(subject.outside(), before, "killed at stop {}", 1 + (kills - 1) * step);
    }
    kills
}

#[test]
fn a_program_that_computes_is_unharmed() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("dies");
    let subject = Subject::program(&dir.build("cc", "subject.c", &[]), &["compute"]);
    let kills = kill_at_each(&subject, if common::full() { 1 } else { 7 });
    println!("{kills} kills");
    assert!(kills >= 20, "{kills} kills only");
    subject.is_unharmed();
}

#[test]
fn calls_in_progress_continue() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("dies-in-calls");
    let program = dir.build("cc", "subject.c", &[]);
    for (mode, result) in [("read", 1), ("poll_timed", 1), ("futex_timed", 0), ("epoll_timed", 1), ("sigsuspend", 0)] {
        let mut subject = Subject::program(&program, &[mode]);
        subject.is_in_its_call();
        let kills = kill_at_each(&subject, if common::full() { 3 } else { 31 });
        println!("{mode}: {kills} kills");
        assert!(!subject.state().done, "{mode} ended: {:?}", subject.state());
        subject.end_the_call();
        until("the call ends", || subject.state().done);
        assert_eq!(subject.state().result, result, "{mode}: {:?}", subject.state());
        // The kernel ends that call early for any stop, and only a living tracer has it made again.
        let interrupted = if mode == "epoll_timed" { subject.state().handled as usize } else { 0 };
        assert!(interrupted * 10 <= kills, "interrupted by {interrupted} of {kills} kills");
        subject.is_unharmed();
    }
}
