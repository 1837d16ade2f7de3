//! `orbit bench pins` accounts for every event that was sent, at every pace. No rates or times are
//! judged here.

use serde_json::Value;
use std::process::Command;

#[test]
fn every_event_is_received_or_lost() {
    // SAFETY: no pointers are passed.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: needs root, for kernel programs");
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_orbit-bench"))
        .args(["pins", "--quick", "--json", "-"])
        .output()
        .expect("orbit runs");
    let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if said.contains("kernel programs") || said.contains("CAP_BPF") {
        println!("SKIP: needs kernel programs: {said}");
        return;
    }
    assert!(output.status.success(), "{text} {said}");
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 5);
    for row in rows {
        let count = |field: &str| row[field].as_u64().unwrap_or_else(|| panic!("{field} of {row}"));
        assert_eq!(count("received") + count("lost"), count("sent"), "{row}");
        if let Some(pace) = row["target_per_s"].as_u64() {
            assert_eq!(count("sent"), pace, "one second's calls: {row}");
        }
    }
    assert!(rows[4]["call_ns"].is_f64() && rows[4]["call_unseen_ns"].is_f64(), "{}", rows[4]);
    assert_eq!(report["reach"].as_array().map(Vec::len), Some(1));
}
