//! `--replay` says of a recording what watching would have reported, for people and as events.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn replayed(name: &str, json: bool) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../watch/ahd/tests/recordings").join(name);
    let mut command = Command::new(env!("CARGO_BIN_EXE_orbit"));
    command.arg("watch").arg("--replay").arg(file).args(json.then_some("--json"));
    let output = command.output().expect("the command");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_ring_in_words_and_as_an_event() {
    let text = replayed("hang-c_abba.jsonl.gz", false);
    assert!(text.contains(" s: orbit watch: blocked hang in process") && text.contains("(certain)"), "{text}");
    assert!(text.contains("only these could wake each other") && !text.contains("Guess"), "{text}");
    let text = replayed("hang-c_abba.jsonl.gz", true);
    let event: Value = serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
    assert_eq!((&event["event"], &event["sure"]), (&"hang".into(), &"certain".into()), "{event:#}");
    assert_eq!(event["cycle"].as_array().map(Vec::len), Some(2), "{event:#}");
    assert!(event["time_ms"].as_f64().is_some_and(|t| t > 0.0) && event["time"].is_null(), "{event:#}");
    assert!(event["stacks"].as_array().is_some_and(|all| all.iter().all(|t| t["does"].is_string())), "{event:#}");
}

/// A recorded set of what runtimes and kernels make of hangs.
#[test]
fn each_event_of_recorded_hangs_is_described() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../watch/ahd/tests/recordings");
    let mut events = 0;
    for entry in std::fs::read_dir(folder).expect("the recordings") {
        let name = entry.expect("an entry").file_name().into_string().expect("a name");
        if !name.starts_with("hang-") || !name.ends_with(".jsonl.gz") {
            continue;
        }
        for line in replayed(&name, true).lines() {
            orbit_testing::described("watch-events", serde_json::from_str(line).expect("JSON"));
            events += 1;
        }
    }
    assert!(events > 50, "{events} events");
}

#[test]
fn nothing_of_a_healthy_program() {
    assert!(replayed("healthy-tailf.jsonl.gz", false).starts_with("nothing to report in "));
    assert_eq!(replayed("healthy-tailf.jsonl.gz", true), "");
}
