//! An orbit with a share of a CPU gets that share and no more while it spins, held back by its
//! control group, and a larger one when it is given that.

mod common;
mod limits_common;

use std::ffi::{c_long, c_void};
use std::time::{Duration, Instant};

use common::{eventually, groups_of};
use limits_common::{needs_group, number};
use orbit::{CallOptions, Limits, Orbit, Restart};

/// How long each share is watched: fifteen periods of the kernel's bandwidth control.
const WATCHED: Duration = Duration::from_millis(1500);

unsafe extern "C" fn spin(_: *mut c_void, _: *mut c_void) -> c_long {
    loop {
        std::hint::spin_loop();
    }
}

/// CPU time of a process so far: the first number of schedstat, nanoseconds.
fn ran(pid: i32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("schedstat");
    Duration::from_nanos(number(&text))
}

/// The part of a CPU that the process gets over the time it is watched.
fn share(pid: i32) -> f64 {
    let (began, before) = (Instant::now(), ran(pid));
    std::thread::sleep(WATCHED);
    (ran(pid) - before).as_secs_f64() / began.elapsed().as_secs_f64()
}

/// Of each period of 0.1 s, how many microseconds this process' orbits may run, by their groups;
/// `None`: as many as they like.
fn quota() -> Option<u64> {
    let groups = groups_of(std::process::id());
    let files = groups.iter().flat_map(|dir| ["cpu.max", "cpu.cfs_quota_us"].map(|file| dir.join(file)));
    files.filter_map(|file| std::fs::read_to_string(file).ok()).map(|text| number(&text)).find(|&quota| quota > 0)
}

/// How often the groups have held them back.
fn held_back() -> u64 {
    let stat = |dir: &std::path::PathBuf| std::fs::read_to_string(dir.join("cpu.stat")).unwrap_or_default();
    let count = |text: String| text.lines().find_map(|line| line.strip_prefix("nr_throttled ")).map_or(0, number);
    groups_of(std::process::id()).iter().map(|dir| count(stat(dir))).sum()
}

#[test]
fn a_share_of_cpu_is_held() {
    if needs_group("CPU").is_none() {
        return;
    }
    let limits = Limits::new().cpu_percent(20);
    let orbit = Orbit::builder("spinner").entry(spin).restart(Restart::Always).limits(limits).build().expect("orbit");
    assert_eq!(orbit.limits_held(), "CPU 20 % by control group");
    let options = CallOptions::new().deadline(Duration::from_secs(120));
    let future = orbit.call_async_with(&[], &[], &options).expect("call");
    let pid = orbit.pid();
    assert!(eventually(|| ran(pid) > Duration::from_millis(50)), "it runs");
    assert_eq!(quota(), Some(20_000));
    let held = share(pid);
    let times = held_back();
    orbit.set_limits(Limits::new().cpu_percent(80)).expect("more");
    assert_eq!(quota(), Some(80_000));
    let more = share(pid);
    println!("share of a CPU at 20 %: {held:.3}, held back {times} times; at 80 %: {more:.3}");
    // What one period may add at each end of the time watched. A loaded machine may give less than
    // the share, never more.
    assert!(held < 0.20 + 0.05, "{held:.3} of a CPU at 20 %");
    assert!(more < 0.80 + 0.10, "{more:.3} of a CPU at 80 %");
    assert!(times > 0 || held < 0.15, "it was held back, or the machine gave it less than its share: {held:.3}");
    assert!(future.poll().is_none(), "it still spins");
    orbit.destroy().expect("destroy");
}
