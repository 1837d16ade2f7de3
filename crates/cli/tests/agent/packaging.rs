//! What is shipped beside the command: the unit, the configuration, the alert rules.

use std::path::PathBuf;
use std::process::Command;

fn packaging(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file)
}

#[test]
fn the_unit_is_rated_at_most_3_5() {
    let rated = Command::new("systemd-analyze")
        .args(["security", "--offline=yes", "--threshold=35", "--no-pager"])
        .arg(packaging("orbit-agent.service"))
        .output();
    let Ok(rated) = rated else {
        println!("SKIP: needs systemd-analyze");
        return;
    };
    let text = [&rated.stdout[..], &rated.stderr[..]].map(String::from_utf8_lossy).concat();
    if text.contains("unrecognized option") {
        println!("SKIP: needs systemd-analyze security --offline (systemd 250)");
        return;
    }
    assert!(rated.status.success(), "{text}");
    let rate =
        text.lines().find_map(|line| line.split_once("exposure level for ")?.1.split(' ').nth(1)?.parse::<f64>().ok());
    assert!(rate.is_some_and(|rate| rate <= 3.5), "{text}");
}

#[test]
fn the_unit_has_three_rights_and_no_more() {
    let unit = std::fs::read_to_string(packaging("orbit-agent.service")).expect("the unit");
    for line in [
        "CapabilityBoundingSet=CAP_SYS_PTRACE CAP_DAC_READ_SEARCH CAP_KILL",
        "AmbientCapabilities=CAP_SYS_PTRACE CAP_DAC_READ_SEARCH CAP_KILL",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
    ] {
        assert!(unit.lines().any(|own| own == line), "{line}");
    }
}

#[test]
fn the_configuration_is_sound() {
    let done = Command::new(env!("CARGO_BIN_EXE_orbit"))
        .args(["agent", "--check"])
        .arg(packaging("agent.toml"))
        .output()
        .expect("orbit");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn the_alert_rules_pass_their_own_tests() {
    let folder = packaging("prometheus");
    for arguments in [["check", "rules", "orbit.rules.yml"], ["test", "rules", "orbit.rules.test.yml"]] {
        let Ok(done) = Command::new("promtool").args(arguments).current_dir(&folder).output() else {
            println!("SKIP: needs promtool (Debian's prometheus)");
            return;
        };
        let text = [&done.stdout[..], &done.stderr[..]].map(String::from_utf8_lossy).concat();
        assert!(done.status.success() && text.contains("SUCCESS"), "{text}");
    }
}
