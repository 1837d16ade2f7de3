//! The laboratory in short: each kind of hang of one CPU is found once, nothing is alarmed falsely,
//! faults in a driver come to an end. About a minute; the full form is `scripts/lab.sh --full`.

use serde_json::Value;
use std::{path::Path, process::Command};

#[test]
fn each_kind_of_hang_is_found() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = Path::new(env!("CARGO_BIN_EXE_orbit-lab"));
    // What is kept from run to run lies beside the programs: TARGET/PROFILE/orbit-lab.
    let target = program.ancestors().nth(2).expect("a target directory");
    let output = Command::new("timeout")
        .args(["--kill-after=5", "600", "scripts/lab.sh", "--short", "--faults", "2"])
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", target)
        .env("ORBIT_LAB_PROGRAM", program)
        .output()
        .expect("a shell runs");
    let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(77) {
        println!("SKIP: needs the laboratory: {}", said.lines().last().unwrap_or_default());
        return;
    }
    print!("{text}{said}");
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let found = |kind: &str| lines.iter().any(|line| line["run"] == kind && line["reported_ms"].is_u64());
    for kind in ["preempt", "irq", "lock", "lock-irq", "order", "halt", "kernel"] {
        assert!(found(kind), "{kind} was not found; again: scripts/lab.sh --short");
    }
    for line in &lines {
        if let Some(kind) = line["again"].as_str() {
            println!("{kind} was not found at first, and was made again");
        }
        // Five times in a row: none of them counted.
        match line["hangs"]["load_void"].as_u64() {
            Some(5..) => {
                println!("SKIP: needs a host that runs both CPUs of its machine: the load says nothing of false alarms")
            }
            Some(void @ 1..) => println!("the host did not run a CPU in {void} loads of this machine, made again"),
            _ => {}
        }
    }
    let sum = lines.iter().position(|line| line["hangs"].is_object()).expect("a sum");
    assert_eq!(lines[sum]["hangs"]["false_alarms"], 0, "{}", lines[sum]);
    // The detection ends behind this line, piece by piece: that must not be taken for a hang. An
    // alarm for a CPU that the host did not run meanwhile is none of that.
    let ending = lines[sum..].iter().find(|line| line["unwatched"].is_object()).expect("an end of the detection");
    assert_eq!(ending["unwatched"]["false_alarms"], 0, "{ending}");
    let faults = lines.iter().filter(|line| line["outcome"].is_string()).count();
    assert_eq!(faults, 2, "faults without an outcome; again: scripts/lab.sh --faults 2");
}
