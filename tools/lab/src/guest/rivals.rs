//! Each kind of hang, long enough for the kernel's own detectors: which of them finds it, and when,
//! beside system hang detection.
//!
//! Line `rival`: seconds from the beginning of the hang until each was heard of; null: not while
//! the CPU hung.

use super::{
    Failed,
    hangs::{Heard, Length, detect, run_one},
    kmsg::Kmsg,
    line,
    machine::{KINDS, pin, set, sleep_ms, urgent},
};
use serde_json::json;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// `threshold` is `kernel.watchdog_thresh`: the soft-lockup detector waits twice as long.
pub fn run(ms: u64, threshold: usize) -> Result<bool, Failed> {
    let settings = json!({
        "watchdog_thresh": set("watchdog_thresh", threshold),
        "soft_watchdog": set("soft_watchdog", 1),
        "nmi_watchdog": set("nmi_watchdog", 1),
        // By default 120 s: it would come later than all others.
        "hung_task_timeout_secs": set("hung_task_timeout_secs", 10),
    });
    line::say(&json!({"threshold_s": threshold, "settings": settings}));
    let (_shd, heard) = detect()?;
    let mut all = true;
    for kind in KINDS {
        all &= one(&heard, kind, ms, threshold)?;
    }
    Ok(all)
}

fn one(heard: &Heard, kind: &str, ms: u64, threshold: usize) -> Result<bool, Failed> {
    let cpu = 1;
    let stop = Arc::new(AtomicBool::new(false));
    let first = Arc::new(Mutex::new(BTreeMap::new()));
    let mut kmsg = Kmsg::new()?;
    let (ended, list) = (stop.clone(), first.clone());
    // On the CPU that lives.
    let ear = std::thread::spawn(move || {
        pin(1 - cpu);
        urgent(80);
        while !ended.load(Relaxed) {
            for said in kmsg.new_failures() {
                list.lock().expect("one writer").entry(said.what).or_insert(said.heard_ns);
            }
            sleep_ms(20);
        }
    });
    let run = run_one(heard, kind, cpu, Length::Whole(ms))?;
    stop.store(true, Relaxed);
    ear.join().map_err(|_| "the listener failed")?;
    let over = run.began_ns + (run.lasted * 1e6) as u64;
    let first = first.lock().expect("its writer has ended");
    let seconds = |what: &str| {
        let heard = *first.get(what)?;
        (heard < over).then(|| ((heard.saturating_sub(run.began_ns)) as f64 / 1e8).round() / 10.0)
    };
    line::say(&json!({
        "rival": kind, "cpu": cpu, "threshold_s": threshold, "lasted_ms": run.lasted as u64,
        "shd_s": run.reported.map(|ms| ms.round() / 1e3),
        "soft_lockup_s": seconds("soft-lockup"), "hard_lockup_s": seconds("hard-lockup"),
        "rcu_stall_s": seconds("rcu-stall"), "hung_task_s": seconds("hung-task"),
    }));
    Ok(run.reported.is_some())
}
