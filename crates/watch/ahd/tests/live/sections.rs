//! Hangs inside marked sections are found with the section's name; executions that are merely long
//! for once are learnt.
//!
//! The test starts itself again as the program that hangs.

use orbit_ahd::{Config, Event, Hang, Kind, Unit};
use orbit_inspect::Sure;
use orbit_section::{Section, enter, section};
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

static OUTER: Section = section!("outer");
static WORK: Section = section!("work");
static WAKE: Section = section!("wake-up");
static LEFT: Section = section!("left");
static RIGHT: Section = section!("right");

const WAY: &str = "ORBIT_AHD_TEST_WAY";

fn work(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Two sections of which the second is entered in the first and left after it, a few hundred times.
fn overlapping() {
    for _ in 0..300 {
        let left = enter(&LEFT);
        work(Duration::from_millis(1));
        let right = enter(&RIGHT);
        work(Duration::from_millis(1));
        left.leave(0);
        work(Duration::from_millis(1));
        right.leave(0);
    }
}

/// The program: a healthy start, then the hang. Never waits in a main loop, so only its sections
/// tell.
fn program(way: &str) -> ! {
    // Where threads are waited for it would be a wait in this section.
    let outer = (way != "overlapping").then(|| enter(&OUTER));
    if way == "first" {
        // Far from half of the limit: with more than that the outer one would be reported.
        work(Duration::from_millis(500));
        let _inside = enter(&WORK);
        work(Duration::from_secs(3600));
    }
    for i in 0..300 {
        let inside = enter(&WORK);
        work(Duration::from_millis(2));
        inside.leave(i % 3);
    }
    match way {
        "overlapping" => {
            let hangs = std::thread::spawn(|| {
                overlapping();
                let left = enter(&LEFT);
                let _right = enter(&RIGHT);
                left.leave(0);
                work(Duration::from_secs(3600));
            });
            let others: Vec<_> = (0..2).map(|_| std::thread::spawn(overlapping)).collect();
            others.into_iter().for_each(|t| t.join().expect("a healthy one"));
            hangs.join().expect("it hangs");
        }
        "spin" => {
            let _inside = enter(&WORK);
            work(Duration::from_secs(3600));
        }
        "blocked" => {
            for _ in 0..100 {
                let inside = enter(&WAKE);
                work(Duration::from_millis(2));
                inside.leave(0);
            }
            let _inside = enter(&WAKE);
            let (lock, condition) = (Mutex::new(()), Condvar::new());
            // Nobody will ever notify.
            drop(condition.wait(lock.lock().expect("a lock")));
        }
        _ => {}
    }
    drop(outer);
    std::process::exit(0);
}

struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hang(way: &str) -> Option<Box<Hang>> {
    hang_of(Command::new(std::env::current_exe().expect("the test")), way)
}

fn hang_of(mut command: Command, way: &str) -> Option<Box<Hang>> {
    let child = command
        .args(["sections::the_program", "--exact", "--nocapture"])
        .env(WAY, way)
        .stdout(Stdio::null())
        .spawn()
        .expect("itself");
    let mut program = Program(child);
    let config = Config { limit: Duration::from_secs(2), ..Config::default() };
    let mut ahd = orbit_ahd::Watcher::new(config);
    ahd.add(program.0.id() as i32).expect("the program");
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(ahd.pause());
        for event in ahd.tick() {
            if let Event::Hang(hang) = event {
                println!("{way}: {}", hang.why);
                return Some(hang);
            }
        }
        if program.0.try_wait().expect("wait").is_some() {
            return None;
        }
    }
    panic!("{way}: neither hung nor ended");
}

#[test]
fn the_program() {
    if let Ok(way) = std::env::var(WAY) {
        program(&way);
    }
}

#[test]
fn a_spin_inside_a_section() {
    let hang = hang("spin").expect("a hang");
    assert_eq!(hang.kind, Kind::Busy);
    assert_eq!(hang.section.as_deref(), Some("work"), "the inner one: {hang:?}");
    assert!(hang.progress >= hang.check_value);
}

#[test]
fn a_spin_in_the_first_execution_of_the_inner_section() {
    let hang = hang("first").expect("a hang");
    assert_eq!((hang.kind, hang.section.as_deref()), (Kind::Busy, Some("work")), "the inner one: {hang:?}");
}

#[test]
fn a_spin_after_one_of_two_that_overlap_was_left() {
    let hang = hang("overlapping").expect("a hang");
    assert_eq!((hang.kind, hang.section.as_deref()), (Kind::Busy, Some("right")), "the one that is open: {hang:?}");
    assert!(hang.progress >= hang.check_value, "{hang:?}");
}

#[test]
fn a_spin_in_a_pid_namespace() {
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--kill-child"]);
    let itself = std::env::current_exe().expect("the test");
    let possible = Command::new("unshare").args(["--pid", "--fork", "true"]).stderr(Stdio::null()).status();
    if !possible.is_ok_and(|s| s.success()) {
        println!("SKIP: needs the right to make a pid namespace");
        return;
    }
    unshare.arg(itself);
    let hang = hang_of(unshare, "spin").expect("a hang");
    assert_eq!((hang.kind, hang.section.as_deref()), (Kind::Busy, Some("work")), "{hang:?}");
}

#[test]
fn a_lost_wakeup_inside_a_section() {
    let hang = hang("blocked").expect("a hang");
    assert_eq!((hang.kind, hang.section.as_deref(), hang.sure), (Kind::Blocked, Some("wake-up"), Sure::Likely));
    assert_eq!(
        (hang.unit, hang.usual),
        (Unit::WaitNs, None),
        "what the section usually uses is CPU time: no wait's measure"
    );
}

#[test]
fn no_alarm_without_a_hang() {
    assert!(hang("none").is_none());
}
