//! A bench whose result cannot go where it was asked to says so before it measures, and shows what
//! it measured in any case.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const WRITE: [&str; 2] = ["write", "--quick"];

fn bench(options: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orbit-bench"));
    command.args(WRITE);
    for (option, path) in options {
        command.arg(option).arg(path);
    }
    command.output().expect("orbit runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A place of this test alone, with nothing there.
fn place(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("orbit-bench-files-{}-{name}", std::process::id()));
    let _ = fs::remove_file(&path);
    path
}

#[test]
fn a_file_that_cannot_be_opened_is_refused_at_once() {
    for option in ["--json", "--plot"] {
        // With so few descriptors no orbit can be made: a measurement would fail with that.
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 8; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_orbit-bench")]).args(WRITE);
        let output = command.args([option, "/nonexistent/result"]).output().expect("orbit runs");
        assert_eq!(output.status.code(), Some(1), "{option}");
        let said = text(&output.stderr);
        assert!(said.contains("cannot write /nonexistent/result: No such file"), "{option}: {said}");
        assert_eq!(text(&output.stdout), "", "{option}: nothing was measured");
    }
}

#[test]
fn the_table_is_shown_though_a_file_fails_later() {
    let plot = place("plot.svg");
    // Opens, and takes no byte.
    let output = bench(&[("--json", Path::new("/dev/full")), ("--plot", &plot)]);
    assert_eq!(output.status.code(), Some(1));
    let (said, shown) = (text(&output.stderr), text(&output.stdout));
    assert!(said.contains("cannot write /dev/full: No space left"), "{said}");
    assert!(shown.contains("FIGURE TO REACH") && shown.contains("medians;"), "{shown}");
    let drawn = fs::read_to_string(&plot);
    let _ = fs::remove_file(&plot);
    assert!(drawn.expect("the plot").contains("</svg>"));
}

#[test]
fn a_longer_result_of_before_is_replaced_whole() {
    let json = place("result.json");
    fs::write(&json, "x".repeat(1 << 20)).expect("an old result");
    let output = bench(&[("--json", &json)]);
    let written = fs::read_to_string(&json);
    let _ = fs::remove_file(&json);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value =
        serde_json::from_str(&written.expect("the result")).expect("JSON and nothing behind it");
    assert_eq!(report["bench"], "write");
    assert!(text(&output.stdout).contains("medians;"), "the table as well");
}
