//! The commands under a real systemd, in a container of its own (systemd-nspawn) on an overlay of
//! this machine's root: `boot.sh` boots it, a script for each trial says what is in it.

#[path = "../guard_common/mod.rs"]
mod guard_common;

mod agent;
mod doctor;
mod keep;
mod package;

use guard_common::Dir;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Boots it with this trial and returns what was printed there; nothing, and a line that says so,
/// where that cannot be.
fn boot(trial: &str, arguments: &[&OsStr]) -> Option<String> {
    if !boots() {
        return None;
    }
    let dir = Dir::new(&format!("units-{trial}"));
    let folder = dir.0.join("machine");
    std::fs::create_dir(&folder).expect("made");
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/units");
    let done = Command::new(here.join("boot.sh"))
        .arg(&folder)
        .arg(here.join(format!("{trial}.sh")))
        .args(arguments)
        .output()
        .expect("a shell");
    let text = [&done.stdout[..], &done.stderr[..]].map(String::from_utf8_lossy).concat();
    if done.status.code() == Some(77) {
        println!("SKIP: needs {}", text.trim_end().replace('\n', "; "));
        return None;
    }
    assert!(text.contains("\nwhole\n"), "the trial did not reach its end:\n{text}");
    Some(text)
}

/// Whether there is what boots it; says what is missing.
fn boots() -> bool {
    let is_there = Command::new("systemd-nspawn").arg("--version").output().is_ok();
    if !is_there {
        println!("SKIP: needs systemd-nspawn (Debian's systemd-container)");
    }
    is_there
}

/// The command, for a trial.
fn orbit() -> &'static OsStr {
    OsStr::new(env!("CARGO_BIN_EXE_orbit"))
}
