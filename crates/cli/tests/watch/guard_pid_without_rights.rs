//! A program that this user may not inspect is not joined: hardly anything of it could be found.

use crate::guard_common::Owned;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

const NOBODY: u32 = 65534;

#[test]
fn is_refused_with_what_it_takes() {
    // SAFETY: plain call.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: needs root, to become another user");
        return;
    }
    let other = Owned(Command::new("sleep").arg("60").spawn().expect("sleep"));
    let mut orbit = Command::new(env!("CARGO_BIN_EXE_orbit"));
    orbit.args(["watch", "--pid", &other.0.id().to_string()]).uid(NOBODY).gid(NOBODY).current_dir("/");
    let out = match orbit.output() {
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            println!("SKIP: needs a build directory that everybody may read ({e})");
            return;
        }
        out => out.expect("orbit"),
    };
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(125), "{said}");
    assert!(said.contains("CAP_SYS_PTRACE") && said.contains(&other.0.id().to_string()), "{said}");
}
