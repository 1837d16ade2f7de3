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

/// What threads wait for stands in files of mode 0400: the right to trace alone does not open them.
#[test]
fn the_right_to_read_files_is_named_to_who_has_that_to_trace() {
    // SAFETY: plain call.
    if unsafe { libc::geteuid() } != 0 || Command::new("setpriv").arg("--version").output().is_err() {
        println!("SKIP: needs root and setpriv");
        return;
    }
    let other = Owned(Command::new("sleep").arg("60").spawn().expect("sleep"));
    let out = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all,+sys_ptrace"])
        .args(["--ambient-caps=-all,+sys_ptrace", "--bounding-set=-all,+sys_ptrace"])
        .args([env!("CARGO_BIN_EXE_orbit"), "watch", "--pid", &other.0.id().to_string()])
        .current_dir("/")
        .output()
        .expect("setpriv");
    let said = String::from_utf8_lossy(&out.stderr);
    if said.contains("failed to execute") {
        println!("SKIP: needs a build directory that everybody may read ({said})");
        return;
    }
    assert_eq!(out.status.code(), Some(125), "{said}");
    assert!(said.contains("CAP_DAC_READ_SEARCH"), "{said}");
}
