//! An error names the capabilities that an ordinary user lacks, and the program continues.

use orbit_uprobe::{Duty, Error, State};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

const MARK: &str = "ORBIT_UPROBE_TEST_AS_USER";
const NOBODY: u32 = 65534;

#[test]
fn the_capabilities_are_named() {
    if std::env::var_os(MARK).is_some() {
        let duty = Duty::start(Some(0.02));
        let start = Instant::now();
        loop {
            match duty.state() {
                State::Failed(e @ Error::NotPermitted(_)) => {
                    println!("error: {e}");
                    return;
                }
                State::Starting => assert!(start.elapsed() < Duration::from_secs(60)),
                other => panic!("{other:?}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    if !orbit_testing::needs_root() {
        return;
    }
    // A copy where everybody may read it.
    let copy = std::env::temp_dir().join(format!("orbit-uprobe-user-{}", std::process::id()));
    orbit_testing::copy_of_program(&std::env::current_exe().expect("the test"), &copy);
    let out = Command::new(&copy)
        .args(["the_capabilities_are_named", "--exact", "--nocapture"])
        .env(MARK, "1")
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/")
        .output();
    let _ = std::fs::remove_file(&copy);
    let out = out.expect("itself");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && text.contains("CAP_BPF and CAP_PERFMON"), "{text}");
}
