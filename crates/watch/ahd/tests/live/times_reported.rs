//! The times of a report agree with one another and with the clock: a hang lasts for as long as is
//! reported, and is known only after it began.

use crate::common::{Dir, Program, Watcher};
use orbit_ahd::{Config, Hang, Unit};
use std::process::Command;
use std::time::{Duration, Instant};

/// What holds of each report.
fn agree(h: &Hang) {
    assert!(h.latency <= h.since, "{h:#?}");
    let json = orbit_ahd::json::of_hang(h);
    assert!(json["latency_ms"].as_f64() <= json["since_ms"].as_f64(), "{json:#}");
    if h.unit == Unit::WaitNs {
        let allowed = Duration::from_nanos(h.check_value);
        assert_eq!(Duration::from_nanos(h.progress), h.since, "{h:#?}");
        assert_eq!(h.since.saturating_sub(h.latency), allowed, "{h:#?}");
    } else {
        assert!(h.check_value > 0, "{h:#?}");
    }
}

#[test]
fn a_ring_of_known_age() {
    let dir = Dir::new("times-ring");
    let Some(fares) = dir.program() else { return };
    let program = Program::start(Command::new(fares).args(["behind", "0", "ring"]));
    let mut watcher = Watcher::of(program.pid(), Config { limit: Duration::from_secs(1), ..Config::default() });
    watcher.run(Duration::from_secs(1));
    let asked = Instant::now();
    program.signal(libc::SIGUSR1);
    let hang = watcher.hang();
    agree(hang);
    assert!(hang.cycle.len() == 2 && hang.check_value == 0, "{hang:#?}");
    assert!(hang.since <= asked.elapsed(), "no older than it is: {hang:#?}");
}

#[test]
fn a_ring_that_was_there_before() {
    let dir = Dir::new("times-old");
    let Some(fares) = dir.program() else { return };
    let program = Program::start(Command::new(fares).args(["behind", "0", "ring"]));
    // Its handler is there before its threads are.
    let threads = || std::fs::read_dir(format!("/proc/{}/task", program.pid())).map_or(0, Iterator::count);
    while threads() < 3 {
        std::thread::sleep(Duration::from_millis(10));
    }
    program.signal(libc::SIGUSR1);
    std::thread::sleep(Duration::from_secs(1));
    let joined = Instant::now();
    let mut watcher = Watcher::of(program.pid(), Config { limit: Duration::from_secs(1), ..Config::default() });
    let hang = watcher.hang();
    agree(hang);
    assert!(hang.since <= joined.elapsed(), "nothing is known of it from before: {hang:#?}");
}

#[test]
fn waits_and_spins() {
    let limit = Duration::from_millis(1500);
    for (name, args) in [("times-lock", &["holds"][..]), ("times-spin", &["loop", "0.3"])] {
        let dir = Dir::new(name);
        let Some(fares) = dir.program() else { return };
        let program = Program::start(Command::new(fares).args(args));
        let began = Instant::now();
        let mut watcher = Watcher::of(program.pid(), Config { limit, ..Config::default() });
        if name == "times-spin" {
            watcher.learns(program.pid());
            program.signal(libc::SIGUSR1);
        }
        let hang = watcher.hang();
        agree(hang);
        assert!(hang.since <= began.elapsed(), "{name}: {hang:#?}");
    }
}
