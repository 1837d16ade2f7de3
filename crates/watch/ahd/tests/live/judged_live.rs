//! The detector that judges facts, on living programs: what it reports, that it says when a hang is
//! over, and that what it recorded gives the same verdicts again.

use crate::common::{Dir, PATIENCE, Program};
use orbit_ahd::{Config, Event, Hang, Kind, Limits, Sure, Watcher, replay};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const RING: &str = r#"
#include <pthread.h>
#include <unistd.h>
static pthread_mutex_t a = PTHREAD_MUTEX_INITIALIZER, b = PTHREAD_MUTEX_INITIALIZER;
static void *other(void *x) { pthread_mutex_lock(&b); usleep(300000); pthread_mutex_lock(&a); return x; }
int main(void) { pthread_t t; pthread_create(&t, 0, other, 0); pthread_mutex_lock(&a); usleep(300000); pthread_mutex_lock(&b); return 0; }
"#;

const HOLDS: &str = r#"
#include <pthread.h>
#include <unistd.h>
static pthread_mutex_t a = PTHREAD_MUTEX_INITIALIZER;
static void *other(void *x) { for (;;) { pthread_mutex_lock(&a); pthread_mutex_unlock(&a); usleep(10000); } return x; }
int main(void) { pthread_t t; pthread_create(&t, 0, other, 0); usleep(500000); pthread_mutex_lock(&a); sleep(8); pthread_mutex_unlock(&a); for (;;) sleep(1); }
"#;

const COMPUTES: &str = r#"
#include <unistd.h>
int main(void) { for (int i = 0; i < 5; i++) usleep(100000); for (volatile unsigned long x = 0;; x++) {} }
"#;

/// A lock that keeps no owner; the thread that holds it is the last to wait for it.
const TAKES_AGAIN: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>
#include <linux/futex.h>
#include <sys/syscall.h>
static atomic_int word;
__attribute__((noinline)) void futex_wait(void) {
    register long limit asm("r10") = 0;
    long result = SYS_futex;
    asm volatile("syscall" : "+a"(result) : "D"(&word), "S"(FUTEX_WAIT | FUTEX_PRIVATE_FLAG), "d"(2), "r"(limit) : "rcx", "r11", "memory");
}
__attribute__((noinline)) void in_section(int holds) {
    while (atomic_exchange(&word, 2) != 0) futex_wait();
    if (holds) { usleep(1000000); raise(SIGUSR1); }
    atomic_store(&word, 0);
}
static void handler(int signal) { in_section(signal != SIGUSR1); }
static void *waits(void *x) { while (atomic_load(&word) == 0) usleep(1000); in_section(0); return x; }
static void *holds(void *x) { in_section(1); return x; }
int main(void) {
    pthread_t t;
    signal(SIGUSR1, handler);
    for (int i = 0; i < 40; i++) pthread_create(&t, 0, waits, 0);
    pthread_create(&t, 0, holds, 0);
    pthread_setname_np(t, "holds");
    for (;;) sleep(1);
}
"#;

fn config(limit: u64, record: Option<PathBuf>) -> Config {
    Config { limit: Duration::from_secs(limit), record, ..Config::default() }
}

/// Scans until the condition holds of all events so far.
fn until(watcher: &mut Watcher, what: &str, is: impl Fn(&[Event]) -> bool) -> Vec<Event> {
    let (start, mut all) = (Instant::now(), Vec::new());
    while !is(&all) {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}: {all:?}");
        std::thread::sleep(watcher.pause());
        all.extend(watcher.tick());
    }
    all
}

fn hangs(events: &[Event]) -> Vec<&Hang> {
    events.iter().filter_map(|e| if let Event::Hang(h) = e { Some(&**h) } else { None }).collect()
}

#[test]
fn a_ring_is_one_report_and_its_recording_gives_the_same() {
    let dir = Dir::new("judged-ring");
    let Some(path) = dir.build("ring", RING) else { return };
    let program = Program::start(&mut Command::new(path));
    let file = dir.0.join("facts.jsonl");
    let mut watcher = Watcher::new(config(5, Some(file.clone())));
    watcher.add(program.pid()).expect("the program");
    let mut events = until(&mut watcher, "a ring", |all| !hangs(all).is_empty());
    // Whatever else is found of it is no news.
    for _ in 0..20 {
        std::thread::sleep(watcher.pause());
        events.extend(watcher.tick());
    }
    let all = hangs(&events);
    assert_eq!(all.len(), 1, "{all:?}");
    let hang = all[0];
    assert_eq!((hang.kind, hang.sure, hang.cycle.len(), hang.threads.len()), (Kind::Blocked, Sure::Certain, 2, 2));
    assert!(hang.threads.iter().all(|t| t.stack.len() > 2), "{hang:?}");
    drop(watcher);
    let records = replay::read(&file).expect("a recording");
    let mut rings = 0;
    replay::replay(&records, &Limits::default(), &mut |_, verdicts| {
        rings += verdicts.iter().filter(|v| v.sure == Sure::Certain && v.threads.len() == 2).count();
    });
    assert!(rings > 10, "{rings} scans show the ring");
}

#[test]
fn a_lock_held_beyond_the_limit_is_reported_and_then_over() {
    let dir = Dir::new("judged-holds");
    let Some(path) = dir.build("holds", HOLDS) else { return };
    let program = Program::start(&mut Command::new(path));
    let mut watcher = Watcher::new(config(2, None));
    watcher.add(program.pid()).expect("the program");
    let over = |e: &Event| matches!(e, Event::Recovered { .. });
    let events = until(&mut watcher, "the end of the hang", |all| all.iter().any(over));
    // The holder sleeps by the clock: it will give the lock back.
    let held: Vec<&Hang> = hangs(&events).into_iter().filter(|h| h.sure == Sure::Guess).collect();
    assert_eq!(held.len(), 1, "{events:?}");
    assert_eq!(held[0].tid, program.pid(), "the holder first");
    assert!(held[0].why.contains(" (a) for ") && held[0].why.contains("held by"), "{}", held[0].why);
}

#[test]
fn of_many_that_wait_the_one_that_takes_the_lock_again_in_a_handler_is_first() {
    let dir = Dir::new("judged-again");
    let Some(path) = dir.build("again", TAKES_AGAIN) else { return };
    let program = Program::start(&mut Command::new(path));
    let mut watcher = Watcher::new(config(2, None));
    watcher.add(program.pid()).expect("the program");
    let mut events = until(&mut watcher, "the lock", |all| !hangs(all).is_empty());
    for _ in 0..20 {
        std::thread::sleep(watcher.pause());
        events.extend(watcher.tick());
    }
    let all = hangs(&events);
    assert_eq!(all.len(), 1, "{all:?}");
    let hang = all[0];
    assert_eq!((hang.comm.as_str(), hang.threads[0].tid), ("holds", hang.tid), "{}", hang.why);
    assert!(hang.why.contains("waits for itself") && hang.why.contains("in_section"), "{}", hang.why);
    assert!(hang.why.contains(" (word) for "), "the lock's variable: {}", hang.why);
    assert!(hang.why.contains("more threads are part of it"), "{}", hang.why);
}

#[test]
fn a_program_that_waits_a_few_times_and_computes_is_not_reported() {
    let dir = Dir::new("judged-computes");
    let Some(path) = dir.build("computes", COMPUTES) else { return };
    let program = Program::start(&mut Command::new(path));
    let mut watcher = Watcher::new(config(1, None));
    watcher.add(program.pid()).expect("the program");
    // Until it has used several times the limit: a loaded machine takes longer.
    let start = Instant::now();
    let mut events = Vec::new();
    while crate::common::cpu(program.pid(), program.pid()) < Duration::from_secs(4) && start.elapsed() < PATIENCE {
        std::thread::sleep(watcher.pause());
        events.extend(watcher.tick());
    }
    assert!(hangs(&events).is_empty(), "{events:?}");
}
