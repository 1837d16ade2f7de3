//! Services with protection keys, on an emulated CPU that has them: with ORBIT_TEST_FULL=1, since
//! the machine takes a minute or two to boot.

use serde_json::Value;
use std::{path::Path, process::Command};

#[test]
fn services_run_behind_keys() {
    if std::env::var_os("ORBIT_TEST_FULL").is_none() {
        println!("SKIP: needs ORBIT_TEST_FULL=1");
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = Path::new(env!("CARGO_BIN_EXE_orbit-lab"));
    let target = program.ancestors().nth(2).expect("a target directory");
    let output = Command::new("timeout")
        .args(["--kill-after=5", "1200", "scripts/lab.sh", "--keys"])
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
    let cycles = |measure: &str| {
        let row = lines.iter().find(|line| line["measure"] == measure);
        row.and_then(|row| row["ours"]["p50"].as_u64()).unwrap_or_else(|| panic!("no row {measure:?}: {text}{said}"))
    };
    let (by_key, by_pages) = (cycles("slot opened and closed by key"), cycles("opened and closed by mprotect, 64 KiB"));
    assert!(by_key < by_pages / 4, "{by_key} cycles by key, {by_pages} by mprotect");
    cycles("upcall there and back, by key");
}
