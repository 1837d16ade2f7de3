//! Variables by which systemd names the guard's process name the program: it takes the sockets and
//! the watchdog for its own.

use crate::guard_common::skipped;
use std::process::Command;

const GIVEN: &str = "export LISTEN_PID=$$ WATCHDOG_PID=$$ SYSTEMD_EXEC_PID=$$ LISTEN_PIDFDID=7 LISTEN_FDS=2 \
    OTHER_PID=$$; exec \"$0\" \"$@\"";
const SHOWN: &str = "echo $$ $LISTEN_PID $WATCHDOG_PID $SYSTEMD_EXEC_PID ${LISTEN_PIDFDID-none} $LISTEN_FDS $OTHER_PID";

/// What a program shows that this command starts in an environment that this script makes.
fn shown(given: &str, command: &[&str]) -> Vec<String> {
    let orbit = env!("CARGO_BIN_EXE_orbit");
    let out = Command::new("sh").args(["-c", given, orbit]).args(command).args(["--", "sh", "-c", SHOWN]).output();
    let out = out.expect("sh");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}");
    String::from_utf8(out.stdout).expect("text").split_whitespace().map(str::to_owned).collect()
}

#[test]
fn what_names_the_guard_names_the_program() {
    if skipped() {
        return;
    }
    for command in [&["watch"][..], &["modules", "run", "ahd"]] {
        let words = shown(GIVEN, command);
        let own = words[0].as_str();
        assert_eq!(words[1..6], [own, own, own, "none", "2"], "{command:?}");
        assert!(words.len() == 7 && words[6] != own, "{command:?}: {words:?}");
    }
}

#[test]
fn what_names_another_stays() {
    if skipped() {
        return;
    }
    let words = shown("export LISTEN_PID=1 WATCHDOG_PID= LISTEN_PIDFDID=7; exec \"$0\" \"$@\"", &["watch"]);
    assert_eq!(words[1..3], ["1", "7"], "{words:?}");
}
