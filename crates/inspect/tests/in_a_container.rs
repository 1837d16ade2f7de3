//! A program in a pid namespace and root directory of its own knows its threads by other ids and its files by other names;
//! stacks, waits and rings are told in ours.

mod common;
use common::{Dir, Running, until};
use orbit_inspect::rings::RingWatch;
use orbit_inspect::stacks::Unwinder;
use orbit_inspect::waits::{FutexKind, Owner, Wait, Watched};
use std::path::Path;
use std::process::{Command, Stdio};

/// Starts the program there; `None` if that is not possible here. The id is the program's own, as we see it.
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
    let path = format!("/proc/{0}/task/{0}/children", r.pid());
    let pid = until("the program", || std::fs::read_to_string(&path).ok()?.trim().parse().ok());
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
