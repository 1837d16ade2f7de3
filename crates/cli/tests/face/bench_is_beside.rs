//! `orbit bench` runs the program orbit-bench that is installed beside it, or says that it is
//! missing.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// A folder with a copy of the command, removed at the end.
struct Installed(PathBuf);

impl Installed {
    fn new(name: &str) -> Installed {
        let folder = std::env::temp_dir().join(format!("orbit-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        orbit_testing::copy_of_program(env!("CARGO_BIN_EXE_orbit").as_ref(), &folder.join("orbit"));
        Installed(folder)
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn arguments_and_status_are_passed_on() {
    let installed = Installed::new("beside");
    let bench = installed.0.join("orbit-bench");
    std::fs::write(&bench, "#!/bin/sh\necho \"$@\"\nexit 7\n").expect("a script");
    std::fs::set_permissions(&bench, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let output = Command::new(installed.0.join("orbit")).args(["bench", "call", "--quick", "--help"]).output();
    let output = output.expect("orbit runs");
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "call --quick --help\n");
}

#[test]
fn missing_it_is_named() {
    let installed = Installed::new("alone");
    let output = Command::new(installed.0.join("orbit")).args(["bench", "call"]).output().expect("orbit runs");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("orbit-bench") && said.contains("make build"), "{said}");
}
