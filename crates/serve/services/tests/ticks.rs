//! Ticks: each one that was due is accounted for, whatever became of it.

mod common;

use common::{host, is_root, native, spec, until};
use orbit_services::Dispatch;
use std::time::{Duration, Instant};

/// A handler that uses up its reservation with each run misses ticks, and merges others.
#[test]
fn ticks_do_not_drift_and_each_ran_was_merged_or_was_missed() {
    if !is_root() {
        return;
    }
    let host = &mut host();
    let mut wild = spec("wild", Dispatch::Agent, vec![]);
    (wild.arguments, wild.period) = (vec![b's'], Duration::from_micros(500));
    let object = native("wild");
    let began = Instant::now();
    let id = host.load(&wild, &object).expect("loaded");
    let account = |host: &orbit_services::Host| host.status(id).expect("loaded").account;
    until("2000 ticks", || account(host).ticks_due > 2000);
    let (now, passed) = (account(host), began.elapsed());
    println!("{now:?} in {passed:?}");
    assert_eq!(now.ticks_ran() + now.ticks_merged + now.ticks_missed, now.ticks_due);
    assert!(now.ticks_merged > 0 && now.ticks_missed > 0, "{now:?}");
    assert!(now.runs.abs_diff(now.ticks_ran()) <= 1, "each that ran is a run: {now:?}");
    // Those that wait to be taken are not counted yet.
    let due = passed.as_micros() as u64 / 500;
    assert!(now.ticks_due <= due && due - now.ticks_due < 400, "{} of {due} that passed", now.ticks_due);
}
