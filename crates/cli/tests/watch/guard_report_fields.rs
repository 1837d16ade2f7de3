//! Every report of a hang has all promised fields, of the right type, whatever the kind of hang.

use crate::guard_common::{Dir, Guard, build, skipped};

#[test]
fn of_each_kind() {
    if skipped() {
        return;
    }
    let dir = Dir::new("report-fields");
    let program = build(&dir, "hangs.c");
    let config = dir.file("guard.toml", "limit_ms = 1000\n");
    let config = ["--config", config.to_str().expect("a path")];
    for (way, kind, cycle) in [
        ("spin", "busy", 0),
        ("self", "blocked", 1),
        ("ring2", "blocked", 2),
        ("pipe", "blocked", 1),
        ("hold", "blocked", 0),
    ] {
        let mut guard = Guard::start(&dir, &config, &[program.to_str().expect("a path"), way]);
        println!("{way}");
        if way == "spin" {
            guard.leave_loop();
        }
        let hang = guard.next("hang");
        let fields = hang.as_object().expect("an object");
        for promised in [
            "event",
            "kind",
            "pid",
            "tid",
            "section",
            "progress",
            "check_value",
            "since_ms",
            "latency_ms",
            "stacks",
            "cycle",
        ] {
            assert!(fields.contains_key(promised), "{way}: no {promised}: {hang:#}");
        }
        assert_eq!((&hang["event"], &hang["kind"]), (&"hang".into(), &kind.into()), "{way}");
        assert!(hang["section"].is_null(), "{way}: none is marked: {hang:#}");
        assert!(hang["progress"].is_u64() && hang["check_value"].is_u64(), "{way}: {hang:#}");
        let (since, latency) =
            (hang["since_ms"].as_f64().expect("since"), hang["latency_ms"].as_f64().expect("latency"));
        assert!(
            0.0 < latency && latency <= since && since <= hang["time_ms"].as_f64().expect("time"),
            "{way}: {hang:#}"
        );
        assert!(["cpu_ns", "instructions", "wait_ns"].iter().any(|u| hang["unit"] == *u), "{way}: {hang:#}");
        assert_eq!(hang["cycle"].as_array().map(Vec::len), Some(cycle), "{way}: {hang:#}");
        let stacks = hang["stacks"].as_array().expect("stacks");
        assert!(!stacks.is_empty(), "{way}: {hang:#}");
        for s in stacks {
            assert!(
                s["pid"].is_i64() && s["tid"].is_i64() && s["frames"].is_array() && s["python"].is_array(),
                "{way}: {s:#}"
            );
        }
        assert_eq!(
            (&stacks[0]["pid"], &stacks[0]["tid"]),
            (&hang["pid"], &hang["tid"]),
            "{way}: its own stack comes first"
        );
    }
}
