//! A lock that was handed over is reported as held by its present holder, and is no lost wake-up;
//! one whose word says that it is free is.

mod common;
use common::{Dir, Running, children, until};
use orbit_inspect::rings::RingWatch;
use orbit_inspect::waits::{FutexKind, FutexWait, Owner, State, Wait, Watched, stays_lost};
use std::process::Command;
use std::sync::{Arc, RwLock};
use std::time::Duration;

const SPAN: Duration = Duration::from_millis(80);

/// The thread of this name.
fn thread(w: &mut Watched, name: &str) -> i32 {
    until(name, || w.scan().into_iter().find(|t| t.comm == name)).tid
}

/// What a thread waits for, which must be a futex.
fn futex(w: &mut Watched, tid: i32) -> FutexWait {
    until("the wait", || match w.wait_of(tid) {
        Wait::Futex(f) => Some(f),
        _ => None,
    })
}

#[test]
fn the_holder_is_the_one_that_has_it_now() {
    let dir = Dir::new("handed");
    let program = dir.build("handed.c", &["-O2"]);
    for kind in ["robust", "musl", "musl-recursive"] {
        let p = Running::program(&program, &["handed", kind]);
        let mut w = Watched::new(p.pid()).unwrap();
        let (holder, waiter) = (thread(&mut w, "holder"), thread(&mut w, "waiter"));
        let owner = match kind {
            "musl" => Owner::Unknown,
            _ => Owner::Thread { pid: p.pid(), tid: holder },
        };
        let wait = futex(&mut w, waiter);
        assert_eq!(wait.kind, FutexKind::Mutex { owner }, "{kind}: {wait:?}");
        assert_ne!(wait.word, Some(wait.call.expected), "{kind}: it was handed over");
        assert!(!wait.lost() && !stays_lost(&mut w, waiter, SPAN), "{kind}: {wait:?}");
        // Whoever gave it away waits for the waiter, which waits for somebody else now.
        assert_eq!(
            futex(&mut w, p.pid()).kind,
            FutexKind::Mutex { owner: Owner::Thread { pid: p.pid(), tid: waiter } }
        );
        let mut rings = RingWatch::new(&[p.pid()]).unwrap();
        assert_eq!(rings.scan(), [], "{kind}");
    }
}

#[test]
fn one_that_is_free_is_lost() {
    let dir = Dir::new("handed-free");
    let program = dir.build("handed.c", &["-O2"]);
    let modes = [["free", "robust"], ["free", "musl"], ["free", "musl-recursive"], ["rust", "free"]];
    for mode in modes {
        let p = Running::program(&program, &mode);
        let mut w = Watched::new(p.pid()).unwrap();
        let waiter = thread(&mut w, "waiter");
        until(mode[1], || stays_lost(&mut w, waiter, SPAN).then_some(()));
    }
}

#[test]
fn one_that_moved_on_is_not() {
    let dir = Dir::new("handed-moved");
    let program = dir.build("handed.c", &["-O2"]);
    for mode in [["rust", "read"], ["broadcast", ""]] {
        let p = Running::program(&program, &mode);
        let mut w = Watched::new(p.pid()).unwrap();
        let waiter = thread(&mut w, "waiter");
        let wait = futex(&mut w, waiter);
        assert_ne!(wait.word, Some(wait.call.expected), "{mode:?}");
        assert!(!wait.lost() && !stays_lost(&mut w, waiter, SPAN), "{mode:?}: {wait:?}");
    }
}

#[test]
fn readers_and_writers_of_rust() {
    if std::env::var_os("ORBIT_INSPECT_HOLD").is_some() {
        hold();
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "readers_and_writers_of_rust", "--nocapture"]).env("ORBIT_INSPECT_HOLD", "1");
    let p = Running::start(&mut again);
    let mut w = Watched::new(p.pid()).unwrap();
    // The reader saw no writer waiting; of the two writers one got the lock that both wanted. While
    // it is on its way there the lock is free.
    let held = FutexKind::RwLock { writer: Owner::Unknown };
    for names in [&["reader"][..], &["writer 1", "writer 2"]] {
        let tids: Vec<i32> = names.iter().map(|name| thread(&mut w, name)).collect();
        let (tid, wait) = until(names[0], || {
            tids.iter().find_map(|&tid| match w.wait_of(tid) {
                Wait::Futex(f) => (f.word != Some(f.call.expected) && f.kind == held).then_some((tid, f)),
                _ => None,
            })
        });
        assert!(!wait.lost() && !stays_lost(&mut w, tid, SPAN), "{wait:?}");
    }
}

fn forever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(1000));
    }
}

/// Two locks: one that a reader and then a writer want, one that two writers want, of whom one gets
/// it.
fn hold() -> ! {
    let (one, two) = (Arc::new(RwLock::new(())), Arc::new(RwLock::new(())));
    let named = |name: &str, f: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new().name(name.into()).spawn(f).unwrap();
        let me = std::process::id() as i32;
        let mut w = Watched::new(me).unwrap();
        let tid = thread(&mut w, name);
        until(name, || matches!(w.wait_of(tid), Wait::Futex(_)).then_some(()));
    };
    let (held, given) = (one.write().unwrap(), two.write().unwrap());
    let lock = one.clone();
    named("reader", Box::new(move || drop(lock.read())));
    let lock = one.clone();
    named("writer", Box::new(move || drop(lock.write())));
    for name in ["writer 1", "writer 2"] {
        let lock = two.clone();
        let keep = move || {
            let _kept = lock.write();
            forever()
        };
        named(name, Box::new(keep));
    }
    drop(given);
    println!("\nready");
    let _held = held;
    forever()
}

#[test]
fn one_of_two_processes() {
    let dir = Dir::new("handed-between");
    let program = dir.build("handed.c", &["-O2"]);
    let p = Running::program(&program, &["between"]);
    let child = children(p.pid())[0];
    let (mut w, mut other) = (Watched::new(p.pid()).unwrap(), Watched::new(child).unwrap());
    until("the stop", || other.scan().iter().any(|t| t.state == State::Stopped).then_some(()));
    assert!(futex(&mut w, p.pid()).lost(), "its word says that it is free");
    assert!(!stays_lost(&mut w, p.pid(), SPAN), "the former holder was stopped before it could wake a waiter");
    // SAFETY: a plain call on a process of the program started above.
    unsafe { libc::kill(child, libc::SIGCONT) };
    until("the lost wake-up", || stays_lost(&mut w, p.pid(), SPAN).then_some(()));
}

#[test]
fn one_whose_holder_was_a_process_that_has_ended() {
    let dir = Dir::new("handed-ended");
    let program = dir.build("handed.c", &["-O2"]);
    let p = Running::program(&program, &["between", "ended"]);
    let mut w = Watched::new(p.pid()).unwrap();
    until("the end of the holder to be seen", || stays_lost(&mut w, p.pid(), SPAN).then_some(()));
    assert!(matches!(futex(&mut w, p.pid()).kind, FutexKind::Mutex { owner: Owner::Gone { .. } }));
}
