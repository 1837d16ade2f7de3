//! Events that cannot be written are counted and reported on stderr, once for all in a row; a line
//! written in part spoils no other.

use crate::guard_common::{Dir, Owned, PATIENCE, signal, skipped, until};
use serde_json::Value;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ORBIT: &str = env!("CARGO_BIN_EXE_orbit");

#[test]
fn reported_at_the_first_and_at_the_end() {
    let out = Command::new(ORBIT).args(["watch", "--events", "/dev/full", "--", "sh", "-c", "exit 3"]).output();
    let out = out.expect("orbit");
    let said = String::from_utf8(out.stderr).expect("text");
    assert_eq!(out.status.code(), Some(3), "{said}");
    assert_eq!(said.matches("cannot write events to /dev/full: No space left").count(), 1, "{said}");
    let words: Vec<&str> = said.lines().last().unwrap_or_default().split_whitespace().collect();
    let count = words.iter().find_map(|word| word.parse::<u32>().ok());
    assert!(count >= Some(2) && said.trim_end().ends_with("events could not be written to /dev/full"), "{said}");
}

/// Lets the process make no file longer than this.
fn limit(pid: i32, bytes: libc::rlim_t) {
    let now = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the struct outlives the call; the old limit is not asked for.
    assert_eq!(unsafe { libc::prlimit(pid, libc::RLIMIT_FSIZE, &raw const now, std::ptr::null_mut()) }, 0);
}

#[test]
fn a_line_written_in_part_spoils_no_other() {
    if skipped() {
        return;
    }
    let dir = Dir::new("full");
    let (events, stderr) = (dir.0.join("events"), dir.0.join("stderr"));
    // Children come and go, so there is always something to report.
    let mut command = Command::new(ORBIT);
    command
        .args(["watch", "--events", events.to_str().expect("a path"), "--"])
        .args(["sh", "-c", "trap 'exit 4' TERM; while :; do sleep 0.4; done"])
        .stdout(Stdio::null())
        .stderr(File::create(&stderr).expect("a file"));
    // SAFETY: only async-signal-safe calls. What is too long is an error then, as on a disk that is
    // full.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            Ok(())
        });
    }
    let mut guard = Owned(command.spawn().expect("orbit"));
    let pid = guard.0.id() as i32;
    let written = || std::fs::read_to_string(&events).unwrap_or_default();
    let said = || std::fs::read_to_string(&stderr).unwrap_or_default();
    until("a child", || (written().lines().count() >= 3).then_some(()));
    until("a line written in part", || {
        let before = written().len();
        limit(pid, before as libc::rlim_t + 20);
        let start = Instant::now();
        while written().len() == before && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        let text = written();
        (text.len() == before + 20 && !text.ends_with('\n')).then_some(())
    });
    until("the failure", || said().contains("cannot write events to ").then_some(()));
    limit(pid, libc::RLIM_INFINITY);
    until("the end of it", || said().contains("were dropped").then_some(()));
    signal(pid, libc::SIGTERM);
    let status = until("the guard's end", || guard.0.try_wait().expect("wait"));
    assert_eq!(status.code(), Some(4), "{}", said());
    let text = written();
    let broken = text.lines().filter(|line| serde_json::from_str::<Value>(line).is_err());
    assert_eq!(broken.map(str::len).collect::<Vec<_>>(), [20], "{text}");
    let lost = text.lines().filter(|line| line.contains("events: they could not be written")).count();
    assert_eq!(lost, 1, "{text}");
}
