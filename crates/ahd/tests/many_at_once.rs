//! Hundreds of threads, and more, that hang at once are all told, once each and with true times, by a module that does not fail meanwhile.
//!
//! The test starts itself again as the program.

mod common;
use common::{PATIENCE, Program};
use orbit_ahd::module::{Detector, options};
use orbit_ahd::{Config, Event, Hang, json};
use orbit_rmk::Report;
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
/// What may be missing of a time, beside what the watcher was kept from a CPU.
const SLACK: Duration = Duration::from_secs(4);

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

/// Time for which the threads of a process waited for a CPU.
fn delayed(pid: i32) -> Duration {
    let of_thread = |task: std::fs::DirEntry| -> Option<u64> {
        std::fs::read_to_string(task.path().join("schedstat")).ok()?.split_whitespace().nth(1)?.parse().ok()
    };
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    Duration::from_nanos(tasks.filter_map(of_thread).sum())
}

/// All threads of such a program are told.
fn all_told(way: &str, threads: usize, seems_right: impl Fn(&Hang) -> bool) {
    let mut command = Command::new(std::env::current_exe().expect("the test"));
    command.args(["the_program", "--exact", "--nocapture"]).env(WAY, format!("{way} {threads}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut program = Program(command.spawn().expect("the program"));
    let mut said = BufReader::new(program.0.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains("all hang")), "the program has ended");

    let core = orbit_pins::core().expect("a core");
    let mut options = options(&Config { limit: LIMIT, ..Config::default() });
    // A machine that gives it no CPU is not what is looked for.
    options.deadline = PATIENCE;
    let module = core.install::<Detector>(options).expect("the module");
    let before = Instant::now();
    core.guard(program.pid() as u32).expect("a program");
    let after = Instant::now();
    let mut told = BTreeSet::new();
    while told.len() < threads {
        assert!(before.elapsed() < PATIENCE * 3, "{} of {threads} threads are told; {:?}", told.len(), module.status());
        let text = match module.report(Duration::from_millis(100)) {
            Some(Report::Said(text)) => text,
            Some(other) => panic!("the module fails, or what it says is lost: {other:?}"),
            None => continue,
        };
        let event = json::event(&serde_json::from_str(&text).expect("JSON")).expect("an event");
        let Event::Hang(hang) = event else { continue };
        assert!(seems_right(&hang), "{hang:#?}");
        assert!(told.insert(hang.tid), "told twice: {hang:#?}");
        // All of them hung before the watcher came, so it can know of no longer a time, and of hardly a shorter one.
        assert!(hang.since <= before.elapsed(), "{:?}: {hang:#?}", before.elapsed());
        let missing = SLACK + delayed(module.status().pid) + delayed(std::process::id() as i32);
        assert!(hang.since + missing >= after.elapsed(), "{:?}, {missing:?}: {hang:#?}", after.elapsed());
        assert_eq!(hang.since - hang.latency, Duration::from_nanos(hang.check_value), "{hang:#?}");
    }
    println!("{way}: {threads} threads in {:?}", before.elapsed());
    assert_eq!((module.status().failures, module.status().unread), (0, 0), "{:?}", module.status());
}

#[test]
fn a_section_in_which_hundreds_wait() {
    all_told("asks", 400, |hang| hang.section.as_deref() == Some("query") && hang.check_value > 0);
}

#[test]
fn hundreds_that_wait_for_themselves() {
    // One that waits for its turn for a second may be told by that.
    all_told("locks", 1500, |hang| hang.cycle.len() == 1);
}
