//! Programs that are hard to enter: each is entered as any other, or left alone with an error that
//! names the reason.

mod common;

use common::{Dir, Subject, field, may_trace, until};
use graft::{Denial, Error, Process};
use orbit_testing::needs_root;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// An ordinary user.
const NOBODY: u32 = 65534;

/// Runs `work` in a thread with the rights of an ordinary user. (The system call itself changes one
/// thread only.)
fn as_nobody<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let ran = scope.spawn(|| {
            for call in [libc::SYS_setresgid, libc::SYS_setresuid] {
                // SAFETY: three integers.
                assert_eq!(unsafe { libc::syscall(call, NOBODY, NOBODY, NOBODY) }, 0);
            }
            work()
        });
        ran.join().expect("no panic")
    })
}

fn pid_by_call(process: &Process) -> Result<u64, Error> {
    process.while_stopped(|stopped| stopped.call(libc::SYS_getpid, [0; 6]))
}

fn works(subject: &Subject) {
    for _ in 0..20 {
        assert_eq!(pid_by_call(&subject.process).expect("a call"), subject.pid() as u64);
    }
    subject.is_unharmed();
}

#[test]
fn a_stopped_program_stays_stopped() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("stopped");
    let subject = Subject::program(&dir.build("cc", "subject.c", &[]), &["threads", "4"]);
    let signal = |signal| {
        // SAFETY: an own child that is not waited for.
        assert_eq!(unsafe { libc::kill(subject.pid(), signal) }, 0);
    };
    let is_stopped = || field(&subject.status(), "State").starts_with('T');
    signal(libc::SIGSTOP);
    until("it is stopped", is_stopped);
    for _ in 0..10 {
        pid_by_call(&subject.process).expect("a call");
        until("it is stopped again", is_stopped);
    }
    let rounds = subject.state().rounds;
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(subject.state().rounds, rounds);
    // SIGCONT while it is held.
    subject
        .process
        .while_stopped(|stopped| {
            signal(libc::SIGCONT);
            stopped.call(libc::SYS_getpid, [0; 6])
        })
        .expect("a call");
    subject.is_unharmed();
    // Also while SIGSTOP arrives.
    subject
        .process
        .while_stopped(|stopped| {
            signal(libc::SIGSTOP);
            stopped.call(libc::SYS_getpid, [0; 6])
        })
        .expect("a call");
    until("it is stopped", is_stopped);
    signal(libc::SIGCONT);
    subject.is_unharmed();
}

#[test]
fn signals_that_come_meanwhile_are_delivered() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("signals");
    let subject = Subject::program(&dir.build("cc", "subject.c", &[]), &["compute"]);
    let handlers = subject.outside().handlers;
    for (n, signal) in [libc::SIGUSR1, libc::SIGTRAP, libc::SIGUSR2, libc::SIGTRAP].into_iter().enumerate() {
        subject
            .process
            .while_stopped(|stopped| -> Result<(), Error> {
                stopped.call(libc::SYS_getpid, [0; 6])?;
                // SAFETY: an own child that is not waited for.
                unsafe { libc::syscall(libc::SYS_tgkill, subject.pid(), subject.pid(), signal) };
                for _ in 0..3 {
                    stopped.call(libc::SYS_getpid, [0; 6])?;
                }
                assert_eq!(
                    subject.state().handled,
                    n as u64,
                    "signal {signal} reached the program while it was stopped"
                );
                Ok(())
            })
            .expect("calls");
        until("the signal is handled", || subject.state().handled == n as u64 + 1);
    }
    assert_eq!(subject.outside().handlers, handlers);
    subject.is_unharmed();
}

#[test]
fn restartable_sequences_are_aborted() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("rseq");
    let subject = Subject::program(&dir.build("cc", "hard.c", &[]), &["rseq"]);
    let before = subject.state().handled;
    let rounds = if common::full() { 3000 } else { 300 };
    for _ in 0..rounds {
        pid_by_call(&subject.process).expect("a call");
    }
    subject.is_unharmed();
    assert!(subject.state().handled > before, "no sequence was interrupted in {rounds} stops");
}

#[test]
fn the_parent_of_a_vfork_is_left_alone() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("vfork");
    let mut subject = Subject::program(&dir.build("cc", "hard.c", &[]), &["vfork"]);
    until("it waits for its child", || field(&subject.status(), "State").starts_with('D'));
    let error = pid_by_call(&subject.process).expect_err("cannot be stopped").to_string();
    assert!(error.contains("vfork") && error.contains("did not stop"), "{error}");
    until("nobody traces it", || field(&subject.status(), "TracerPid") == "0");
    // The child ends with its input.
    subject.input = None;
    works(&subject);
}

#[test]
fn a_leader_that_has_ended_is_no_hindrance() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("leader");
    let subject = Subject::program(&dir.build("cc", "hard.c", &[]), &["leader_gone"]);
    until("the leader ended", || field(&subject.status(), "State").starts_with('Z'));
    for _ in 0..20 {
        assert_eq!(pid_by_call(&subject.process).expect("a call"), subject.pid() as u64);
    }
    let before = subject.state().rounds;
    until("it continues", || subject.state().rounds > before + 1000);
}

#[test]
fn processes_that_it_makes_go_free() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("clones");
    let subject = Subject::program(&dir.build("cc", "hard.c", &[]), &["clones"]);
    for _ in 0..10 {
        works(&subject);
        let before = subject.state().handled;
        until("it makes processes", || subject.state().handled > before + 3);
    }
}

#[test]
fn a_program_that_execs_meanwhile() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("execs");
    let subject = Subject::program(&dir.build("cc", "hard.c", &[]), &["execs"]);
    let mut entered = 0;
    for _ in 0..200 {
        entered += usize::from(pid_by_call(&subject.process).is_ok());
    }
    assert!(entered > 100, "entered {entered} of 200 times");
    assert!(field(&subject.status(), "State").starts_with(['R', 'S', 'D']), "{}", subject.status());
    until("nobody traces it", || field(&subject.status(), "TracerPid") == "0");
}

#[test]
fn one_that_is_traced_names_the_tracer() {
    if !may_trace() {
        return;
    }
    let dir = Dir::new("traced");
    let subject = Subject::program(&dir.build("cc", "subject.c", &[]), &["compute"]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            orbit_linux::ptrace::seize(subject.pid(), 0).expect("traced");
            let error = pid_by_call(&subject.process).expect_err("has a tracer");
            assert!(matches!(error, Error::Traced { by, .. } if by == std::process::id() as i32), "{error}");
        });
    });
    // The kernel frees it when the thread is gone, which may be after it was joined.
    until("nobody traces it", || field(&subject.status(), "TracerPid") == "0");
    works(&subject);
}

#[test]
fn an_error_says_why_tracing_is_not_permitted() {
    if !may_trace() || !needs_root() {
        return;
    }
    let dir = Dir::new("rights");
    let (plain, hard) = (dir.build("cc", "subject.c", &[]), dir.build("cc", "hard.c", &[]));
    let of_root = Subject::program(&plain, &["compute"]);
    let error = as_nobody(|| pid_by_call(&of_root.process)).expect_err("not permitted");
    assert!(matches!(error, Error::NotPermitted { reason: Denial::OtherUser { .. }, .. }), "{error}");
    assert!(error.to_string().contains("CAP_SYS_PTRACE"), "{error}");
    let not_dumpable = Subject::start(Command::new(&hard).arg("not_dumpable").uid(NOBODY).gid(NOBODY));
    let error = as_nobody(|| pid_by_call(&not_dumpable.process)).expect_err("not permitted");
    assert!(matches!(error, Error::NotPermitted { reason: Denial::NotDumpable, .. }), "{error}");
    // Root may.
    works(&not_dumpable);
    works(&of_root);
}

#[test]
fn a_filter_is_suspended_or_named() {
    if !may_trace() || !needs_root() {
        return;
    }
    let dir = Dir::new("filter");
    let hard = dir.build("cc", "hard.c", &[]);
    let start = |command: &mut Command| {
        let subject = Subject::start(command.arg("filtered"));
        until("it has its filter", || field(&subject.status(), "Seccomp") == "2");
        subject
    };
    // Any call kills this program.
    works(&start(&mut Command::new(&hard)));
    let subject = start(Command::new(&hard).uid(NOBODY).gid(NOBODY));
    let error = as_nobody(|| pid_by_call(&subject.process)).expect_err("would kill it");
    assert!(matches!(error, Error::Filtered { .. }), "{error}");
    assert!(error.to_string().contains("CAP_SYS_ADMIN"), "{error}");
    subject.is_unharmed();
}

#[test]
fn those_that_are_no_64_bit_program() {
    if !may_trace() {
        return;
    }
    let find = |pid| Process::find(pid).map(|process| process.pid());
    let unsuitable = |pid, says: &str| {
        let error = find(pid).expect_err("unsuitable");
        assert!(matches!(error, Error::Unsuitable { .. }) && error.to_string().contains(says), "{error}");
    };
    unsuitable(std::process::id() as i32, "itself");
    // SAFETY: a call without arguments.
    unsuitable(unsafe { libc::gettid() }, "thread of process");
    assert!(matches!(find(i32::MAX), Err(Error::Gone { .. })));
    let mut ended = Command::new("true").spawn().expect("a program");
    ended.wait().expect("its end");
    assert!(matches!(find(ended.id() as i32), Err(Error::Gone { .. })));
    if std::fs::read_to_string("/proc/2/status").is_ok_and(|status| field(&status, "Kthread") == "1") {
        unsuitable(2, "kernel");
    }
    // Without a library: a loop.
    let dir = Dir::new("32");
    let (source, program) = (dir.0.join("loop.s"), dir.0.join("loop"));
    std::fs::write(&source, ".globl _start\n_start: jmp _start\n").expect("a source");
    let built = Command::new("cc").args(["-m32", "-nostdlib", "-static", "-o"]).arg(&program).arg(&source).status();
    if !built.expect("a compiler").success() {
        println!("SKIP: needs a compiler for 32-bit programs");
        return;
    }
    let mut child = Command::new(&program).spawn().expect("the program");
    let pid = child.id() as i32;
    until("it runs", || std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program));
    let found = std::panic::catch_unwind(|| unsuitable(pid, "32-bit"));
    let _ = child.kill();
    let _ = child.wait();
    assert!(found.is_ok());
}
