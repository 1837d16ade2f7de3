//! A deadlock of a runtime's own locks, right after the start, beside a thread that ticks: certain,
//! by the runtime's memory. Threads that take such locks in one order are left alone.

use crate::common::{Dir, Program, Watcher, have};
use orbit_ahd::{Config, Hang, Sure};
use std::process::Command;
use std::time::Duration;

const RING: &str = "
import threading, time
left, right = threading.Lock(), threading.RLock()
def both(first, second):
    with first:
        time.sleep(0.4)
        with second:
            pass
def tick():
    while True:
        time.sleep(0.2)
threading.Thread(target=tick, daemon=True).start()
for order in ((left, right), (right, left)):
    threading.Thread(target=both, args=order).start()
";

const ORDERED: &str = "
import threading, time
outer, inner = threading.Lock(), threading.Lock()
def both(nap):
    while True:
        with outer:
            time.sleep(nap)
            with inner:
                time.sleep(nap)
        with inner:
            time.sleep(nap / 4)
for nap in (0.9, 0.2, 0.01, 0.0):
    threading.Thread(target=both, args=(nap,)).start()
";

const JAVA: &str = "
public class Crossed {
    static void both(Object first, Object second) {
        synchronized (first) {
            try { Thread.sleep(400); } catch (InterruptedException e) { return; }
            synchronized (second) { }
        }
    }
    public static void main(String[] args) throws Exception {
        Object left = new Object(), right = new Object();
        Thread ticks = new Thread(() -> { while (true) try { Thread.sleep(100); } catch (InterruptedException e) { } });
        ticks.setDaemon(true);
        ticks.start();
        new Thread(() -> both(left, right), \"one\").start();
        new Thread(() -> both(right, left), \"two\").start();
    }
}
";

/// The first report on a program that hangs; it is to be certain, of two threads in a ring.
fn certain(command: &mut Command, what: &str) -> Vec<String> {
    let program = Program::start(command);
    let mut watcher = Watcher::of(program.pid(), Config::default());
    let hang: &Hang = watcher.hang();
    assert_eq!((hang.sure, hang.threads.len()), (Sure::Certain, 2), "{}", hang.why);
    assert!(hang.why.matches(what).count() == 2 && hang.cycle.len() == 2, "{}: {:?}", hang.why, hang.cycle);
    hang.runtime.clone()
}

#[test]
fn pythons_locks_by_with() {
    if !have("python3", "--version") {
        return;
    }
    certain(Command::new("python3").args(["-c", RING]), "Python lock");
    let program = Program::start(Command::new("python3").args(["-c", ORDERED]));
    let mut watcher = Watcher::of(program.pid(), Config::default());
    watcher.run(Duration::from_secs(6));
    let certain: Vec<&Hang> = watcher.hangs().into_iter().filter(|hang| hang.sure > Sure::Guess).collect();
    assert!(certain.is_empty(), "{certain:#?}");
}

#[test]
fn javas_monitors() {
    if !have("javac", "--version") || !have("java", "--version") {
        return;
    }
    let dir = Dir::new("crossed");
    let source = dir.0.join("Crossed.java");
    std::fs::write(&source, JAVA).expect("a file");
    assert!(Command::new("javac").arg("-d").arg(&dir.0).arg(&source).status().expect("javac").success());
    let says = certain(Command::new("java").arg("-cp").arg(&dir.0).arg("Crossed"), "Java monitor");
    assert!(says.iter().any(|line| line.starts_with("Found one Java-level deadlock")), "{says:?}");
}
