//! `--section NAME=FUNCTION` and `section = ` in a settings file: hangs are reported with NAME, and
//! at the end what the sections cost.

use crate::guard_common::{Dir, Guard, skipped};
use std::process::Command;

fn build(dir: &Dir) -> std::path::PathBuf {
    let out = dir.0.join("named");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../watch/named/tests/live/c/named.c");
    let cc = Command::new("cc").args(["-O2", "-g", "-pthread", "-o"]).arg(&out).arg(source).status();
    assert!(cc.expect("cc").success());
    out
}

#[test]
fn a_hang_and_what_it_cost() {
    if skipped() {
        return;
    }
    let dir = Dir::new("named");
    let program = build(&dir);
    let config = dir.file("guard.toml", "limit_ms = 1000\nsection = \"inner=inner\"\nsection_cost = 1.5\n");
    let options =
        ["--config", config.to_str().expect("a path"), "--section", "request=request", "--on-hang", "guess:kill"];
    // Healthy for 4 s from its start: time enough to be joined on a loaded machine.
    let mut guard = Guard::start(&dir, &options, &[program.to_str().expect("a path"), "spin", "40"]);
    let hang = guard.next("hang");
    assert_eq!((&hang["kind"], &hang["section"]), (&"busy".into(), &"request".into()), "{hang:#}");
    let last = guard.next("sections");
    let list = last["sections"].as_array().expect("a list");
    let names: Vec<&str> = list.iter().filter_map(|s| s["section"].as_str()).collect();
    assert_eq!(names, ["inner", "request"], "{last:#}");
    for s in list {
        for field in ["hits", "ns_per_hit", "share_percent", "cpu_ms", "windows"] {
            assert!(s[field].is_number(), "{field}: {s:#}");
        }
    }
    let text = String::from_utf8(guard.finish().stderr).expect("text");
    assert!(text.contains("section request (request) of process") && text.contains("hits of"), "{text}");
}

#[test]
fn what_is_no_section_is_refused() {
    for (section, part) in [("request", "NAME=FUNCTION"), ("a=", "names no function"), ("a=0xq", "hexadecimal")] {
        let mut guard = Command::new(env!("CARGO_BIN_EXE_orbit"));
        let out = guard.args(["watch", "--section", section, "--", "echo", "ran"]).output().expect("orbit");
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && out.stdout.is_empty() && text.contains(part), "{section}: {text}");
    }
}
