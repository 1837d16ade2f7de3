//! A thread of Python's that spins is reported though others are awake, which ask for the
//! interpreter's lock now and then; one that gets back to its loop is not. One that sleeps with
//! that lock is named first.

use crate::common::{Dir, Program, Watcher, have};
use orbit_ahd::{Config, Event, Kind};
use orbit_linux::perf::{Access, Counter, Kind as Count};
use std::process::Command;
use std::time::Duration;

/// Another thread wakes up each 20 ms. The first one takes requests from a socket, each worth the
/// CPU time of the second argument, s; the one whose number is the first argument ends only when a
/// signal comes.
const SERVER: &str = "
import signal, socket, sys, threading, time
enough = False
def on_signal(*_):
    global enough
    enough = True
signal.signal(signal.SIGUSR1, on_signal)
def ticks():
    while True: time.sleep(0.02)
def works(cpu):
    end = time.thread_time() + cpu
    while time.thread_time() < end: pass
def never_ends():
    while not enough: pass
def serve(end):
    n = 0
    while True:
        end.recv(1)
        n += 1
        never_ends() if n == int(sys.argv[1]) else works(float(sys.argv[2]))
ours, theirs = socket.socketpair()
def asks():
    while True:
        time.sleep(0.05)
        theirs.send(b'x')
threading.Thread(target=ticks, daemon=True).start()
threading.Thread(target=asks, daemon=True).start()
serve(ours)
";

fn start(dir: &Dir, at: &str, works: &str) -> Program {
    let file = dir.0.join("server.py");
    std::fs::write(&file, SERVER).expect("a file");
    Program::start(Command::new("python3").arg(&file).arg(at).arg(works))
}

/// Whether instructions can be watched in another thread.
fn watches() -> bool {
    let addr = watches as fn() -> bool as usize;
    let watched = Counter::open_thread(0, Count::Breakpoint { addr, len: 1, access: Access::Execute });
    if let Err(e) = &watched {
        println!("SKIP: needs breakpoints on instructions: {e}");
    }
    watched.is_ok()
}

#[test]
fn spins_beside_others() {
    let dir = Dir::new("python-spins");
    if !have("python3", "--version") || !watches() {
        return;
    }
    // Little work before: it sleeps in its loop on a loaded machine too, and so is known to have
    // one. More requests than it takes to learn that: some of the first are not seen.
    let p = start(&dir, "150", "0.002");
    let mut w = Watcher::of(p.pid(), Config { limit: Duration::from_secs(1), ..Config::default() });
    let h = w.hang();
    // By luck, when nobody asks for the lock for long enough, it is reported in the end anyhow.
    let used = std::fs::read_to_string(format!("/proc/{}/schedstat", p.pid())).expect("it runs");
    let used: u64 = used.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    assert!(used < 6_000_000_000, "reported after {used} ns of CPU");
    assert_eq!((h.kind, h.tid), (Kind::Busy, p.pid()), "{h:#?}");
    let t = &h.threads[0];
    if t.python.is_empty() && t.note.is_some() {
        println!("SKIP: needs CPython 3.9 to 3.13: {:?}", t.note);
    } else {
        let functions: Vec<&str> = t.python.iter().map(|f| f.function.as_str()).collect();
        assert_eq!(functions, ["never_ends", "serve", "<module>"], "{h:#?}");
    }
    // It continues and is not reported again, nor as recovered, until it gets back.
    w.run(Duration::from_secs(3));
    let recovered = |all: &[Event]| all.iter().any(|e| matches!(e, Event::Recovered { kind: Kind::Busy, .. }));
    assert!(w.hangs().len() == 1 && !recovered(&w.events), "{:#?}", w.events);
    p.signal(libc::SIGUSR1);
    w.until("the end of the hang", recovered);
    assert_eq!(w.hangs().len(), 1, "{:#?}", w.events);
}

#[test]
fn works_beside_others() {
    let dir = Dir::new("python-works");
    if !have("python3", "--version") {
        return;
    }
    for works in ["0.01", "0.04", "0.2"] {
        let p = start(&dir, "0", works);
        let mut w = Watcher::of(p.pid(), Config { limit: Duration::from_secs(1), ..Config::default() });
        w.run(Duration::from_secs(8));
        w.quiet();
    }
}

/// A thread blocks in a call to C that keeps the interpreter's lock.
const KEEPS_LOCK: &str = "
import ctypes, os, select, threading, time
libc = ctypes.PyDLL(None)
events, _ = os.pipe()
empty, _ = os.pipe()
def keeps():
    time.sleep(6)
    libc.read(empty, ctypes.create_string_buffer(1), 1)
threading.Thread(target=keeps, daemon=True).start()
while True:
    select.select([events], [], [], 0.01)
";

#[test]
fn sleeps_with_the_global_lock() {
    if !have("python3", "--version") {
        return;
    }
    let p = Program::start(Command::new("python3").args(["-c", KEEPS_LOCK]));
    let mut w = Watcher::of(p.pid(), Config { limit: Duration::from_secs(1), ..Config::default() });
    let h = w.hang();
    let t = &h.threads[0];
    if t.python.is_empty() && t.note.is_some() {
        println!("SKIP: needs CPython 3.9 to 3.13: {:?}", t.note);
        return;
    }
    assert!(h.tid != p.pid() && t.python.iter().any(|f| f.function == "keeps"), "{h:#?}");
    assert!(h.why.contains(&format!("waits for Python's global lock (GIL), which thread {}", h.tid)), "{}", h.why);
    let waits = format!("waits for Python's global lock (GIL), held by thread {}", h.tid);
    assert!(h.threads.iter().any(|t| t.tid == p.pid() && t.does == waits), "{h:#?}");
}
