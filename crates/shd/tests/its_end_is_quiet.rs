//! Dropping the detection tells nothing any more: its parts go one by one, over tenths of a second, and a timer that outlives
//! the count of switches would take every CPU for hung (and reboot the machine, if that is the action).

use orbit_shd::{Event, Options, Shd};
use std::{
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// The detection's clock.
fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn nothing_is_told_once_it_ends() {
    // As quick to accuse as may be: the end takes longer than that.
    let least = Duration::from_millis(15);
    let options = Options { period: least / 3, check_least: least, check_most: least, ..Options::default() };
    for _ in 0..5 {
        let judged = Arc::new(Mutex::new(Vec::new()));
        let list = judged.clone();
        let started = Shd::start(&options, move |event| {
            if let Event::Hung { judged, .. } = event {
                list.lock().expect("no writer panics").push(*judged);
            }
        });
        let shd = match started {
            Ok(shd) => shd,
            Err(why) => {
                println!("SKIP: needs kernel programs and real-time priority ({why})");
                return;
            }
        };
        thread::sleep(Duration::from_millis(200));
        let ending = now();
        drop(shd);
        // An alarm of the last moment may still have been on its way.
        let late = |&&at: &&Duration| at > ending + least;
        let late = judged.lock().expect("no writer panics").iter().filter(late).count();
        assert_eq!(late, 0, "alarms for CPUs that were no longer watched");
    }
}
