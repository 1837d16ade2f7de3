//! A marked section whose one exit takes long each time, with many short executions in between:
//! healthy as long as it takes what it usually does.
//!
//! The test starts itself again as the program.

use crate::common::{Program, Watcher};
use orbit_ahd::{Config, Kind};
use orbit_section::{Section, enter, section};
use std::process::Command;
use std::time::{Duration, Instant};

static REQUEST: Section = section!("request");

const WAY: &str = "ORBIT_AHD_TEST_SLOW_EXIT";
const ROUNDS: u32 = 10;
const SLOW: Duration = Duration::from_millis(300);
const BEFORE: Duration = Duration::from_millis(1500);

fn work(time: Duration) {
    let used = || {
        // SAFETY: all-zero bytes are a valid timespec.
        let mut t: libc::timespec = unsafe { std::mem::zeroed() };
        // SAFETY: `t` is a valid place for the answer.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) };
        Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
    };
    let start = used();
    while used() - start < time {
        std::hint::spin_loop();
    }
}

#[test]
fn the_program() {
    if std::env::var(WAY).is_err() {
        return;
    }
    // The detector finds the record, and sees all of the rounds.
    enter(&REQUEST).leave(0);
    std::thread::sleep(BEFORE);
    for _ in 0..ROUNDS {
        let inside = enter(&REQUEST);
        work(SLOW);
        inside.leave(1);
        for _ in 0..20 {
            let inside = enter(&REQUEST);
            work(Duration::from_micros(100));
            inside.leave(0);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let _inside = enter(&REQUEST);
    work(Duration::from_secs(3600));
}

#[test]
fn reported_only_when_it_takes_far_longer_than_the_slow_exit() {
    let start = Instant::now();
    let itself = std::env::current_exe().expect("the test");
    let program = Program::start(
        Command::new(itself).args(["sections_slow_exit::the_program", "--exact", "--nocapture"]).env(WAY, "1"),
    );
    let mut watcher = Watcher::of(program.pid(), Config::default());
    let hang = watcher.hang();
    assert_eq!((hang.kind, hang.section.as_deref()), (Kind::Busy, Some("request")), "{hang:?}");
    assert!(start.elapsed() > BEFORE + SLOW * ROUNDS, "a slow execution was reported: {hang:?}");
    // Known by now, so not the limit of 5 s of CPU: four times some 300 ms, and what is not known
    // apart.
    let times = hang.usual.map(|u| hang.check_value as f64 / u as f64);
    assert!(times.is_some_and(|t| (3.9..4.1).contains(&t)), "{hang:?}");
}
