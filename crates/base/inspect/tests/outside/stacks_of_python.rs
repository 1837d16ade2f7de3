//! Python's own frames with function, file and line, for each interpreter on this machine that is
//! known.

use crate::common;
use common::{Dir, Running, have, until};
use orbit_inspect::{Sure, python};
use std::process::Command;

const PROGRAM: &str = "\
import threading, time
class Keeper:
    def hold(self, n):
        if n == 0:
            time.sleep(1000)
        self.hold(
            n - 1)
def held():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
threading.Thread(target=Keeper().hold, args=(2,), daemon=True).start()
threading.Thread(target=held, daemon=True).start()
print('ready', flush=True)
\u{e4}_\u{4e2d} = 1
def gr\u{fc}n_\u{4e2d}():
    time.sleep(1000)
gr\u{fc}n_\u{4e2d}()
";

/// Interpreters by the names they usually have, and those in `ORBIT_PYTHONS` (paths, with colons
/// between), each once.
fn interpreters() -> Vec<String> {
    let mut seen = Vec::new();
    let mut out = Vec::new();
    let usual = "python3:/usr/bin/python3:python3.9:python3.10:python3.11:python3.12:python3.13";
    let more = std::env::var("ORBIT_PYTHONS").unwrap_or_default();
    for name in usual.split(':').chain(more.split(':')) {
        if name.is_empty() || !have(name, "--version") {
            continue;
        }
        let code = "import sys; print(sys.executable, sys.version_info[:2], sys.implementation.name)";
        let version = Command::new(name).args(["-c", code]).output().unwrap().stdout;
        let version = String::from_utf8_lossy(&version).into_owned();
        if !seen.contains(&version) {
            seen.push(version);
            out.push(name.to_owned());
        }
    }
    out
}

#[test]
fn frames_of_every_thread() {
    let all = interpreters();
    if all.is_empty() {
        println!("SKIP: needs python3");
        return;
    }
    let dir = Dir::new("python");
    let file = dir.0.join("keeps.py");
    std::fs::write(&file, PROGRAM).unwrap();
    for name in all {
        let p = Running::start(Command::new(&name).arg(&file));
        let python = match python::find(p.pid()) {
            Ok(Some(python)) => python,
            Err(e) => {
                println!("SKIP: {name}: {e}");
                continue;
            }
            Ok(None) => panic!("{name} was not found to be Python"),
        };
        println!("{name}: {:?}", python.version());
        let threads = until("all three to sleep", || {
            let t = python.stacks();
            let waiting = |f: &str| t.iter().any(|t| t.frames.first().is_some_and(|x| x.function.ends_with(f)));
            (t.len() == 3 && waiting("hold") && waiting("held") && waiting("\u{4e2d}")).then_some(t)
        });
        for t in &threads {
            assert!(!t.cut, "{t:#?}");
            assert!(t.frames.iter().all(|f| f.line.is_some()), "{t:#?}");
        }
        let main = threads.iter().find(|t| t.tid == p.pid()).unwrap();
        let frames: Vec<_> = main.frames.iter().map(|f| (f.function.as_str(), f.line.unwrap())).collect();
        assert_eq!(frames, [("gr\u{fc}n_\u{4e2d}", 17), ("<module>", 18)]);
        assert_eq!(main.frames[0].file, file.to_str().unwrap());
        let hold = threads.iter().find(|t| t.frames[0].function.ends_with("hold")).unwrap();
        let lines: Vec<_> = hold.frames.iter().take(3).map(|f| f.line.unwrap()).collect();
        // The line of a call spread over two is its first or its second, by version.
        assert!(lines[0] == 5 && (6..=7).contains(&lines[1]) && lines[1] == lines[2], "{lines:?}");
        if python.version() >= (3, 11) {
            assert_eq!(hold.frames[0].function, "Keeper.hold");
        }
        let mut tids: Vec<i32> = threads.iter().map(|t| t.tid).collect();
        tids.sort_unstable();
        let want = std::fs::read_dir(format!("/proc/{}/task", p.pid())).unwrap().count();
        tids.dedup();
        assert_eq!(tids.len(), want);
        until("all to be read while asleep", || python.stacks().iter().all(|t| t.sure == Sure::Certain).then_some(()));
    }
}

#[test]
fn holder_of_the_lock() {
    if !have("python3", "--version") {
        println!("SKIP: needs python3");
        return;
    }
    let busy = "print('ready', flush=True)\nwhile True: pass";
    let p = Running::start(Command::new("python3").args(["-c", busy]));
    match python::find(p.pid()) {
        Ok(Some(python)) => {
            until("the lock to be held", || (python.lock_holder() == Some(p.pid())).then_some(()));
        }
        other => println!("SKIP: needs CPython 3.9 to 3.13, not {other:?}"),
    }
}

#[test]
fn other_programs_are_none() {
    let p = common::Running::start(Command::new("sh").args(["-c", "echo ready; exec sleep 1000"]));
    assert!(python::find(p.pid()).unwrap().is_none());
}
