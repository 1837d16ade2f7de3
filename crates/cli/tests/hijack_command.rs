//! `orbit hijack`: lines of the trace, statuses, errors in rules, and guests that outlive their
//! host.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn hijack(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orbit"));
    command.arg("hijack").args(arguments).output().expect("orbit runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_trace_has_the_form_of_strace() {
    let output = hijack(&["--trace", "--", "sh", "-c", "echo hello; exit 3"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), "hello\n".to_owned()));
    let trace = text(&output.stderr);
    assert!(trace.starts_with("execve(\"/"), "{trace}");
    assert!(trace.contains("write(1, \"hello\\n\", 6) = 6\n") && trace.contains("exit_group(3) = ?\n"), "{trace}");
}

#[test]
fn json_is_an_object_a_line_and_the_counters_at_the_end() {
    let output = hijack(&["--json", "--", "true"]);
    let lines: Vec<serde_json::Value> =
        text(&output.stderr).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines.iter().any(|line| line["call"] == "execve" && line["result"] == 0));
    let last = lines.last().expect("counters");
    assert_eq!((&last["calls"]["execve"], &last["lost"]), (&1.into(), &0.into()));
}

#[test]
fn a_wrong_rule_is_named_and_nothing_runs() {
    let output = hijack(&["--inject", "write(fd=1) -> ENOSPCX", "--", "echo", "ran"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()));
    let error = text(&output.stderr);
    assert!(error.contains("column 16: no action `ENOSPCX`") && error.contains("right would be"), "{error}");
}

#[test]
fn rules_that_acted_are_counted() {
    let output = hijack(&["--inject", "write(fd=1) -> EIO", "--", "sh", "-c", "echo a 2>/dev/null || exit 9"]);
    assert_eq!(output.status.code(), Some(9));
    assert!(text(&output.stderr).contains("matched 1 times, acted 1 times"), "{}", text(&output.stderr));
}

#[test]
fn guests_outlive_a_host_that_is_killed() {
    let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("outlived");
    let _ = std::fs::remove_file(&place);
    let line = format!(
        "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); [ -e /x ]; done; /bin/echo done >{0}.new; mv {0}.new {0}",
        place.display()
    );
    let mut host = Command::new(env!("CARGO_BIN_EXE_orbit"))
        .args(["hijack", "--trace", "--", "sh", "-c", &line])
        .stderr(Stdio::piped())
        .spawn()
        .expect("orbit runs");
    // The first line of the trace: the guest runs.
    let mut first = [0];
    std::io::Read::read_exact(host.stderr.as_mut().expect("a pipe"), &mut first).expect("a trace");
    host.kill().expect("killed");
    host.wait().expect("reaped");
    let limit = Instant::now() + Duration::from_secs(120);
    while !place.exists() {
        assert!(Instant::now() < limit, "the guest did not finish");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(std::fs::read_to_string(&place).expect("written"), "done\n");
}
