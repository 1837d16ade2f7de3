//! Without a log: a rollback cuts what the program itself has appended to a file since the
//! checkpoint, and never a line of another process.

mod common;

use common::{KEEP, Scratch, events, lacks, lacks_tracking, until};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// A program that has a checkpoint taken, appends a line, waits, appends another and crashes, once.
const PROGRAM: &str = r#"
import ctypes, os, signal, sys, time
folder = sys.argv[1]
def is_there(name): return os.path.exists(folder + "/" + name)
def make(name): open(folder + "/" + name, "w").close()
log = os.open(folder + "/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(log, b"own 0\n")
ctypes.CDLL(None).orbit_keep_output_barrier()
os.write(log, b"own 1\n")
make("first")
while not is_there("go"): time.sleep(0.01)
os.write(log, b"own 2\n")
if not is_there("crashed"):
    make("crashed")
    os.kill(os.getpid(), signal.SIGSEGV)
"#;

/// Runs it; `meanwhile` comes between its lines 1 and 2. Returns the lines of the file, and what
/// the recovery has restored.
fn run<T>(name: &str, meanwhile: impl FnOnce(&Path) -> T) -> (Vec<String>, serde_json::Value) {
    let scratch = Scratch::new(name);
    let (file, log) = (scratch.join("events"), scratch.join("log"));
    let mut keeper = Command::new(KEEP)
        .args(common::BEST_EFFORT)
        .args(["--every", "10m", "--events"])
        .arg(&file)
        .args(["--", "/usr/bin/python3", "-c", PROGRAM])
        .arg(&scratch.0)
        .spawn()
        .expect("orbit-keep");
    until("its first line", || scratch.join("first").exists().then_some(()));
    // Held until the rollback is done.
    let held = meanwhile(&log);
    fs::write(scratch.join("go"), "").expect("written");
    let recovered = until("it is put back", || events(&file).into_iter().find(|e| e["event"] == "recovered"));
    drop(held);
    assert!(until("it exits", || keeper.try_wait().expect("a child")).success());
    let text = fs::read_to_string(&log).expect("a file");
    (text.lines().map(str::to_owned).collect(), recovered["restored"].clone())
}

fn is_missing() -> bool {
    lacks("python3") || lacks_tracking()
}

fn append(log: &Path) -> fs::File {
    let mut file = OpenOptions::new().append(true).open(log).expect("opened");
    file.write_all(b"other\n").expect("written");
    file
}

#[test]
fn its_own_lines_are_cut_and_there_once() {
    if is_missing() {
        return;
    }
    let (lines, restored) = run("append-own", |_| ());
    assert_eq!(lines, ["own 0", "own 1", "own 2"]);
    assert_eq!(restored["files_not_cut"], 0);
}

#[test]
fn a_line_of_a_process_that_has_the_file_open_stays() {
    if is_missing() {
        return;
    }
    // This test has it open; with the program's line after its own the end is the program's.
    let (lines, restored) = run("append-open", append);
    assert_eq!(lines, ["own 0", "own 1", "other", "own 2", "own 1", "own 2"]);
    assert_eq!(restored["files_not_cut"], 1);
    assert!(restored["left"].to_string().contains("another process appends to it too"), "{restored}");
}

#[test]
fn a_line_of_a_process_that_is_gone_stays() {
    if is_missing() {
        return;
    }
    let (lines, restored) = run("append-gone", |log| drop(append(log)));
    assert_eq!(lines, ["own 0", "own 1", "other", "own 2", "own 1", "own 2"]);
    assert_eq!(restored["files_not_cut"], 1);
}

/// A program that has another log open with each checkpoint, and waits then.
const ROTATES: &str = r#"
import ctypes, os, sys, time
folder = sys.argv[1]
for nth in range(40):
    log = os.open(folder + "/log%d" % nth, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, b"line\n")
    ctypes.CDLL(None).orbit_keep_output_barrier()
    os.close(log)
open(folder + "/rotated", "w").close()
while not os.path.exists(folder + "/go"): time.sleep(0.01)
"#;

#[test]
fn files_that_no_checkpoint_has_are_not_watched() {
    if is_missing() {
        return;
    }
    let scratch = Scratch::new("append-rotates");
    let mut keeper = Command::new(KEEP)
        .args(["--every", "10m", "--", "/usr/bin/python3", "-c", ROTATES])
        .arg(&scratch.0)
        .spawn()
        .expect("orbit-keep");
    until("it has rotated its log", || scratch.join("rotated").exists().then_some(()));
    let infos = fs::read_dir(format!("/proc/{}/fdinfo", keeper.id())).expect("its descriptors");
    let texts = infos.filter_map(|info| fs::read_to_string(info.ok()?.path()).ok()).collect::<String>();
    let watched = texts.lines().filter(|line| line.starts_with("inotify wd")).count();
    fs::write(scratch.join("go"), "").expect("written");
    assert!(until("it exits", || keeper.try_wait().expect("a child")).success());
    // Of each of the four checkpoints that are kept.
    assert!((1..=5).contains(&watched), "{watched} files are watched");
}
