//! A module whose pin cannot work here is rejected with the pin's name, the module's, and what to
//! install or allow.

use std::os::unix::process::CommandExt;
use std::process::Command;

#[test]
fn to_an_ordinary_user() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orbit"));
    command.args(["modules", "run", "silence", "--", "true"]).current_dir("/");
    // SAFETY: reads a number.
    if unsafe { libc::geteuid() } == 0 {
        command.uid(65534).gid(65534);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            println!("SKIP: needs a build that ordinary users may run ({error})");
            return;
        }
    };
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(!output.status.success(), "{said}");
    for part in ["P_SYSC", "\"silence\"", "CAP_BPF"] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
}
