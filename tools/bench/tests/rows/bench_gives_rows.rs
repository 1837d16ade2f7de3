//! Every bench gives its rows as JSON in the shape that plots and reports rely on. No times are
//! judged here.

use std::process::Command;

use serde_json::Value;

fn bench(args: &[&str], plot: bool) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orbit-bench"));
    command.args(args).args(["--quick", "--json", "-"]);
    let file = std::env::temp_dir().join(format!("orbit-plot-{}-{}.svg", std::process::id(), args[0]));
    if plot {
        command.arg("--plot").arg(&file);
    }
    let output = command.output().expect("orbit runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success(), "{args:?}: {text} {}", String::from_utf8_lossy(&output.stderr));
    if plot {
        let svg = std::fs::read_to_string(&file);
        let _ = std::fs::remove_file(&file);
        assert!(svg.expect("the plot").contains("<polyline"));
    }
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(report["bench"], args[0]);
    for field in ["cpus", "kernel", "steal_percent", "busy_percent", "load_before"] {
        assert!(!report["machine"][field].is_null(), "{field} of {}", report["machine"]);
    }
    for reach in report["reach"].as_array().expect("reach") {
        assert!(reach["value"].is_f64() && reach["limit"].is_f64() && reach["met"].is_boolean(), "{reach}");
    }
    report
}

/// Checks that every row has these counts, and medians of these things.
fn check(report: &Value, counts: &[&str], times: &[&str]) {
    let rows = report["rows"].as_array().expect("rows");
    assert!(!rows.is_empty());
    for row in rows {
        assert!(row["measure"].is_string() && row["unit"].is_string() && row["rivals"].is_object(), "{row}");
        assert!(row["ours"]["p50"].is_f64() && row["ours"]["n"].is_u64(), "{row}");
        for count in counts {
            assert!(row[count].as_u64().is_some_and(|n| n > 0), "{count} of {row}");
        }
        for time in times {
            let value = |field: &str| row[time][field].as_f64().unwrap_or_else(|| panic!("{time}.{field} of {row}"));
            assert!(value("p99") >= value("p50") && value("p50") >= 0.0 && value("n") >= 1.0, "{time} of {row}");
        }
    }
}

#[test]
fn create() {
    let report = bench(&["create", "--max", "32"], false);
    check(&report, &["footprint_bytes"], &["orbit_us", "orbit_no_spare_us", "first_call_us", "fork_us"]);
}

#[test]
fn call() {
    let mut report = bench(&["call"], true);
    check(&report, &["area_bytes", "dirty_pages"], &["async_us", "sync_us"]);
    let rows = report["rows"].as_array_mut().expect("rows");
    assert!(rows.iter().any(|row| row["orbit"] == "awake"));
    rows.retain(|row| row["orbit"] == "asleep");
    check(&report, &["area_bytes"], &["thread_us", "pipe_us", "fork_us", "futex_us"]);
}

#[test]
fn incremental() {
    let report = bench(&["incremental"], false);
    let times = ["incremental_us", "write_faults_us", "full_us", "fork_us"];
    check(&report, &["area_bytes", "new_bytes"], &times);
}

#[test]
fn write() {
    let report = bench(&["write"], false);
    check(&report, &["area_bytes", "pages"], &["orbit_ns", "copy_on_write_ns", "with_fork_ns", "plain_ns"]);
}

#[test]
fn delegate() {
    let report = bench(&["delegate"], false);
    check(&report, &["transactions", "area_bytes"], &["async_us", "work_us", "query_us"]);
    for pair in report["rows"].as_array().expect("rows").chunks(2) {
        let pages = |row: &Value| row["pages_per_call"].as_f64().expect("pages");
        assert!(pages(&pair[0]) > pages(&pair[1]), "whole structs dirty more pages: {pair:?}");
    }
}

#[test]
fn graft() {
    if let Some(why) = orbit_linux::ptrace::probe().reason() {
        return println!("SKIP: needs {why}");
    }
    let report = bench(&["graft"], true);
    check(&report, &["threads"], &[]);
    for row in report["rows"].as_array().expect("rows") {
        // Both stop the program, so neither can cost nothing.
        let stopped = |figure: &Value| figure["p50"].as_f64().expect("a figure");
        assert!(stopped(&row["ours"]) > 1.0 && stopped(&row["rivals"]["ptrace"]) > 1.0, "{row}");
    }
}

#[test]
fn results_make_a_page() {
    let file = std::env::temp_dir().join(format!("orbit-page-{}.json", std::process::id()));
    let orbit = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orbit-bench"));
        command.env("ORBIT_COMMIT", "0123abc");
        command
    };
    let ran = orbit().args(["delegate", "--quick", "--json"]).arg(&file).output().expect("orbit runs");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let page = orbit().arg("page").arg(&file).output().expect("orbit runs");
    let text = String::from_utf8(page.stdout).expect("UTF-8");
    assert!(
        text.contains(&format!("## {}", file.file_stem().expect("a name").display()))
            && text.contains("commit 0123abc"),
        "{text}"
    );
    assert!(text.contains("| query, 1000 transactions, delegate in the area |"), "{text}");
    std::fs::write(&file, "{}").expect("a file");
    let page = orbit().arg("page").arg(&file).output().expect("orbit runs");
    let _ = std::fs::remove_file(&file);
    assert_eq!(page.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&page.stderr).contains("it has no \"rows\""));
}
