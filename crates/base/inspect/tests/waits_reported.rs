//! Each kind of wait is reported for what it is, with the threads that could end it.

mod common;
use common::{Dir, Running, until};
use orbit_inspect::waits::{Direction, FutexKind, Owner, State, Wait, Watched, stays_lost};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn wait(program: &Path, args: &[&str], is: impl Fn(&Wait) -> bool) -> (Wait, i32, Vec<i32>) {
    let g = Running::program(program, args);
    let pid = g.pid();
    let mut w = Watched::new(pid).unwrap();
    let found = until(args[0], || Some(w.wait_of(pid)).filter(&is));
    println!("{}: {found:?}", args[0]);
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    (found, pid, children.split_whitespace().map(|c| c.parse().unwrap()).collect())
}

/// Whether the first thread has ended, and others have not.
fn first_ended(w: &mut Watched) -> Option<()> {
    let pid = w.pid();
    w.scan().iter().any(|t| t.tid == pid && t.state == State::Ended).then_some(())
}

#[test]
fn descriptors_and_children() {
    let dir = Dir::new("waits");
    let program = dir.build("waits.c", &["-O2", "-w"]);
    let file = dir.0.join("locked");
    let file = file.to_str().unwrap();
    let is_pipe = |w: &Wait| matches!(w, Wait::Pipe { .. });
    for (kind, towards) in [("pipe", Direction::Read), ("full-pipe", Direction::Write)] {
        match wait(&program, &[kind], is_pipe) {
            (Wait::Pipe { direction, peers, .. }, _, children) => assert_eq!((direction, peers), (towards, children)),
            other => panic!("{other:?}"),
        }
    }
    // The child's first thread may not have ended at once.
    let g = Running::program(&program, &["pipe-left"]);
    let mut w = Watched::new(g.pid()).unwrap();
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", g.pid())).unwrap();
    let child: i32 = children.trim().parse().unwrap();
    let mut of_child = Watched::new(child).unwrap();
    until("the child's first thread to end", || first_ended(&mut of_child));
    match until("the pipe", || Some(w.wait_of(g.pid())).filter(is_pipe)) {
        Wait::Pipe { peers, .. } => assert_eq!(peers, [child]),
        other => panic!("{other:?}"),
    }
    // At a pipe with a name somebody else may still come.
    let fifo = dir.0.join("fifo");
    let fifo = fifo.to_str().unwrap();
    for (kind, has_name) in [("own-pipe", false), ("own-fifo", true), ("own-fifo-removed", false)] {
        match wait(&program, &[kind, fifo], is_pipe) {
            (Wait::Pipe { peers, named, .. }, pid, _) => assert_eq!((peers, named), (vec![pid], has_name), "{kind}"),
            other => panic!("{other:?}"),
        }
        let _ = std::fs::remove_file(fifo);
    }
    let in_virtual_machine = std::env::var_os("ORBIT_VM").is_some();
    for kind in ["unix", "tcp"] {
        match wait(&program, &[kind], |w| matches!(w, Wait::Socket { .. })) {
            // A module of the kernel, which the virtual machine of scripts/old-kernel.sh does not
            // have.
            (Wait::Socket { peers, .. }, ..) if kind == "unix" && peers.is_empty() && in_virtual_machine => {
                println!("SKIP: needs unix_diag, to find the other side of a UNIX socket");
            }
            (Wait::Socket { peers, remote, .. }, _, children) => {
                assert_eq!(peers, children, "{kind}");
                assert_eq!(remote.is_some(), kind == "tcp");
            }
            other => panic!("{other:?}"),
        }
    }
    match wait(&program, &["accept"], |w| matches!(w, Wait::Socket { .. })) {
        (Wait::Socket { call, local, peers, .. }, ..) => {
            assert_eq!((call, peers.len()), ("accept", 0));
            assert!(local.unwrap().starts_with("tcp 127.0.0.1:"));
        }
        other => panic!("{other:?}"),
    }
    for kind in ["flock", "fcntl"] {
        match wait(&program, &[kind, file], |w| matches!(w, Wait::FileLock { .. })) {
            (Wait::FileLock { path, owner }, _, children) => {
                assert_eq!(path, file);
                assert_eq!(owner, Some(children[0]), "{kind}");
            }
            other => panic!("{other:?}"),
        }
    }
    match wait(&program, &["child"], |w| matches!(w, Wait::Child { .. })) {
        (Wait::Child { pids }, _, children) => {
            assert_eq!(children.len(), 2);
            assert_eq!(pids, [children[1]], "the one it names");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lock_that_outlasts_its_taker() {
    let dir = Dir::new("waits-left");
    let program = dir.build("waits.c", &["-O2", "-w"]);
    let g = Running::program(&program, &["flock-left", dir.0.join("locked").to_str().unwrap()]);
    let mut w = Watched::new(g.pid()).unwrap();
    let owner = until("the lock", || match w.wait_of(g.pid()) {
        Wait::FileLock { owner, .. } => Some(owner),
        _ => None,
    });
    // Of two that have it one got it from the other.
    let children = owner.map(|o| std::fs::read_to_string(format!("/proc/{o}/task/{o}/children")).unwrap_or_default());
    assert!(children.is_some_and(|c| !c.is_empty()), "{owner:?}");
}

#[test]
fn the_rest() {
    let dir = Dir::new("waits-rest");
    let program = dir.build("waits.c", &["-O2", "-w"]);
    wait(&program, &["poll"], |w| *w == Wait::Poll { fds: 3, timed: false });
    wait(&program, &["select"], |w| *w == Wait::Poll { fds: 2, timed: true });
    wait(&program, &["epoll"], |w| *w == Wait::Epoll { fds: 2, timed: false, unread: Vec::new() });
    wait(&program, &["sleep"], |w| *w == Wait::Sleep);
    wait(&program, &["signal"], |w| *w == Wait::Signal);
    wait(&program, &["event"], |w| matches!(w, Wait::Other(c) if c.nr == libc::SYS_read));
    wait(&program, &["spin"], |w| *w == Wait::Running);
    let g = Running::program(&program, &["sleep"]);
    let mut w = Watched::new(g.pid()).unwrap();
    // SAFETY: plain calls on the program started above.
    unsafe { libc::kill(g.pid(), libc::SIGSTOP) };
    until("the stop", || (w.wait_of(g.pid()) == Wait::Stopped).then_some(()));
    // SAFETY: as above.
    unsafe { libc::kill(g.pid(), libc::SIGCONT) };
    // The kernel calls it another way now; where the code before the call does not say which, that
    // is what is reported.
    until("the sleep to go on", || match w.wait_of(g.pid()) {
        Wait::Sleep => Some(()),
        Wait::Other(c) if c.nr == libc::SYS_restart_syscall => Some(()),
        _ => None,
    });
}

#[test]
fn locks() {
    let dir = Dir::new("waits-locks");
    let program = dir.build("locks.c", &["-O2"]);
    let p = Running::program(&program, &["each"]);
    let main = Owner::Thread { pid: p.pid(), tid: p.pid() };
    let mut w = Watched::new(p.pid()).unwrap();
    let kinds = until("eight waits", || {
        let tids: Vec<i32> =
            w.scan().iter().filter(|t| t.state == State::Sleeping && t.tid != p.pid()).map(|t| t.tid).collect();
        let kinds: Vec<(FutexKind, bool)> = tids
            .into_iter()
            .filter_map(|t| match w.wait_of(t) {
                Wait::Futex(f) => Some((f.kind, f.call.timed)),
                _ => None,
            })
            .collect();
        (kinds.len() == 8).then_some(kinds)
    });
    let mut want = vec![
        (FutexKind::Condvar, false),
        (FutexKind::Semaphore, false),
        (FutexKind::RwLock { writer: main }, false),
        (FutexKind::RwLock { writer: main }, false),
        (FutexKind::Join(main), false),
        (FutexKind::Mutex { owner: main }, false),
        (FutexKind::Mutex { owner: main }, false), // stdio
        (FutexKind::Mutex { owner: main }, true),
    ];
    // Numbers of threads may begin again in between, so each is one of them, in whatever order.
    for kind in &kinds {
        let at = want.iter().position(|one| one == kind).unwrap_or_else(|| panic!("{kind:?} of {kinds:?}"));
        want.swap_remove(at);
    }
}

#[test]
fn nobody_will_wake_it() {
    let dir = Dir::new("waits-lost");
    let program = dir.build("locks.c", &["-O2"]);
    let span = Duration::from_millis(80);
    // The holder has ended with the lock.
    let p = Running::program(&program, &["ended"]);
    let mut w = Watched::new(p.pid()).unwrap();
    until("the wait", || {
        // The holder may be listed for a moment yet after it was joined.
        w.scan();
        stays_lost(&mut w, p.pid(), span).then_some(())
    });
    match w.wait_of(p.pid()) {
        Wait::Futex(f) => assert!(matches!(f.kind, FutexKind::Mutex { owner: Owner::Gone { .. } }), "{f:?}"),
        other => panic!("{other:?}"),
    }
    // The lock is free, and the sleeper was not woken.
    let p = Running::program(&program, &["lost"]);
    let mut w = Watched::new(p.pid()).unwrap();
    until("the lost wake-up", || {
        let tid = w.scan().iter().find(|t| t.tid != p.pid())?.tid;
        stays_lost(&mut w, tid, span).then_some(())
    });
    // In a ring nothing is lost.
    let p = Running::program(&program, &["two"]);
    let mut w = Watched::new(p.pid()).unwrap();
    for t in w.scan() {
        assert!(!stays_lost(&mut w, t.tid, span));
    }
}

#[test]
fn semaphores_on_a_stack() {
    let dir = Dir::new("waits-parking");
    for level in ["-O0", "-O2"] {
        let program = dir.build("parking.cpp", &["-std=c++20", level]);
        for kind in ["binary", "counting", "atomic", "posix"] {
            let want = if kind == "posix" { FutexKind::Semaphore } else { FutexKind::Unknown };
            let (found, ..) = wait(&program, &[kind], |w| matches!(w, Wait::Futex(_)));
            assert!(matches!(&found, Wait::Futex(f) if f.kind == want && !f.lost()), "{level} {kind}: {found:?}");
        }
    }
}

#[test]
fn rust_and_park() {
    if std::env::var_os("ORBIT_INSPECT_HOLD").is_some() {
        let m = std::sync::Arc::new(std::sync::Mutex::new(()));
        let held = m.lock().unwrap();
        let other = m.clone();
        std::thread::spawn(move || drop(other.lock()));
        println!("\nready");
        std::thread::park();
        drop(held);
        return;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "rust_and_park", "--nocapture"]).env("ORBIT_INSPECT_HOLD", "1");
    let p = Running::start(&mut again);
    let mut w = Watched::new(p.pid()).unwrap();
    until("a mutex and a parked thread", || {
        let kinds: Vec<FutexKind> = w
            .scan()
            .iter()
            .filter_map(|t| match w.wait_of(t.tid) {
                Wait::Futex(f) => Some(f.kind),
                _ => None,
            })
            .collect();
        let mutex = FutexKind::Mutex { owner: Owner::Unknown };
        (kinds.contains(&mutex) && kinds.contains(&FutexKind::Parked)).then_some(())
    });
}

#[test]
fn scan_costs_little() {
    let dir = Dir::new("waits-cost");
    let program = dir.build("deep.c", &["-O2"]);
    for threads in [5, 98, 998] {
        let p = Running::program(&program, &[&threads.to_string()]);
        let mut w = Watched::new(p.pid()).unwrap();
        let mut rings = orbit_inspect::rings::RingWatch::new(&[p.pid()]).unwrap();
        let mut took: Vec<[Duration; 2]> = (0..31)
            .map(|_| {
                let t = std::time::Instant::now();
                assert_eq!(w.scan().len(), threads + 1);
                let scan = t.elapsed();
                let t = std::time::Instant::now();
                assert!(rings.scan().is_empty());
                [scan, t.elapsed()]
            })
            .collect();
        for (what, i) in [("scan", 0), ("search for rings", 1)] {
            took.sort_by_key(|t| t[i]);
            println!("{} threads: {what} takes {:?} at best, {:?} (median)", threads + 1, took[0][i], took[15][i]);
        }
    }
}
