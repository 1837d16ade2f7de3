//! Events are lines of JSON with the fields that are promised, and actions are done and reported.

use crate::guard_common::{Dir, Guard, build, skipped};

#[test]
fn fields_of_a_hang() {
    if skipped() {
        return;
    }
    let dir = Dir::new("fields");
    let program = build(&dir, "hangs.c");
    let mut guard = Guard::start(&dir, &["--on-hang", "kill"], &[program.to_str().expect("a path"), "ring2"]);
    let hang = guard.next("hang");
    assert!(hang["command"].as_str().is_some_and(|command| command.ends_with("hangs ring2")), "{hang:#}");
    assert!(hang["time"].as_str().is_some_and(|time| time.starts_with("20") && time.ends_with('Z')), "{hang:#}");
    for field in ["pid", "tid", "progress", "check_value", "since_ms", "latency_ms", "time_ms"] {
        assert!(hang[field].is_number(), "{field}: {hang:#}");
    }
    for field in ["event", "kind", "comm", "why", "sure", "unit"] {
        assert!(hang[field].is_string(), "{field}: {hang:#}");
    }
    assert!(hang.get("section").is_some() && hang["stacks"].is_array() && hang["cycle"].is_array());
    let action = guard.next("action");
    assert_eq!(action["pid"], hang["pid"]);
    let out = guard.finish();
    assert_eq!(out.status.code(), Some(137), "killed, as asked");
    let text = String::from_utf8(out.stderr).expect("text");
    assert!(text.contains("blocked hang") && text.contains("waits for lock 0x"), "{text}");
    assert!(!text.contains('\u{1b}'), "no colour where there is no terminal");
}

#[test]
fn a_command_gets_the_report() {
    if skipped() {
        return;
    }
    let dir = Dir::new("exec");
    let program = build(&dir, "hangs.c");
    let to = dir.0.join("report.json");
    let command = format!(
        "exec:cat >{0}.part && mv {0}.part {0}; [ $ORBIT_WATCH_PID = $ORBIT_GUARD_PID ] && kill -9 $ORBIT_WATCH_PID",
        to.display()
    );
    let guard =
        Guard::start(&dir, &["--on-hang", &format!("guess:{command}")], &[program.to_str().expect("a path"), "self"]);
    assert_eq!(guard.finish().status.code(), Some(137));
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&to).expect("a report")).expect("JSON");
    assert_eq!((&report["event"], &report["kind"]), (&"hang".into(), &"blocked".into()));
}

#[test]
fn a_program_is_started_again() {
    if skipped() {
        return;
    }
    let dir = Dir::new("restart");
    let program = build(&dir, "hangs.c");
    let marker = dir.0.join("second");
    let script =
        format!("if [ -e {0} ]; then exit 5; fi; echo >{0}; exec {1} self", marker.display(), program.display());
    let mut guard = Guard::start(&dir, &["--on-hang", "guess:restart"], &["sh", "-c", &script]);
    let first = guard.program();
    assert_eq!(guard.next("left")["pid"], first, "the killed process left");
    let second = guard.next("joined")["pid"].clone();
    assert_ne!(second, first);
    assert_eq!(guard.finish().status.code(), Some(5));
}
