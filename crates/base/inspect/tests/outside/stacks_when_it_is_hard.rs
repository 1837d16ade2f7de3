//! What cannot be stopped is said, with the reason, within bounded time: traced by a debugger, deep
//! in the kernel, not permitted, gone.

use crate::common;
use common::{Dir, Running, until};
use orbit_inspect::Error;
use orbit_inspect::stacks::{End, How, ThreadStack, Unwinder};
use orbit_inspect::waits::{State, Wait, Watched};

fn has(s: &ThreadStack, name: &str) -> bool {
    s.frames.iter().any(|f| f.function.as_deref() == Some(name))
}

#[test]
fn traced_by_another() {
    let dir = Dir::new("traced");
    let program = dir.build("deep.c", &["-O2", "-fomit-frame-pointer"]);
    let p = Running::program(&program, &["0"]);
    let pid = p.pid();
    let mut u = Unwinder::new(pid).unwrap();
    until("the program to be parked", || has(&u.capture(&[pid])[0], "gamma_park").then_some(()));
    // A tracer that seizes the program and lets it run; it stays one until its thread ends.
    let (seized, wait_seized) = std::sync::mpsc::channel();
    let (end, wait_end) = std::sync::mpsc::channel::<()>();
    let tracer = std::thread::spawn(move || {
        // SAFETY: plain call with numbers.
        let r = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0usize, 0usize) };
        seized.send(r).unwrap();
        let _ = wait_end.recv();
    });
    assert_eq!(wait_seized.recv().unwrap(), 0);
    let s = u.capture(&[pid]).pop().unwrap();
    match s.error {
        Some(Error::Traced { tid, by }) => assert_eq!((tid, by), (pid, std::process::id() as i32)),
        ref other => panic!("{other:?}"),
    }
    assert_eq!(s.how, How::Asleep, "seen without a stop");
    assert!(has(&s, "gamma_park") && has(&s, "alpha_outer"), "{s:#?}");
    end.send(()).unwrap();
    tracer.join().unwrap();
    until("the tracer to be gone", || (u.capture(&[pid])[0].how == How::Stopped).then_some(()));
}

#[test]
fn deep_in_the_kernel() {
    let dir = Dir::new("disk");
    let program = dir.build("deep.c", &["-O2"]);
    let p = Running::program(&program, &["0", "disk"]);
    let mut w = Watched::new(p.pid()).unwrap();
    let child = until("the parent to wait for the vfork", || match w.wait_of(p.pid()) {
        Wait::Child { pids } => pids.first().copied(),
        _ => None,
    });
    assert_eq!(w.scan()[0].state, State::Uninterruptible);
    let mut u = Unwinder::new(p.pid()).unwrap();
    let s = u.capture(&[]).pop().unwrap();
    assert!(matches!(s.error, Some(Error::NotStopped { .. })), "{s:?}");
    assert_eq!(s.how, How::Asleep);
    assert!(s.frames[0].function.as_ref().is_some_and(|f| f.contains("vfork")), "{s:#?}");
    // SAFETY: plain call; the child is this program's child's child, found just now, and has no
    // other purpose.
    unsafe { libc::kill(child, libc::SIGKILL) };
    // Freed, it continues and is not held by anybody.
    until("the parent to go on", || has(&u.capture(&[p.pid()])[0], "gamma_park").then_some(()));
    until("nobody to trace it", || (w.scan()[0].state == State::Sleeping).then_some(()));
}

#[test]
fn stopped_stays_stopped() {
    let dir = Dir::new("stopped");
    let program = dir.build("deep.c", &["-O2", "-fomit-frame-pointer"]);
    let p = Running::program(&program, &["0"]);
    let pid = p.pid();
    let mut w = Watched::new(pid).unwrap();
    let mut u = Unwinder::new(pid).unwrap();
    until("the program to be parked", || has(&u.capture(&[pid])[0], "gamma_park").then_some(()));
    // SAFETY: plain call on the program started above.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    until("the stop", || (w.wait_of(pid) == Wait::Stopped).then_some(()));
    for _ in 0..20 {
        assert!(has(&u.capture(&[pid])[0], "gamma_park"));
        until("it to be stopped again", || (w.wait_of(pid) == Wait::Stopped).then_some(()));
    }
    // SAFETY: as above.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    until("it to go on", || (w.wait_of(pid) == Wait::Signal).then_some(()));
}

#[test]
fn when_the_first_thread_has_ended() {
    let dir = Dir::new("left");
    let program = dir.build("locks.c", &["-O2"]);
    let p = Running::program(&program, &["two", "leave"]);
    let mut w = Watched::new(p.pid()).unwrap();
    let left = |w: &mut Watched| w.scan().iter().any(|t| t.tid == p.pid() && t.state == State::Ended);
    until("the first thread to end", || left(&mut w).then_some(()));
    let mut u = Unwinder::new(p.pid()).unwrap();
    let stacks = u.capture(&[]);
    assert_eq!(stacks.len(), 3);
    for s in &stacks {
        if s.tid == p.pid() {
            assert!(s.frames.is_empty() && s.error.is_some(), "{s:#?}");
        } else {
            assert!(has(s, "ring") && s.end == End::Complete, "{s:#?}");
        }
    }
}

#[test]
fn not_permitted() {
    if !orbit_testing::needs_root() {
        return;
    }
    let p = Running::start(std::process::Command::new("sh").args(["-c", "echo ready; exec sleep 1000"]));
    let pid = p.pid();
    std::thread::spawn(move || {
        // SAFETY: the raw call changes this thread only, which ends with the test.
        let r = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(r, 0);
        let text = Unwinder::new(pid).unwrap_err().to_string();
        assert!(text.contains("CAP_SYS_PTRACE"), "{text}");
        let mut w = Watched::new(pid).unwrap();
        assert_eq!(w.scan().len(), 1, "that much everybody may see");
        until("the reason", || match w.wait_of(pid) {
            Wait::Hidden(text) => {
                assert!(text.contains("CAP_SYS_PTRACE"), "{text}");
                Some(())
            }
            _ => None,
        });
    })
    .join()
    .unwrap();
}

#[test]
fn gone() {
    let p = Running::start(std::process::Command::new("sh").args(["-c", "echo ready; exec sleep 1000"]));
    let pid = p.pid();
    let mut u = Unwinder::new(pid).unwrap();
    let mut w = Watched::new(pid).unwrap();
    drop(p);
    assert!(u.capture(&[]).is_empty());
    let s = u.capture(&[pid]).pop().unwrap();
    assert!(matches!(s.error, Some(Error::Gone { .. })), "{s:?}");
    assert!(w.scan().is_empty());
    assert_eq!(w.wait_of(pid), Wait::Ended);
    assert!(matches!(Unwinder::new(pid), Err(Error::Gone { .. })));
    assert!(matches!(Watched::new(pid), Err(Error::Gone { .. })));
}

#[test]
fn beside_ten_others_on_the_same_cpu() {
    let dir = Dir::new("crowded");
    let program = dir.build("loops.c", &["-O1"]);
    // SAFETY: a plain call without arguments.
    let cpu = usize::try_from(unsafe { libc::sched_getcpu() }).unwrap();
    // Of this thread and those that it starts: the programs, and the one that takes stacks.
    orbit_linux::sched::set_affinity(0, &[cpu]).unwrap();
    let running: Vec<Running> = (0..11).map(|_| Running::program(&program, &["flag"])).collect();
    let mut u = Unwinder::new(running[0].pid()).unwrap();
    let mut errors = Vec::new();
    for _ in 0..10 {
        let s = u.capture(&[]).pop().unwrap();
        match s.error {
            Some(e) => errors.push(e.to_string()),
            None => assert!(has(&s, "main"), "{s:#?}"),
        }
    }
    assert!(errors.len() <= 2, "{errors:?}");
}
