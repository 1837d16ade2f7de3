//! `orbit_keep_output_barrier`: what was written before it is not written again after a crash.

mod common;

use common::{KEEP, Scratch, lacks, lacks_tracking};
use std::process::Command;

#[test]
fn output_before_a_barrier_is_not_repeated() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("barrier");
    let program = scratch.join("barrier");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/barrier.c");
    assert!(Command::new("cc").args(["-O1", source, "-o"]).arg(&program).status().expect("cc").success());
    // No checkpoint but that of the barrier.
    let run = Command::new(KEEP)
        .args(common::BEST_EFFORT)
        .args(["--every", "10m", "--"])
        .arg(&program)
        .arg(&scratch.0)
        .output()
        .expect("orbit-keep");
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(7), "{said}");
    assert!(said.contains("put back"), "{said}");
    assert_eq!(String::from_utf8_lossy(&run.stdout), "before\nafter\n");
    let unkept = Scratch::new("barrier-unkept");
    let status = Command::new(&program).arg(&unkept.0).stdout(std::process::Stdio::null()).status().expect("runs");
    assert_eq!(status.code(), Some(4), "without a keeper there is no barrier");
}
