//! `orbit bench shd` makes rows and figures to reach of what the laboratory says, and says what it
//! needs where there is none. The laboratory here is a script with a known result: the real one
//! takes most of an hour.

use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Output},
};

const RESULT: &str = r#"
{"started":{"counter":false,"cpus":2}}
{"run":"preempt","cpu":0,"reported_ms":200,"wrong":0}
{"run":"irq","cpu":1,"reported_ms":null,"wrong":0}
{"run":"preempt","cpu":1,"reported_ms":240,"wrong":0}
{"rival":"preempt","threshold_s":10,"lasted_ms":45000,"shd_s":0.2,"soft_lockup_s":22.5,"rcu_stall_s":null}
{"every_cpu":"irq","threshold_s":1,"heartbeat_s":1.1,"panic_s":null}
{"hangs":{"runs":3,"found":2,"dragged":0,"wrong":0,"false_alarms":0,"p50_ms":240,"max_ms":240}}
"#;

fn bench(name: &str, script: &str) -> Output {
    let path: PathBuf = std::env::temp_dir().join(format!("orbit-lab-{name}-{}", std::process::id()));
    let text = path.with_extension("text");
    fs::write(&text, script).expect("a temporary file");
    fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).expect("its mode");
    // By a process of its own: a file that this one writes is no program as long as a child of
    // another test has it too.
    assert!(Command::new("cp").args([&text, &path]).status().expect("cp").success());
    let output = Command::new(env!("CARGO_BIN_EXE_orbit-bench"))
        .args(["shd", "--json", "-", "--lab"])
        .arg(&path)
        .output()
        .expect("orbit runs");
    for file in [&text, &path] {
        let _ = fs::remove_file(file);
    }
    output
}

#[test]
fn rows_hold_what_the_laboratory_said() {
    // 1: something was missed.
    let output = bench("rows", &format!("#!/bin/sh\ncat <<'END'{RESULT}END\nexit 1\n"));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let row = |kind: &str| report["rows"].as_array().expect("rows").iter().find(|row| row["kind"] == kind).expect(kind);
    assert_eq!((&row("preempt")["runs"], &row("preempt")["found"]), (&2.into(), &2.into()));
    assert_eq!(row("preempt")["shd_max_ms"], 240.0);
    assert_eq!(row("preempt")["counter"], "ticks of the neighbours (no PMU)");
    assert_eq!(row("preempt")["rivals"]["soft_lockup_s"], 22.5);
    assert!(row("preempt")["rivals"]["rcu_stall_s"].is_null());
    assert_eq!((&row("irq")["runs"], &row("irq")["found"]), (&1.into(), &0.into()));
    assert_eq!(row("irq")["every_cpu_thresh_1"]["heartbeat_s"], 1.1);
    let met: Vec<&Value> = report["reach"].as_array().expect("reach").iter().map(|reach| &reach["met"]).collect();
    assert_eq!(met, [false, true, true, true, true]);
}

#[test]
fn it_says_what_the_laboratory_lacks() {
    let output = bench("lacks", "#!/bin/sh\necho 'lab.sh: needs an emulator' >&2\nexit 77\n");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("needs an emulator"), "{said}");
    let nowhere = Command::new(env!("CARGO_BIN_EXE_orbit-bench"))
        .args(["shd", "--lab", "/nowhere/lab.sh"])
        .output()
        .expect("orbit runs");
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("/nowhere/lab.sh"));
}
