//! `orbit watch --system=crash` and `=reboot` do what they say when a CPU hangs: tried in the
//! laboratory, seen from outside.

use serde_json::Value;
use std::{path::Path, process::Command};

#[test]
fn a_hang_crashes_or_reboots_the_machine() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let orbit = Path::new(env!("CARGO_BIN_EXE_orbit"));
    // What is kept from run to run lies beside the programs: TARGET/PROFILE/orbit.
    let target = orbit.ancestors().nth(2).expect("a target directory");
    let output = Command::new("timeout")
        .args(["--kill-after=5", "600", "scripts/lab.sh", "--guard", "crash", "--guard", "reboot"])
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", target)
        .env("ORBIT_LAB_ORBIT", orbit)
        .output()
        .expect("a shell runs");
    let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(77) {
        println!("SKIP: needs the laboratory: {}", said.lines().last().unwrap_or_default());
        return;
    }
    print!("{text}{said}");
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of = |action: &str| lines.iter().find(|line| line["action"] == action).expect("a line for each action");
    assert!(of("crash")["panic_s"].is_f64(), "no panic; again: scripts/lab.sh --guard crash");
    assert!(of("reboot")["second_boot_s"].is_f64(), "no second boot; again: scripts/lab.sh --guard reboot");
}
