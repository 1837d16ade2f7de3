//! Hangs of programs in Python and Rust are reported with the thread and with functions by the
//! names of the language.

use crate::common::{Dir, Program, Watcher, functions, have};
use orbit_ahd::{Config, Kind};
use std::process::Command;
use std::time::Duration;

const SPINS: &str = "\
import os, select
def inner():
    while True:
        pass
def outer():
    inner()
events, _ = os.pipe()
for i in range(400):
    select.select([events], [], [], 0.01)
outer()
";

const DEADLOCK: &str = "\
import threading, time
lock = threading.Lock()
def takes_it_twice():
    lock.acquire()
    lock.acquire()
time.sleep(0.3)
takes_it_twice()
";

#[test]
fn python() {
    if !have("python3", "--version") {
        return;
    }
    let dir = Dir::new("python");
    for (name, text, kind, want) in [
        ("spins.py", SPINS, Kind::Busy, ["inner", "outer", "<module>"].as_slice()),
        ("deadlock.py", DEADLOCK, Kind::Blocked, &["takes_it_twice", "<module>"]),
    ] {
        let file = dir.0.join(name);
        std::fs::write(&file, text).expect("a file");
        let p = Program::start(Command::new("python3").arg(&file));
        // The command may be a script that runs the interpreter.
        let mut w = Watcher::of(p.pid(), Config { limit: Duration::from_secs(1), ..Config::default() });
        let h = w.hang();
        assert_eq!(h.kind, kind, "{h:#?}");
        let t = &h.threads[0];
        if t.python.is_empty() && t.note.is_some() {
            println!("SKIP: needs CPython 3.9 to 3.13: {:?}", t.note);
            return;
        }
        let functions: Vec<&str> = t.python.iter().map(|f| f.function.as_str()).collect();
        assert_eq!(functions, want, "{h:#?}");
        for f in &t.python {
            assert!(f.file.ends_with(name) && f.line.is_some(), "{f:?}");
            let line = text.lines().nth(f.line.unwrap_or(0) as usize - 1).expect("such a line");
            let inside = if f.function == "inner" { ["while", "pass"] } else { ["(", ")"] };
            assert!(inside.iter().any(|w| line.contains(w)), "{f:?} is at {line:?}");
        }
        assert!(!t.stack.is_empty(), "native frames too: {h:#?}");
    }
}

/// Where the Rust program hangs.
#[inline(never)]
fn rust_spins_here(mut n: u64) -> u64 {
    loop {
        n = std::hint::black_box(n).wrapping_add(1);
    }
}

#[test]
fn rust() {
    const AGAIN: &str = "ORBIT_AHD_TEST_RUST";
    if std::env::var_os(AGAIN).is_some() {
        let worker = std::thread::Builder::new().name("worker-7".into()).spawn(|| {
            let mut events = [libc::pollfd { fd: 0, events: libc::POLLPRI, revents: 0 }];
            for _ in 0..400 {
                // SAFETY: one descriptor, which outlives the call.
                unsafe { libc::poll(events.as_mut_ptr(), 1, 10) };
            }
            rust_spins_here(1)
        });
        let _ = worker.expect("a thread").join();
        return;
    }
    let itself = std::env::current_exe().expect("the test");
    let p = Program::start(Command::new(itself).args(["languages::rust", "--exact", "--nocapture"]).env(AGAIN, "1"));
    let mut w = Watcher::of(p.pid(), Config { limit: Duration::from_secs(1), ..Config::default() });
    let h = w.hang();
    assert_eq!((h.kind, h.comm.as_str()), (Kind::Busy, "worker-7"), "{h:#?}");
    assert!(functions(h).contains(&"live::languages::rust_spins_here"), "{:?}", functions(h));
    let at = h.threads[0].stack.iter().find(|f| f.function.as_deref().is_some_and(|n| n.ends_with("rust_spins_here")));
    let at = at.expect("the frame");
    assert!(at.file.as_ref().is_some_and(|f| f.ends_with("languages.rs")) && at.line.is_some(), "{at}");
    assert!(h.why.contains("rust_spins_here") && h.why.contains("has not been back in its loop"), "{}", h.why);
}
