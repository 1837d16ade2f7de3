//! Services on a CPU that has protection keys: the test of `orbit-services` that needs them, and
//! the costs that it counts. The machine counts one cycle for each instruction: that compares ways,
//! and says nothing of the times of real CPUs.

use super::{Failed, line};
use serde_json::json;
use std::process::Command;

pub fn run() -> Result<bool, Failed> {
    let output = Command::new("/bin/orbit-keys-test")
        .args(["handlers_run", "--nocapture", "--test-threads=1"])
        .output()
        .map_err(|e| format!("starting the test of keys: {e}"))?;
    let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let mut rows = 0;
    // The line may begin with what the test harness printed.
    for row in text.lines().filter_map(|line| line.find("{\"measure\"").map(|at| &line[at..])) {
        line::say_text(row);
        rows += 1;
    }
    let good = output.status.success() && rows == 4;
    if !good {
        return Err(format!("{text}{said}"));
    }
    line::say(&json!({"keys": {"rows": rows}}));
    Ok(good)
}
