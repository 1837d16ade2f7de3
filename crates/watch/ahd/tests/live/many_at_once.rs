//! Hundreds of threads, and more, that hang at once are few reports with true times, and no thread
//! is part of two.
//!
//! The test starts itself again as the program.

use crate::common::{PATIENCE, Program, Watcher};
use orbit_ahd::{Config, Hang, Sure};
use orbit_section::{Section, enter, section};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

static QUERY: Section = section!("query");

const WAY: &str = "ORBIT_AHD_TEST_MANY_AT_ONCE";
const LIMIT: Duration = Duration::from_secs(1);
/// Reports that one hang of all threads may take: scans read some dozens of threads each.
const REPORTS: usize = 20;

/// In a section, at a socket whose other side says nothing.
fn asks(ready: &Barrier) {
    let (mut here, _there) = UnixStream::pair().expect("sockets");
    let _query = enter(&QUERY);
    ready.wait();
    let _ = here.read(&mut [0]);
}

/// Waits for itself.
fn locks_twice(ready: &Barrier) {
    let lock = Box::leak(Box::new(libc::PTHREAD_MUTEX_INITIALIZER));
    ready.wait();
    // SAFETY: the mutex lives for ever and is this thread's alone.
    unsafe {
        libc::pthread_mutex_lock(lock);
        libc::pthread_mutex_lock(lock);
    }
}

#[test]
fn the_program() {
    let Ok(way) = std::env::var(WAY) else { return };
    let (way, threads) = way.split_once(' ').expect("two words");
    let threads: usize = threads.parse().expect("a number");
    let body = if way == "asks" { asks } else { locks_twice };
    let ready = Arc::new(Barrier::new(threads + 1));
    for _ in 0..threads {
        let ready = ready.clone();
        let small = std::thread::Builder::new().stack_size(1 << 16);
        small.spawn(move || body(&ready)).expect("a thread");
    }
    ready.wait();
    std::thread::sleep(Duration::from_millis(500));
    println!("all hang");
    std::thread::sleep(PATIENCE * 10);
}

/// The threads of such a program are in few reports, none in two.
fn reported_together(way: &str, threads: usize, seems_right: impl Fn(&Hang) -> bool) {
    let mut command = Command::new(std::env::current_exe().expect("the test"));
    command.args(["many_at_once::the_program", "--exact", "--nocapture"]).env(WAY, format!("{way} {threads}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut program = Program(command.spawn().expect("the program"));
    let mut said = BufReader::new(program.0.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains("all hang")), "the program has ended");

    let before = Instant::now();
    let mut watcher = Watcher::of(program.pid(), Config { limit: LIMIT, ..Config::default() });
    watcher.hang();
    watcher.run(Duration::from_secs(10));
    let hangs = watcher.hangs();
    assert!(hangs.len() <= REPORTS, "{} reports of one hang", hangs.len());
    let mut named = BTreeSet::new();
    for hang in &hangs {
        assert!(seems_right(hang), "{hang:#?}");
        // All of them hung before the watcher came, so it can know of no longer a time.
        assert!(hang.since <= before.elapsed() && hang.latency <= hang.since, "{hang:#?}");
        // One that became surer is reported again, with the same threads.
        let is_again = hang.why.contains("(reported as ");
        for thread in hang.threads.iter().filter(|_| !is_again) {
            assert!(named.insert(thread.tid), "{} is part of two reports", thread.tid);
        }
    }
    assert!(named.len() > 2, "{threads}: {hangs:#?}");
}

#[test]
fn a_section_in_which_hundreds_wait() {
    reported_together("asks", 400, |hang| hang.section.as_deref() == Some("query"));
}

#[test]
fn hundreds_that_wait_for_themselves() {
    // One that waits for its turn for a second may be reported by that.
    reported_together("locks", 1500, |hang| hang.sure == Sure::Guess || hang.cycle.len() == 1);
}
