//! On this machine's own kernel: every CPU is seen to switch, one that works to tick, check values
//! keep to their limits, and dropping the detection ends its threads. Hangs are for the laboratory
//! (`scripts/lab.sh`).

use orbit_shd::{Options, Shd};
use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

fn watchers() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("own threads");
    tasks
        .flatten()
        .filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("shd/")))
        .count()
}

#[test]
fn every_cpu_is_watched() {
    // No machine that runs tests is delayed for so long: nothing may be called a hang.
    let patient = Duration::from_secs(120);
    let options = Options { check_least: patient, check_most: patient, ..Options::default() };
    let alarms = Arc::new(AtomicUsize::new(0));
    let ear = alarms.clone();
    let started = Shd::start(&options, move |_| {
        ear.fetch_add(1, Ordering::Relaxed);
    });
    let shd = match started {
        Ok(shd) => shd,
        Err(why) => {
            println!("SKIP: needs kernel programs and real-time priority ({why})");
            return;
        }
    };
    let begun = Instant::now();
    loop {
        let cpus = shd.cpus();
        assert!(!cpus.is_empty());
        // An idle CPU switches to its watcher and hardly ticks; some CPU runs this test.
        let switching = cpus.iter().all(|cpu| cpu.switches >= 20 && cpu.check == patient);
        if switching && cpus.iter().any(|cpu| cpu.ticks >= 20) {
            break;
        }
        assert!(begun.elapsed() < patient, "a CPU is not seen at work: {cpus:?}");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(watchers(), shd.cpus().len());
    drop(shd);
    // A thread that was waited for stays listed in /proc for a moment: pthread_join returns once
    // the kernel has cleared its number, which is before it is taken off the list (kernel/exit.c).
    let dropped = Instant::now();
    while watchers() > 0 {
        assert!(dropped.elapsed() < patient, "{} threads stay", watchers());
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(alarms.load(Ordering::Relaxed), 0);
}
