//! A program in a pid namespace and root directory of its own knows its threads by other ids and
//! its files by other names; stacks, waits and rings are reported in ours.

mod common;
use common::{Dir, Running, children, until};
use orbit_inspect::Sure;
use orbit_inspect::rings::RingWatch;
use orbit_inspect::stacks::Unwinder;
use orbit_inspect::waits::{FutexKind, Owner, Wait, Watched};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Starts the program there; `None` if that is not possible here. The id is the program's own, as
/// we see it.
fn contained(program: &Path, mode: &str) -> Option<(Running, i32)> {
    let unshare = || {
        let mut c = Command::new("unshare");
        c.args(["--pid", "--mount", "--fork", "--kill-child"]);
        c
    };
    let possible = unshare().arg("true").stderr(Stdio::null()).status().is_ok_and(|s| s.success());
    if !possible {
        println!("SKIP: needs the right to make a pid namespace");
        return None;
    }
    let r = Running::start(unshare().arg(program).arg(mode));
    let pid = until("the program", || children(r.pid()).pop());
    Some((r, pid))
}

#[test]
fn rings_and_joins() {
    let dir = Dir::new("contained");
    let program = dir.build("locks.c", &["-O2", "-static"]);
    let Some((_r, pid)) = contained(&program, "five") else {
        return;
    };
    let mut watch = RingWatch::new(&[pid]).unwrap();
    let ring = until("the ring", || watch.scan().pop());
    assert_eq!(ring.members.len(), 5, "{ring}");
    for m in &ring.members {
        assert!(Path::new(&format!("/proc/{pid}/task/{}", m.tid)).exists(), "{ring}");
    }
    let (_r, pid) = contained(&program, "each").unwrap();
    let main = Owner::Thread { pid, tid: pid };
    let mut w = Watched::new(pid).unwrap();
    until("the join", || {
        let tids = w.tids();
        let kinds: Vec<FutexKind> = tids
            .into_iter()
            .filter_map(|t| match w.wait_of(t) {
                Wait::Futex(f) => Some(f.kind),
                _ => None,
            })
            .collect();
        w.scan();
        (kinds.contains(&FutexKind::Join(main)) && kinds.contains(&FutexKind::Mutex { owner: main })).then_some(())
    });
}

#[test]
fn rwlocks_whose_word_is_the_id_of_a_thread() {
    // The words of glibc's rwlocks are 1, 2 and 3, which are ids of the program's own threads and
    // processes here.
    let dir = Dir::new("contained-rwlocks");
    let program = dir.build("locks.c", &["-O2", "-static"]);
    for mode in ["between-rwlock", "between-rwlock-mutex", "between-processes"] {
        let Some((_r, pid)) = contained(&program, mode) else {
            return;
        };
        let pids = if mode == "between-processes" { children(pid) } else { vec![pid] };
        let mut watch = RingWatch::new(&pids).unwrap();
        let ring = until(mode, || watch.scan().pop());
        assert_eq!((ring.members.len(), ring.sure), (2, Sure::Certain), "{mode}: {ring}");
        assert!(ring.members.iter().any(|m| matches!(m.kind, FutexKind::RwLock { .. })), "{mode}: {ring}");
    }
}

#[test]
fn processes_that_take_turns_at_a_rwlock() {
    let dir = Dir::new("contained-turns");
    let program = dir.build("locks.c", &["-O2", "-static"]);
    let Some((_r, pid)) = contained(&program, "between-turns") else {
        return;
    };
    let pids = children(pid);
    let mut watch = RingWatch::new(&pids).unwrap();
    let mut readers: Vec<Watched> = pids[1..].iter().map(|&p| Watched::new(p).unwrap()).collect();
    let writer = Owner::Thread { pid: pids[0], tid: pids[0] };
    let mut waited = 0;
    for _ in 0..300 {
        assert_eq!(watch.scan(), []);
        for reader in &mut readers {
            let Wait::Futex(f) = reader.wait_of(reader.pid()) else { continue };
            assert!(matches!(f.kind, FutexKind::RwLock { .. } | FutexKind::Unknown), "{f:?}");
            waited += u32::from(f.kind == FutexKind::RwLock { writer });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(waited > 100, "{waited} samples found a reader that waits for the writer");
}

#[test]
fn files_under_another_root() {
    let dir = Dir::new("contained-root");
    let program = dir.build("deep.c", &["-O2", "-static"]);
    let root = dir.0.join("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::rename(&program, root.join("inside")).unwrap();
    let possible = Command::new("chroot").arg(&root).arg("/missing").stderr(Stdio::null()).status();
    if !possible.is_ok_and(|s| s.code() == Some(127)) {
        println!("SKIP: needs the right to change the root directory");
        return;
    }
    let p = Running::start(Command::new("chroot").arg(&root).args(["/inside", "0"]));
    let mut u = Unwinder::new(p.pid()).unwrap();
    until("the names", || {
        let s = u.capture(&[]).pop()?;
        let names: Vec<&str> = s.frames.iter().filter_map(|f| f.function.as_deref()).collect();
        (names.contains(&"gamma_park") && names.contains(&"main")).then_some(())
    });
}
