//! Events continue in a new file of the same name once theirs was renamed or removed, as logrotate
//! does; where none can be made, in theirs.

use crate::guard_common::{Dir, Owned, signal, skipped, until};
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn a_file_that_was_renamed_is_made_again() {
    if skipped() {
        return;
    }
    let dir = Dir::new("events-renamed");
    let [events, old, stderr] = ["events", "events.1", "stderr"].map(|name| dir.0.join(name));
    // Children come and go, so there is always something to report.
    let guard = Command::new(env!("CARGO_BIN_EXE_orbit"))
        .args(["watch", "--events", events.to_str().expect("a path"), "--"])
        .args(["sh", "-c", "trap 'exit 4' TERM; while :; do sleep 0.4; done"])
        .stdout(Stdio::null())
        .stderr(File::create(&stderr).expect("a file"))
        .spawn();
    let mut guard = Owned(guard.expect("orbit"));
    let lines = |path: &Path| fs::read_to_string(path).unwrap_or_default().lines().count();
    let said = || fs::read_to_string(&stderr).unwrap_or_default();
    until("events", || (lines(&events) >= 3).then_some(()));
    fs::rename(&events, &old).expect("a file");
    until("a new file", || (lines(&events) >= 3).then_some(()));
    fs::remove_file(&events).expect("a file");
    until("another one", || (lines(&events) >= 3).then_some(()));
    assert_eq!(said(), "");

    // A new file may be made before the directory is.
    until("a directory", || {
        fs::rename(&events, &old).expect("a file");
        fs::create_dir(&events).ok()
    });
    let before = lines(&old);
    until("events in the old one", || (lines(&old) >= before + 3).then_some(()));
    assert_eq!(said().matches("they go to the file that had this name").count(), 1, "{}", said());
    fs::remove_dir(&events).expect("a directory");
    until("a file again", || (lines(&events) >= 3).then_some(()));

    signal(guard.0.id() as i32, libc::SIGTERM);
    let status = until("the guard's end", || guard.0.try_wait().expect("wait"));
    assert_eq!(status.code(), Some(4), "{}", said());
    for path in [&events, &old] {
        let text = fs::read_to_string(path).expect("text");
        let broken: Vec<&str> = text.lines().filter(|line| serde_json::from_str::<Value>(line).is_err()).collect();
        assert!(broken.is_empty(), "{broken:?}");
    }
}
