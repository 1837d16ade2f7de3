//! The other parts of `orbit bench ahd` give their rows, raise no alarm, and leave nothing behind.
//! No times are judged here.

use serde_json::Value;
use std::process::Command;

/// Runs parts with a directory for temporary files that must be empty afterwards; the rows.
fn rows(parts: &[&str]) -> Option<Vec<Value>> {
    if Command::new("cc").arg("--version").output().is_err() {
        println!("SKIP: needs cc");
        return None;
    }
    // A short path: it holds sockets.
    let dir = std::env::temp_dir().join(format!("oba-{}-{}", std::process::id(), parts[1]));
    std::fs::create_dir_all(&dir).expect("a directory");
    let output = Command::new(env!("CARGO_BIN_EXE_orbit-bench"))
        .args(["ahd", "--quick", "--rounds", "12", "--minutes", "0.05", "--json", "-"])
        .args(parts)
        .env("TMPDIR", &dir)
        .output()
        .expect("orbit runs");
    // Fails unless it is empty.
    std::fs::remove_dir(&dir).expect("nothing is left on disk");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
    let mut report: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    println!("{:#}", report["notes"]);
    Some(serde_json::from_value(report["rows"].take()).expect("rows"))
}

#[test]
fn rings_stops_sections() {
    let Some(rows) = rows(&["--part", "rings", "--part", "stops", "--part", "sections"]) else {
        return;
    };
    assert_eq!((&rows[0]["part"], &rows[0]["reported"]), (&"rings".into(), &0.into()));
    assert!(rows[1]["by"] == "orbit" && rows[1]["stopped_ms"]["p50"].as_f64() > Some(0.0), "{}", rows[1]);
    let of = |part: &str| rows.iter().filter(|row| row["part"] == part).collect::<Vec<_>>();
    let [source] = of("sections")[..] else { panic!("{rows:?}") };
    assert!(source["pair_ns"][0].as_f64() > Some(0.0), "{source}");
    // None where there are no uprobes, or no Redis; the notes say so.
    for row in of("marked") {
        assert!(row["function"].is_string() && row["share_percent"].as_f64() >= Some(0.0), "{row}");
        assert_eq!(row["hits"].as_u64() > Some(0), row["ns_per_hit"].as_f64() > Some(0.0), "{row}");
        assert!(["many at a time", "one by one"].iter().any(|way| row["attached"] == *way), "{row}");
    }
}

#[test]
fn alarms() {
    let Some(rows) = rows(&["--part", "alarms"]) else {
        return;
    };
    for row in &rows {
        assert_eq!((&row["part"], &row["false_alarms"]), (&"alarms".into(), &0.into()), "{row}");
        assert!(row["rounds"].as_u64() > Some(0), "{row}");
    }
}

#[test]
fn cost() {
    let Some(rows) = rows(&["--part", "cost"]) else {
        return;
    };
    for row in &rows {
        assert!(row["part"] == "cost" && row["off_ns"].as_f64() > Some(0.0), "{row}");
        for ratio in ["server_ratio", "with_guard_ratio", "null_ratio"] {
            assert!(
                row[ratio].as_array().is_some_and(|r| r.len() == 3 && r[1].as_f64() > Some(0.0)),
                "{ratio} of {row}"
            );
        }
    }
}
