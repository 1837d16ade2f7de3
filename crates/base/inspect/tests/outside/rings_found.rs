//! Every kind of ring is found, whole, with the right members; rings that are none are not.

use crate::common;
use common::{Dir, Running, children, until};
use orbit_inspect::Sure;
use orbit_inspect::rings::{Ring, RingWatch};
use orbit_inspect::waits::{FutexKind, Key, State, Wait, Watched};
use std::path::Path;
use std::time::Duration;

fn one_ring(program: &Path, mode: &str, members: usize) -> Ring {
    let p = Running::program(program, &[mode]);
    let mut watch = RingWatch::new(&[p.pid()]).unwrap();
    let ring = until(mode, || {
        let mut rings = watch.scan();
        assert!(rings.len() <= 1, "{mode}: {rings:?}");
        rings.pop()
    });
    println!("{mode}: {ring}");
    assert_eq!(ring.members.len(), members, "{mode}");
    for (i, m) in ring.members.iter().enumerate() {
        assert_eq!(m.waits_for, ring.members[(i + 1) % members].tid, "{mode}");
        assert_eq!(m.pid, p.pid(), "{mode}");
    }
    assert_eq!(watch.scan(), std::slice::from_ref(&ring), "{mode}: the same again");
    ring
}

#[test]
fn rings_of_one_process() {
    let dir = Dir::new("rings");
    let program = dir.build("locks.c", &["-O2"]);
    for (mode, members) in [("self", 1), ("two", 2), ("five", 5), ("robust", 2), ("recursive", 2)] {
        let ring = one_ring(&program, mode, members);
        assert_eq!(ring.sure, Sure::Certain, "{mode}");
        assert!(ring.members.iter().all(|m| matches!(m.kind, FutexKind::Mutex { .. })), "{mode}");
    }
    let ring = one_ring(&program, "rwlock", 2);
    assert!(ring.members.iter().all(|m| matches!(m.kind, FutexKind::RwLock { .. })), "{ring:?}");
    let ring = one_ring(&program, "join", 2);
    assert!(ring.members.iter().any(|m| matches!(m.kind, FutexKind::Join(_))), "{ring:?}");
    // The C library notices this one and parks a thread for ever; the mutex is then found on its
    // stack.
    let ring = one_ring(&program, "pi", 2);
    assert!(ring.sure >= Sure::Likely);
}

#[test]
fn rings_with_rwlocks_that_processes_may_share() {
    let dir = Dir::new("rings-between");
    let program = dir.build("locks.c", &["-O2"]);
    for (mode, rwlocks) in [("between-rwlock", 2), ("rwlock-mutex", 1), ("between-rwlock-mutex", 1)] {
        let ring = one_ring(&program, mode, 2);
        assert_eq!(ring.sure, Sure::Certain, "{ring}");
        let found = ring.members.iter().filter(|m| matches!(m.kind, FutexKind::RwLock { .. })).count();
        assert_eq!(found, rwlocks, "{ring}");
    }
}

#[test]
fn one_that_only_joins_is_no_member() {
    let dir = Dir::new("rings-join");
    let program = dir.build("locks.c", &["-O2"]);
    let p = Running::program(&program, &["pi", "join"]);
    let mut watched = Watched::new(p.pid()).unwrap();
    until("the first thread to join", || match watched.wait_of(p.pid()) {
        Wait::Futex(f) => matches!(f.kind, FutexKind::Join(_)).then_some(()),
        _ => None,
    });
    let mut watch = RingWatch::new(&[p.pid()]).unwrap();
    let ring = until("a ring", || watch.scan().pop());
    assert_eq!(ring.members.len(), 2, "{ring}");
    assert!(ring.members.iter().all(|m| m.tid != p.pid()), "{ring}");
    assert_eq!(ring.sure, Sure::Likely, "{ring}");
}

#[test]
fn when_the_first_thread_has_ended() {
    let dir = Dir::new("rings-left");
    let program = dir.build("locks.c", &["-O2"]);
    let p = Running::program(&program, &["two", "leave"]);
    let mut watched = Watched::new(p.pid()).unwrap();
    let left = |w: &mut Watched| w.scan().iter().any(|t| t.tid == p.pid() && t.state == State::Ended);
    until("the first thread to end", || left(&mut watched).then_some(()));
    let mut watch = RingWatch::new(&[p.pid()]).unwrap();
    let ring = until("a ring", || watch.scan().pop());
    assert_eq!((ring.members.len(), ring.sure), (2, Sure::Certain), "{ring}");
}

#[test]
fn waits_that_end_by_themselves_are_no_ring() {
    let dir = Dir::new("rings-none");
    let program = dir.build("locks.c", &["-O2"]);
    for mode in ["timed", "try"] {
        let p = Running::program(&program, &[mode]);
        let mut watched = Watched::new(p.pid()).unwrap();
        let mut watch = RingWatch::new(&[p.pid()]).unwrap();
        if mode == "timed" {
            until("both to wait", || {
                let asleep = watched.scan().iter().filter(|t| t.state == State::Sleeping).count();
                (asleep == 3).then_some(())
            });
        }
        for _ in 0..300 {
            assert_eq!(watch.scan(), [], "{mode}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn rwlocks_across_two_processes() {
    let dir = Dir::new("rings-rwlocks");
    let program = dir.build("locks.c", &["-O2"]);
    let p = Running::program(&program, &["between-processes"]);
    let pids = children(p.pid());
    let mut watch = RingWatch::new(&pids).unwrap();
    let ring = until("a ring", || watch.scan().pop());
    assert_eq!((ring.members.len(), ring.sure), (2, Sure::Certain), "{ring}");
    assert!(ring.members.iter().all(|m| pids.contains(&m.pid) && m.waits_for != m.tid), "{ring}");
    let rwlock = |k: &FutexKind| matches!(k, FutexKind::RwLock { .. });
    assert!(ring.members.iter().all(|m| rwlock(&m.kind) && matches!(m.key, Key::Shared { .. })), "{ring:?}");
}

#[test]
fn ring_across_two_processes() {
    let dir = Dir::new("rings-shared");
    let program = dir.build("locks.c", &["-O2"]);
    let file = dir.0.join("shared");
    let file = file.to_str().unwrap();
    let made = std::process::Command::new(&program).args(["make", file]).status().unwrap();
    assert!(made.success());
    let a = Running::program(&program, &["shared0", file]);
    let b = Running::program(&program, &["shared1", file]);
    let mut watch = RingWatch::new(&[a.pid(), b.pid()]).unwrap();
    let ring = until("a ring", || watch.scan().pop());
    println!("{ring}");
    let mut pids: Vec<i32> = ring.members.iter().map(|m| m.pid).collect();
    pids.sort_unstable();
    let mut want = vec![a.pid(), b.pid()];
    want.sort_unstable();
    assert_eq!(pids, want);
    assert!(ring.members.iter().all(|m| matches!(m.key, Key::Shared { .. })), "{ring:?}");
    assert_ne!(ring.members[0].key, ring.members[1].key);
    // One of them alone shows no ring.
    assert_eq!(RingWatch::new(&[a.pid()]).unwrap().scan(), []);
    drop(b);
    until("the ring to be gone", || watch.scan().is_empty().then_some(()));
}
