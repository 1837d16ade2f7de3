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
fn a_campaign_writes_test_cases() {
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("campaign.xml");
    let output = hijack(&["--campaign", "emfile", "--junit", file.to_str().expect("a path"), "--", "cat", "/dev/null"]);
    let xml = std::fs::read_to_string(&file).expect("written");
    let runs = text(&output.stderr).lines().find_map(|line| line.split_once(" runs: ")?.0.parse::<usize>().ok());
    let cases = xml.matches("<testcase classname=\"cat /dev/null\" name=\"openat").count();
    assert!(cases > 1 && runs == Some(xml.matches("<testcase ").count()), "{xml}\n{}", text(&output.stderr));
}

#[test]
fn guests_and_their_rules_outlive_a_host_that_is_killed() {
    let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("outlived");
    let _ = std::fs::remove_file(&place);
    let victim = place.with_extension("victim");
    std::fs::write(&victim, "x").expect("written");
    // The session's only process executes another program, whose rules are those of the session.
    let line = format!(
        "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); [ -e /x ]; done; \
         exec sh -c 'rm -f {0}.victim; /bin/echo done >{0}.new; mv {0}.new {0}'",
        place.display()
    );
    let mut host = Command::new(env!("CARGO_BIN_EXE_orbit"))
        .args(["hijack", "--trace", "--inject", "unlink* -> EPERM", "--", "sh", "-c", &line])
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
    assert!(victim.exists(), "its rules hold");
}

#[test]
fn where_the_trace_cannot_be_written_the_program_runs_to_its_end() {
    let line = "for i in $(seq 100); do /bin/true; done; echo ended; exit 5";
    let full = hijack(&["--trace", "-o", "/dev/full", "--", "sh", "-c", line]);
    assert_eq!((full.status.code(), text(&full.stdout)), (Some(1), "ended\n".to_owned()));
    let error = text(&full.stderr);
    assert!(error.contains("cannot write /dev/full: ") && error.contains("ended with status 5"), "{error}");
    let mut host = Command::new(env!("CARGO_BIN_EXE_orbit"))
        .args(["hijack", "--trace", "--", "sh", "-c", line])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    drop(host.stderr.take());
    assert_eq!(host.wait().expect("ended").code(), Some(5), "a reader that goes away");
}

#[test]
fn signals_reach_the_program() {
    for (signal, name) in [
        (libc::SIGTERM, "TERM"),
        (libc::SIGINT, "INT"),
        (libc::SIGQUIT, "QUIT"),
        (libc::SIGUSR1, "USR1"),
        (libc::SIGHUP, "HUP"),
    ] {
        reaches(signal, name);
    }
}

fn reaches(signal: i32, name: &str) {
    for mode in [&["hijack", "--", "sh", "-c"][..], &["hijack", "--trace", "-o", "/dev/null", "--", "sh", "-c"]] {
        let mut host = Command::new(env!("CARGO_BIN_EXE_orbit"))
            .args(mode)
            .arg(format!("trap 'exit 7' {name}; echo ready; while :; do sleep 0.01; done"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut ready = [0; 6];
        std::io::Read::read_exact(&mut host.stdout.take().expect("a pipe"), &mut ready).expect("ready");
        orbit_linux::signals::send(host.id() as i32, signal).expect("sent");
        assert_eq!(host.wait().expect("ended").code(), Some(7), "SIG{name}");
    }
}

#[test]
fn what_cannot_begin_is_said() {
    let none = hijack(&["--inject", "write -> ask", "--", "true"]);
    assert!(text(&none.stderr).contains("rule `write -> ask` asks, and there is no decider"), "{}", text(&none.stderr));
    let nested = hijack(&["--", env!("CARGO_BIN_EXE_orbit"), "hijack", "--", "true"]);
    assert_eq!(nested.status.code(), Some(1));
    assert!(text(&nested.stderr).contains("does not work under an executive"), "{}", text(&nested.stderr));
}
