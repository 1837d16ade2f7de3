//! `orbit pins --json` has the twelve pins, each with a state, a facility, operations and events;
//! also for an ordinary user, with what is missing in place of a panic.

use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::process::Command;

const PINS: [&str; 12] =
    ["P_APIC", "P_DBR", "P_FILE", "P_INTR", "P_IPC", "P_MEM", "P_NET", "P_PERI", "P_PMC", "P_SCHL", "P_SIG", "P_SYSC"];

fn check(command: &mut Command) {
    let output = command.args(["pins", "--json"]).output().expect("orbit runs");
    let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.is_empty(), "{text} {said}");
    let rows: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let rows = rows["pins"].as_array().expect("pins");
    let names: Vec<_> = rows.iter().filter_map(|row| row["pin"].as_str()).collect();
    assert_eq!(names, PINS);
    for row in rows {
        let state = row["state"].as_str().expect("a state");
        assert!(["available", "fallback", "missing"].contains(&state), "{row}");
        assert_eq!(
            row["why"].as_str().is_none_or(str::is_empty),
            state == "available",
            "a reason where one is due: {row}"
        );
        for list in ["operations", "events"] {
            assert!(row[list].as_array().is_some_and(|list| !list.is_empty()), "{list} of {row}");
        }
        assert!(row["facility"].as_str().is_some_and(|by| !by.is_empty()), "{row}");
    }
}

#[test]
fn twelve_pins_have_a_row() {
    check(&mut Command::new(env!("CARGO_BIN_EXE_orbit")));
}

#[test]
fn twelve_pins_have_a_row_for_an_ordinary_user() {
    // SAFETY: no pointers are passed.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: needs root, to become an ordinary user");
        return;
    }
    // Opened by root: an ordinary user may not reach the folder where the command was built.
    let file = std::fs::File::open(env!("CARGO_BIN_EXE_orbit")).expect("the command");
    let path = format!("/proc/self/fd/{}", keep_open(&file));
    check(Command::new(path).uid(65534).gid(65534));
}

/// The number of a copy of the descriptor that stays open in the programs that this one starts.
fn keep_open(file: &std::fs::File) -> i32 {
    use std::os::fd::AsRawFd;
    // SAFETY: no pointers are passed; the copy is open until the test ends.
    let copy = unsafe { libc::dup(file.as_raw_fd()) };
    assert!(copy >= 0, "{}", std::io::Error::last_os_error());
    copy
}
