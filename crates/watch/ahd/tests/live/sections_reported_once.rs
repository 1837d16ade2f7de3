//! A hang in a marked section is reported once and is over when that section was left, not before;
//! a child that was forked inside of one is not in it.
//!
//! The test starts itself again as the program.

use crate::common::{Program, Watcher};
use orbit_ahd::{Config, Event, Kind};
use orbit_section::{Section, enter, section};
use std::process::Command;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

static OUTER: Section = section!("outer");
static INNER: Section = section!("inner");

const WAY: &str = "ORBIT_AHD_TEST_REPORTED_ONCE";
const LIMIT: Duration = Duration::from_secs(1);

fn work(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Spins until its end of the pipe that is its standard input can be read.
fn spin_until_asked() {
    let mut ready = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry; the call does not wait.
    while unsafe { libc::poll(&raw mut ready, 1, 0) } == 0 {
        work(Duration::from_millis(1));
    }
    let mut byte = 0u8;
    // SAFETY: room for a byte.
    unsafe { libc::read(0, (&raw mut byte).cast(), 1) };
}

fn program(way: &str) -> ! {
    let outer = enter(&OUTER);
    match way {
        "nested" => {
            let inner = enter(&INNER);
            spin_until_asked();
            drop(inner);
        }
        "child" => {
            // SAFETY: the child only waits and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: plain calls with numbers.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::sleep(60);
                    libc::_exit(0);
                }
            }
            // SAFETY: nothing is to be answered.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
        "timed" => {
            let (word, long) = (AtomicU32::new(7), libc::timespec { tv_sec: 3600, tv_nsec: 0 });
            let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: both are valid for the call.
            unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wait, 7, &raw const long, 0, 0) };
        }
        _ => {}
    }
    work(Duration::from_secs(3600));
    drop(outer);
    std::process::exit(0);
}

#[test]
fn the_program() {
    if let Ok(way) = std::env::var(WAY) {
        program(&way);
    }
}

fn start(way: &str) -> (Program, Watcher) {
    let itself = std::env::current_exe().expect("the test");
    let mut command = Command::new(itself);
    command.args(["sections_reported_once::the_program", "--exact", "--nocapture"]).env(WAY, way);
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
    let program = Program(command.spawn().expect("the program"));
    let watcher = Watcher::of(program.pid(), Config { limit: LIMIT, ..Config::default() });
    (program, watcher)
}

fn recovered(events: &[Event]) -> usize {
    events.iter().filter(|e| matches!(e, Event::Recovered { .. })).count()
}

#[test]
fn a_section_that_is_never_left_has_not_recovered() {
    let (_program, mut watcher) = start("first");
    watcher.hang();
    watcher.run(LIMIT * 3);
    assert_eq!((watcher.hangs().len(), recovered(&watcher.events)), (1, 0), "{:?}", watcher.events);
}

#[test]
fn a_wait_with_a_time_limit_that_the_stop_for_its_stack_began_anew() {
    let (_program, mut watcher) = start("timed");
    assert_eq!(watcher.hang().kind, Kind::Blocked);
    watcher.run(LIMIT * 4);
    assert_eq!((watcher.hangs().len(), recovered(&watcher.events)), (1, 0), "{:?}", watcher.events);
}

#[test]
fn one_hang_is_over_and_another_begins_in_the_section_around() {
    let (mut program, mut watcher) = start("nested");
    assert_eq!(watcher.hang().section.as_deref(), Some("inner"));
    watcher.run(LIMIT * 2);
    assert_eq!((watcher.hangs().len(), recovered(&watcher.events)), (1, 0), "{:?}", watcher.events);
    std::io::Write::write_all(&mut program.0.stdin.take().expect("a pipe"), b"x").expect("a byte");
    watcher.until("the inner one to be left", |all| recovered(all) == 1);
    watcher.until("another hang", |all| all.iter().filter(|e| matches!(e, Event::Hang(_))).count() == 2);
    let (hangs, sections) = (watcher.hangs(), watcher.hangs().iter().map(|h| h.section.clone()).collect::<Vec<_>>());
    assert_eq!(hangs[1].section.as_deref(), Some("outer"), "{sections:?}");
    watcher.run(LIMIT);
    assert_eq!((watcher.hangs().len(), recovered(&watcher.events)), (2, 1), "{:?}", watcher.events);
}
