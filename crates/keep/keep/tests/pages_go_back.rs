//! A program that writes thousands of pages between two checkpoints, and while one is taken, finds
//! each page after a crash as it was at the checkpoint.

mod common;

use common::{KEEP, Scratch, count, events, lacks, lacks_tracking, until};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

fn compiled(scratch: &Scratch) -> PathBuf {
    let program = scratch.join("pages");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/pages.c");
    let compiled = Command::new("cc").args(["-O1", source, "-o"]).arg(&program).status().expect("cc");
    assert!(compiled.success());
    program
}

/// The rungs newest and older, for crashes at one address.
const CRASHES: usize = 3;

/// The keeper has memory of its own in the program while that stands still for its first
/// checkpoint.
#[test]
fn the_first_checkpoint_has_only_mappings_of_the_program() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("pages-first");
    let program = compiled(&scratch);
    let file = scratch.join("events");
    let mut keeper = Command::new(KEEP)
        .args(common::BEST_EFFORT)
        .args(["--every", "2s", "--events"])
        .arg(&file)
        .arg("--")
        .arg(&program)
        .arg(&scratch.0)
        .spawn()
        .expect("orbit-keep");
    until("it is kept", || (count(&file, "kept") > 0).then_some(()));
    fs::write(scratch.join("crash"), "").expect("written");
    until("it is put back", || (count(&file, "recovered") > 0).then_some(()));
    fs::write(scratch.join("stop"), "").expect("written");
    assert_eq!(until("it exits", || keeper.try_wait().expect("a child")).code(), Some(7), "no page was wrong");
    let all = events(&file);
    let put_back = all.iter().find(|e| e["event"] == "recovered").expect("a recovery");
    assert_eq!(put_back["restored"]["mappings"], 0, "{put_back}");
}

#[test]
fn every_page_is_that_of_the_checkpoint() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("pages");
    let program = compiled(&scratch);
    let file = scratch.join("events");
    let mut keeper = Command::new(KEEP)
        .args(common::BEST_EFFORT)
        .args(["--every", "60ms", "--events"])
        .arg(&file)
        .arg("--")
        .arg(&program)
        .arg(&scratch.0)
        .spawn()
        .expect("orbit-keep");
    until("it is kept", || (count(&file, "kept") > 0).then_some(()));
    for crash in 1..=CRASHES {
        // Some checkpoints in between: of the first all pages are read by the keeper.
        std::thread::sleep(std::time::Duration::from_millis(400));
        fs::write(scratch.join("crash"), "").expect("written");
        until("it is put back", || (count(&file, "recovered") >= crash).then_some(()));
    }
    fs::write(scratch.join("stop"), "").expect("written");
    let status = until("it exits", || keeper.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(7), "no page was wrong");
    let all = events(&file);
    let put_back = all.iter().filter(|e| e["event"] == "recovered");
    assert!(put_back.filter_map(|e| e["restored"]["pages"].as_u64()).any(|pages| pages > 1000), "pages were put back");
    let copied = all.last().and_then(|e| e["figures"]["pages"].as_u64()).expect("figures");
    assert!(copied > 10_000, "{copied} pages were copied");
}
