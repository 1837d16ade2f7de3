//! A call in which a thread was stopped, and in whose thread other calls ran, continues and has the
//! result that it would have had.

mod common;

use common::{Dir, Subject, may_trace, until};
use graft::{Error, Protection, Restart, Source};
use std::path::Path;

/// Enters the program again and again during its call.
fn enter(subject: &Subject, mode: &str, restart: Option<Restart>) {
    subject.is_in_its_call();
    for _ in 0..30 {
        let call = subject.process.while_stopped(|stopped| -> Result<_, Error> {
            let tid = subject.pid();
            let call = stopped.thread(tid)?.interrupted()?;
            assert_eq!(stopped.thread(tid)?.call(libc::SYS_getpid, [0; 6])?, tid as u64);
            stopped.map(None, 4096, Protection::READ_WRITE, Source::Zeroes)?;
            Ok(call)
        });
        let call = call.expect("entered");
        if let (Some(call), Some(restart)) = (call, restart) {
            assert_eq!(call.restart, restart, "{mode}: {call:?}");
        }
    }
}

fn continues(program: &Path, mode: &str, result: i64, restart: Option<Restart>) {
    let mut subject = Subject::program(program, &[mode]);
    enter(&subject, mode, restart);
    if !mode.contains("sleep") && !mode.contains("second") {
        assert!(!subject.state().done, "{mode} ended early: {:?}", subject.state());
        subject.end_the_call();
    }
    until("the call ends", || subject.state().done);
    let state = subject.state();
    assert_eq!(state.result, result, "{mode}: {state:?}");
    let signals = u64::from(["pause", "sigsuspend"].contains(&mode));
    assert_eq!(state.handled, signals, "{mode} was interrupted: {state:?}");
    if mode.contains("sleep") || mode.contains("second") {
        assert!(state.milliseconds >= 1000, "{mode} was cut short: {state:?}");
    }
    subject.is_unharmed();
}

#[test]
fn those_that_the_kernel_makes_again() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("again");
    let program = dir.build("cc", "subject.c", &[]);
    let usr2 = i64::from(libc::SIGUSR2);
    for (mode, result, restart) in [
        ("nanosleep", 0, Some(Restart::RestOfTime)),
        ("clock_nanosleep", 0, Some(Restart::IfNoHandler)),
        ("poll_second", 0, Some(Restart::RestOfTime)),
        ("read", 1, Some(Restart::UnlessHandled)),
        ("recv", 1, Some(Restart::UnlessHandled)),
        ("recv_timed", 1, None),
        ("epoll_wait", 1, Some(Restart::IfNoHandler)),
        ("epoll_timed", 1, Some(Restart::IfNoHandler)),
        ("poll", 1, Some(Restart::RestOfTime)),
        ("poll_timed", 1, Some(Restart::RestOfTime)),
        ("ppoll", 1, Some(Restart::IfNoHandler)),
        ("select", 1, Some(Restart::IfNoHandler)),
        ("futex", 0, Some(Restart::UnlessHandled)),
        ("futex_timed", 0, Some(Restart::RestOfTime)),
        ("semop", 0, Some(Restart::IfNoHandler)),
        ("pause", 0, Some(Restart::IfNoHandler)),
        ("sigsuspend", 0, Some(Restart::IfNoHandler)),
        ("sigtimedwait", usr2, None),
        ("wait", 0, Some(Restart::UnlessHandled)),
    ] {
        println!("{mode}");
        continues(&program, mode, result, restart);
    }
}

#[test]
fn those_of_a_static_program() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("again-static");
    let program = dir.build("cc", "subject.c", &["-static"]);
    for (mode, result) in [("nanosleep", 0), ("read", 1), ("epoll_wait", 1), ("futex", 0), ("poll_timed", 1)] {
        continues(&program, mode, result, None);
    }
}

#[test]
fn a_time_limit_ends_though_it_is_stopped_all_the_time() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("limits");
    let program = dir.build("cc", "subject.c", &[]);
    for mode in ["epoll_second", "sigtimedwait_second"] {
        let subject = Subject::program(&program, &[mode]);
        subject.is_in_its_call();
        until("the limit is over", || {
            let entered = subject.process.while_stopped(|stopped| stopped.call(libc::SYS_getpid, [0; 6]));
            entered.expect("a call");
            std::thread::sleep(std::time::Duration::from_millis(100));
            subject.state().done
        });
        let state = subject.state();
        assert_eq!((state.result, state.handled), (0, 0), "{mode}: {state:?}");
        assert!(state.milliseconds >= 1000, "{mode}: {state:?}");
        subject.is_unharmed();
    }
}
