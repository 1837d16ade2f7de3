//! Programs in PID namespaces of their own that share one tree of control groups do not get into
//! each other's way: what a process 1 leaves behind hinders no later process 1, and the groups of a
//! living program are left alone by all others.

mod common;
mod limits_common;

use std::ffi::{c_long, c_void};
use std::path::PathBuf;
use std::process::Command;

use common::groups_of;
use limits_common::needs_group;
use orbit::{Limits, Orbit};

unsafe extern "C" fn nothing(_: *mut c_void, _: *mut c_void) -> c_long {
    0
}

fn limited(name: &str) -> Orbit {
    Orbit::builder(name).entry(nothing).limits(Limits::new().memory(64 << 20)).build().expect("orbit")
}

/// The life of a program in a namespace of its own: an orbit with a group, which is left as it is,
/// since the kernel ends all of a namespace with its process 1.
fn live(name: &str) -> ! {
    let orbit = limited(name);
    println!("number {}, held: {}", std::process::id(), orbit.limits_held());
    // SAFETY: ends this process, without what its orbits would want at their end.
    unsafe { libc::_exit(0) }
}

/// What such a program says, which runs this test as process 1 of a PID namespace; `None`: there is
/// none available.
fn in_a_namespace(test: &str, name: &str) -> Option<String> {
    let ran = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc"])
        .arg(std::env::current_exe().expect("own path"))
        .args(["--exact", test, "--nocapture"])
        .env("ORBIT_TEST_LIVE", name)
        .output();
    let said = ran.map_err(|e| e.to_string()).and_then(|out| {
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        said.contains("number ").then_some(said).ok_or(String::from_utf8_lossy(&out.stderr).into_owned())
    });
    match said {
        Ok(said) => {
            assert!(said.contains("number 1,"), "process 1 of its namespace: {said}");
            Some(said)
        }
        Err(why) => {
            println!("SKIP: needs unshare and the right to a PID namespace: {why}");
            None
        }
    }
}

/// The groups of orbits of this name, of whichever process 1.
fn left_by_process_1(name: &str) -> Vec<PathBuf> {
    let mut left = groups_of(1);
    left.retain(|dir| dir.to_string_lossy().ends_with(&format!("-{name}")));
    left
}

fn remove(dirs: &[PathBuf]) {
    for dir in dirs {
        let _ = std::fs::remove_dir(dir);
    }
}

#[test]
fn what_a_process_1_leaves_behind_hinders_no_other() {
    if let Ok(name) = std::env::var("ORBIT_TEST_LIVE") {
        live(&name);
    }
    if needs_group("memory").is_none() {
        return;
    }
    let name = format!("left{}", std::process::id());
    let said: Vec<String> =
        (0..3).filter_map(|_| in_a_namespace("what_a_process_1_leaves_behind_hinders_no_other", &name)).collect();
    let before = left_by_process_1(&name).len();
    // A program that can see that their namespaces are gone: root in the first one.
    let mut host = Command::new(std::env::current_exe().expect("own path"));
    let host = host.args(["--exact", "what_a_process_1_leaves_behind_hinders_no_other", "--nocapture"]);
    let ran = host.env("ORBIT_TEST_LIVE", format!("host{}", std::process::id())).output();
    let after = left_by_process_1(&name);
    remove(&after);
    if said.is_empty() {
        return;
    }
    for said in said {
        assert!(said.contains("memory 67108864 bytes by control group\n"), "{said}");
    }
    assert!(before > 0, "a group was left, or nothing is tested");
    assert!(ran.is_ok_and(|ran| ran.status.success()));
    if orbit_linux::procfs::in_first_pid_namespace() {
        assert!(after.is_empty(), "{after:?}");
    } else {
        println!("SKIP: needs the first PID namespace, to see that others are gone");
    }
}

#[test]
fn a_program_elsewhere_leaves_the_groups_of_a_living_one_alone() {
    if let Ok(name) = std::env::var("ORBIT_TEST_LIVE") {
        live(&name);
    }
    if needs_group("memory").is_none() {
        return;
    }
    let orbit = limited("living");
    let own = || {
        let mut dirs = groups_of(std::process::id());
        dirs.retain(|dir| dir.to_string_lossy().ends_with("-living"));
        dirs
    };
    let before = own();
    let name = format!("other{}", std::process::id());
    let ran = in_a_namespace("a_program_elsewhere_leaves_the_groups_of_a_living_one_alone", &name);
    remove(&left_by_process_1(&name));
    if ran.is_none() {
        return;
    }
    assert_eq!(own(), before);
    orbit.set_limits(Limits::new().memory(64 << 20).cpu_percent(50)).expect("a share as well");
    let held = orbit.limits_held();
    if !held.contains("CPU 50 % by control group") {
        println!("SKIP: needs a control group that bounds CPU ({held})");
        return;
    }
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", orbit.pid())).expect("its groups");
    let inside = groups.lines().filter(|line| line.ends_with("-living")).count();
    assert_eq!(inside, before.len(), "held by all of its group: {groups}");
}
