//! The shipped unit under a real systemd, in a container of its own: with three capabilities as a
//! user of its own, the agent finds the service of another user that hangs, has systemd start it
//! again, and stops at its budget.

use crate::guard_common::{Dir, build, skipped};
use std::path::Path;
use std::process::Command;

#[test]
fn systemd_starts_a_hung_service_again_and_the_agent_stops_at_its_budget() {
    if skipped() {
        return;
    }
    if Command::new("systemd-nspawn").arg("--version").output().is_err() {
        println!("SKIP: needs systemd-nspawn (Debian's systemd-container)");
        return;
    }
    let dir = Dir::new("agent-machine");
    let hangs = build(&dir, "hangs.c");
    let folder = dir.0.join("machine");
    std::fs::create_dir(&folder).expect("made");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let done = Command::new(here.join("tests/agent/machine.sh"))
        .args([&folder, Path::new(env!("CARGO_BIN_EXE_orbit")), &hangs, &here.join("../../packaging")])
        .output()
        .expect("a shell");
    let text = [&done.stdout[..], &done.stderr[..]].map(String::from_utf8_lossy).concat();
    if done.status.code() == Some(77) {
        println!("SKIP: needs {}", text.trim_end().replace('\n', "; "));
        return;
    }
    for line in [
        "NRestarts=1\nId=victim.service\nActiveState=active\n",
        "NRestarts=0\nId=healthy.service\nActiveState=active\n",
        "NRestarts=0\nId=orbit-agent.service\nActiveState=active\n",
        // CAP_DAC_READ_SEARCH, CAP_KILL and CAP_SYS_PTRACE.
        "CapEff:\t0000000000080024\n",
        "NoNewPrivs:\t1\n",
        "Seccomp:\t2\n",
        "\nhangs 2\n",
        "the main process of its unit; its manager starts it again\n",
        "/run/orbit/agent.sock 660 orbit:orbit\n/run/orbit/active.json 640 orbit:orbit\n",
        "/var/lib/orbit/reports/ 700 orbit:orbit\n",
        "no restart: victim.service has had its 1 of this hour\n",
        "read again: 1 policies\nwhole\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in:\n{text}");
    }
}
