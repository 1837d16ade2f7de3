//! Sleeps and time-outs take as much less as clocks run faster; the program sees its own durations.

mod common;
use common::{has, run};
use orbit_hijack::{Options, Speed};
use std::time::{Duration, Instant};

fn at(times: f64) -> Options {
    Options { speed: Speed::times(times), ..Options::default() }
}

#[test]
fn an_hour_passes_at_once() {
    let began = Instant::now();
    assert_eq!(run(&at(36_000.0), &["sleep", "1h"]).outcome.status, 0);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

#[test]
fn clocks_and_time_outs_agree() {
    if !has("python3") {
        return;
    }
    let code = "import time, select, signal, threading
def took(wait):
    began = (time.time(), time.monotonic()); wait(); ended = (time.time(), time.monotonic())
    return [b - a for a, b in zip(began, ended)]
signal.signal(signal.SIGALRM, lambda *a: None)
waits = [lambda: time.sleep(1000), lambda: select.select([], [], [], 1000), lambda: threading.Event().wait(1000),
         lambda: (signal.alarm(1000), signal.pause())]
for wait in waits:
    assert all(999 <= t for t in took(wait)), took(wait)
print('agree')";
    let began = Instant::now();
    let run = run(&at(1000.0), &["/usr/bin/python3", "-c", code]);
    assert_eq!((run.outcome.status, run.stdout.as_str()), (0, "agree\n"));
    assert!(began.elapsed() < Duration::from_secs(120), "{:?} for 4,000 s", began.elapsed());
}

#[test]
fn slower_than_real() {
    let began = Instant::now();
    assert_eq!(run(&at(0.1), &["sleep", "0.05"]).outcome.status, 0);
    assert!(began.elapsed() >= Duration::from_millis(500));
}

#[test]
fn only_speeds_that_clocks_can_run_at() {
    assert!(Speed::times(0.0).is_none() && Speed::times(f64::NAN).is_none() && Speed::times(1e7).is_none());
}
