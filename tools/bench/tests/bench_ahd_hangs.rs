//! `orbit bench ahd --part hangs` injects hangs into real servers, and the guard finds each of
//! them. No latencies are judged here.
//!
//! `ORBIT_TEST_FULL=1` injects 240.

use serde_json::Value;
use std::process::Command;

#[test]
fn all_are_found_and_nothing_else() {
    for needed in ["cc", "redis-server", "nginx"] {
        let there = |dir: &str| std::path::Path::new(dir).join(needed).exists();
        if !["/usr/bin", "/usr/sbin", "/usr/local/bin"].into_iter().any(there) {
            println!("SKIP: needs {needed}");
            return;
        }
    }
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if matches!(scope.trim(), "2" | "3") {
        println!("SKIP: needs kernel.yama.ptrace_scope below 2");
        return;
    }
    let runs = if std::env::var_os("ORBIT_TEST_FULL").is_some() { 240 } else { 8 };
    let output = Command::new(env!("CARGO_BIN_EXE_orbit-bench"))
        .args(["ahd", "--quick", "--part", "hangs", "--runs", &runs.to_string(), "--json", "-"])
        .output()
        .expect("orbit runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let rows = report["rows"].as_array().expect("rows");
    let of = |part: &'static str| rows.iter().filter(move |row| row["part"] == part);
    let sum = |field: &str| of("hangs").map(|row| row[field].as_u64().expect("a count")).sum::<u64>();
    let notes = &report["notes"];
    // A place that is not reached is made up for by another, within bounds.
    assert!(sum("runs") == runs || sum("runs") + sum("not_reached") >= runs + runs / 4, "{notes:#}");
    assert!(sum("runs") * 4 >= runs * 3, "most places are reached: {notes:#}");
    assert_eq!(sum("found"), sum("runs"), "{notes:#}");
    assert_eq!(sum("false_alarms"), 0, "{notes:#}");
    assert_eq!(sum("right_kind"), sum("runs"), "{notes:#}");
    assert_eq!(sum("right_ring"), sum("runs"), "{notes:#}");
    assert!(of("places").count() > 1, "{text}");
    // The last run is the rival's, if its place was reached.
    assert!(of("watchdog").count() > 0 || sum("not_reached") > 0, "{text}");
}
