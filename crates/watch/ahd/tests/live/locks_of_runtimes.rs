//! A deadlock of a runtime's own locks, right after the start, beside a thread that ticks: certain,
//! by the runtime's memory, or likely where that names no holder. Threads that take such locks in
//! one order are left alone.

use crate::common::{Dir, Program, Watcher, have};
use orbit_ahd::{Config, Event, Hang, Sure};
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

/// As `RING`, by calls, and with names: of a guarded list and of a bound method.
const CALLS: &str = "
import threading, time
left, right = threading.RLock(), threading.RLock()
class Guarded:
    def __init__(self, lock): self.lock = lock
    def take(self): self.lock.acquire()
def both(first, second):
    Guarded(first).take()
    first.acquire()
    time.sleep(0.4)
    take = second.acquire
    take()
def tick():
    while True:
        time.sleep(0.2)
threading.Thread(target=tick, daemon=True).start()
for name, order in (('pays', (left, right)), ('refunds', (right, left))):
    threading.Thread(target=both, args=order, name=name).start()
";

const JAVA: &str = "
import java.util.concurrent.locks.*;
public class Crossed {
    static void both(Object first, Object second) {
        synchronized (first) {
            try { Thread.sleep(400); } catch (InterruptedException e) { return; }
            synchronized (second) { }
        }
    }
    static void both(Lock first, Lock second) {
        first.lock();
        try {
            Thread.sleep(400);
            second.lock();
            second.unlock();
        } catch (InterruptedException e) {
        } finally {
            first.unlock();
        }
    }
    public static void main(String[] args) throws Exception {
        Object left = new Object(), right = new Object();
        Thread ticks = new Thread(() -> { while (true) try { Thread.sleep(100); } catch (InterruptedException e) { } });
        ticks.setDaemon(true);
        ticks.start();
        if (args.length > 0) {
            Lock fair = new ReentrantLock(true), write = new ReentrantReadWriteLock().writeLock();
            new Thread(() -> both(fair, write), \"one\").start();
            new Thread(() -> both(write, fair), \"two\").start();
            return;
        }
        new Thread(() -> both(left, right), \"one\").start();
        new Thread(() -> both(right, left), \"two\").start();
    }
}
";

/// Two goroutines take two locks, each holds the first for so many milliseconds: `crossed` in
/// opposite orders, once, else in the same one, for ever.
const GO: &str = "
package main

import (
	\"os\"
	\"sync\"
	\"time\"
)

func both(first, second *sync.Mutex, hold time.Duration) {
	first.Lock()
	defer first.Unlock()
	time.Sleep(hold * time.Millisecond)
	second.Lock()
	defer second.Unlock()
}

func main() {
	var left, right sync.Mutex
	var all sync.WaitGroup
	go func() {
		for range time.Tick(100 * time.Millisecond) {
		}
	}()
	if os.Args[1] == \"crossed\" {
		all.Add(2)
		go both(&left, &right, 300)
		go both(&right, &left, 300)
	} else {
		all.Add(1)
		for _, hold := range []time.Duration{700, 100, 5, 0} {
			go func(hold time.Duration) {
				for {
					both(&left, &right, hold)
				}
			}(hold)
		}
	}
	all.Wait()
}
";

/// The first report on a program that hangs; it is to be certain, of two threads in a ring, with
/// these names.
fn certain(command: &mut Command, what: &str, names: &[&str]) -> Vec<String> {
    let program = Program::start(command);
    let mut watcher = Watcher::of(program.pid(), Config::default());
    let hang: &Hang = watcher.hang();
    assert_eq!((hang.sure, hang.threads.len()), (Sure::Certain, 2), "{}", hang.why);
    assert!(hang.why.matches(what).count() == 2 && hang.cycle.len() == 2, "{}: {:?}", hang.why, hang.cycle);
    assert!(names.iter().all(|name| hang.why.contains(name)), "{}", hang.why);
    hang.runtime.clone()
}

#[test]
fn pythons_locks() {
    if !have("python3", "--version") {
        return;
    }
    certain(Command::new("python3").args(["-c", RING]), "Python lock", &[]);
    certain(Command::new("python3").args(["-c", CALLS]), "Python lock", &["(pays)", "(refunds)"]);
    for ordered in [ORDERED.to_owned(), ORDERED.replace("Lock()", "RLock()")] {
        let program = Program::start(Command::new("python3").args(["-c", &ordered]));
        let mut watcher = Watcher::of(program.pid(), Config::default());
        watcher.run(Duration::from_secs(6));
        let certain: Vec<&Hang> = watcher.hangs().into_iter().filter(|hang| hang.sure > Sure::Guess).collect();
        assert!(certain.is_empty(), "{certain:#?}");
    }
}

#[test]
fn javas_monitors_and_locks() {
    if !have("javac", "--version") || !have("java", "--version") {
        return;
    }
    let dir = Dir::new("crossed");
    let source = dir.0.join("Crossed.java");
    std::fs::write(&source, JAVA).expect("a file");
    assert!(Command::new("javac").arg("-d").arg(&dir.0).arg(&source).status().expect("javac").success());
    for arguments in [&[][..], &["locks"]] {
        let mut java = Command::new("java");
        let says = certain(java.arg("-cp").arg(&dir.0).arg("Crossed").args(arguments), "Java lock", &[]);
        assert!(says.iter().any(|line| line.starts_with("Found one Java-level deadlock")), "{says:?}");
    }
}

#[test]
fn locks_of_goroutines() {
    let dir = Dir::new("crossed-go");
    if !have("go", "version") {
        return;
    }
    let (source, program) = (dir.0.join("crossed.go"), dir.0.join("crossed"));
    std::fs::write(&source, GO).expect("a file");
    assert!(Command::new("go").args(["build", "-o"]).arg(&program).arg(&source).status().expect("go").success());
    let config = || Config { limit: Duration::from_secs(1), ..Config::default() };
    let crossed = Program::start(Command::new(&program).arg("crossed"));
    let mut watcher = Watcher::of(crossed.pid(), config());
    let is_likely = |event: &Event| matches!(event, Event::Hang(hang) if hang.sure == Sure::Likely);
    watcher.until("a likely report", |all| all.iter().any(is_likely));
    let hang = watcher.hangs().pop().expect("it");
    assert!(hang.why.matches("waits for sync.Mutex 0x").count() == 2, "{}", hang.why);
    let says = |line: &&String| line.contains("(sync.Mutex.Lock): main.both") && line.contains("crossed.go:");
    assert_eq!(hang.runtime.iter().filter(says).count(), 2, "{:?}", hang.runtime);
    let ordered = Program::start(Command::new(&program).arg("ordered"));
    let mut watcher = Watcher::of(ordered.pid(), config());
    watcher.run(Duration::from_secs(8));
    let above: Vec<&Hang> = watcher.hangs().into_iter().filter(|hang| hang.sure > Sure::Guess).collect();
    assert!(above.is_empty(), "{above:#?}");
}
