//! Each kind of kernel object that a program can have is, after a rollback, as it was at the
//! checkpoint, or a sentence says that it is not: never wrong without one.
//!
//! The program is `c/objects`: dynamically linked and started by the keeper, statically linked and
//! kept by `--pid`. A short form takes one case of each group; `ORBIT_TEST_FULL=1` takes all.
//! Figures: a line of JSON, `kept`, `refused`, `wrong`, `lacking` for each way.

mod common;

use common::{KEEP, PATIENCE, Scratch, events, lacks, lacks_tracking, until};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Cases that are rejected, and a word of the sentence that says so.
const REFUSED: &[(&str, &str)] = &[
    ("lease", "a lock on"),
    ("inotify", "inotify"),
    ("pipe-closed", "was closed since"),
    ("file-shared", "shared memory"),
    ("shared-anonymous", "shared memory"),
    ("shared-memfd", "shared memory"),
    ("shared-unmapped", "shared m"),
    ("session", "in session"),
    ("no-new-privileges", "stay so"),
    ("seccomp-since", "stay so"),
    ("user", "stay so"),
    ("chroot", "its root was"),
    ("namespace", "stay so"),
    ("child-reaped", "has ended since"),
    ("fork-since", "was made since"),
    ("vfork-since", "was made since"),
    ("unix-stream", "sockets"),
    ("unix-datagram", "sockets"),
    ("unix-sequenced", "sockets"),
    ("unix-closed", "was closed since"),
    ("tcp-listening", "sockets"),
    ("tcp-stream", "sockets"),
    ("tcp-closed", "was closed since"),
    ("udp", "sockets"),
    ("sysv-shared-memory", "shared memory"),
    ("sysv-semaphore", "System V"),
    ("sysv-messages", "System V"),
    ("message-queue", "message queues"),
    ("pipe-to-child", "pipes"),
];

/// Cases of which a sentence is said at the start, though what they check is kept.
const LIMITED: &[(&str, &str)] = &[
    ("io-uring", "io_uring"),
    ("userfaultfd", "userfaultfd of its own"),
    ("perf-event", "perf_event"),
    ("seccomp-before", "seccomp filter"),
    ("unix-unused", "sockets"),
];

/// Cases of the short form.
const SHORT: &[&str] = &[
    "fd-reused",
    "epoll",
    "timerfd",
    "lock-posix",
    "pipe-read",
    "map-removed",
    "vectors-thread-ended",
    "action-changed",
    "signal-stack-thread",
    "pending-queued",
    "timer-deleted",
    "working-directory",
    "mutex-robust-thread",
    "threads-ended",
    "tcp-bound-since",
    "shared-memfd",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Kept,
    Refused,
    Wrong,
    Lacking,
}

fn compile(scratch: &Scratch, options: &[&str]) -> PathBuf {
    let program = scratch.join("objects");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/objects");
    let sources =
        ["main.c", "files.c", "memory.c", "signals.c", "process.c", "ipc.c"].map(|name| format!("{folder}/{name}"));
    let mut cc = Command::new("cc");
    cc.args(["-D_GNU_SOURCE", "-O1", "-pthread"]).args(options).args(sources).arg("-o").arg(&program);
    assert!(cc.args(["-lrt", "-lutil", "-lm"]).status().expect("cc").success());
    program
}

/// Kills a child when the test does not come to its end.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn status(child: &mut Child) -> Option<i32> {
    let end = Instant::now() + PATIENCE / 2;
    while Instant::now() < end {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.code();
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    None
}

fn started_by_keeper(program: &Path, case: &str, folder: &Path, log: &Path) -> Option<i32> {
    let out = fs::File::create(log.with_extension("text")).expect("a file");
    let mut command = Command::new(KEEP);
    command
        .args(common::BEST_EFFORT)
        .args(["--every", "50ms", "--events"])
        .arg(log)
        .arg("--")
        .arg(program)
        .arg(case)
        .current_dir(folder);
    let mut keeper = Guard(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(out).spawn().expect("orbit-keep"));
    status(&mut keeper.0)
}

fn attached(program: &Path, case: &str, folder: &Path, log: &Path) -> Option<i32> {
    let out = fs::File::create(log.with_extension("text")).expect("a file");
    let mut command = Command::new(program);
    command
        .arg(case)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(out.try_clone().expect("dup"));
    let mut child = Guard(command.spawn().expect("the program"));
    let has_exited = |child: &mut Child| child.try_wait().expect("a child").is_some();
    until("it is ready", || (folder.join("ready").exists() || has_exited(&mut child.0)).then_some(()));
    if has_exited(&mut child.0) {
        return status(&mut child.0);
    }
    let mut command = Command::new(KEEP);
    command
        .args(common::BEST_EFFORT)
        .args(["--every", "50ms", "--pid", &child.0.id().to_string(), "--events"])
        .arg(log);
    let mut keeper = Guard(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(out).spawn().expect("orbit-keep"));
    let end = Instant::now() + PATIENCE / 2;
    while common::count(log, "kept") == 0 && Instant::now() < end && !has_exited(&mut keeper.0) {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    fs::write(folder.join("go"), "").expect("written");
    let code = status(&mut child.0);
    status(&mut keeper.0);
    code
}

fn run(way: &str, options: &[&str], go: fn(&Path, &str, &Path, &Path) -> Option<i32>) {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new(&format!("objects-{way}"));
    let program = compile(&scratch, options);
    let listed = Command::new(&program).output().expect("the program").stdout;
    let all: Vec<String> = String::from_utf8(listed).expect("names").lines().map(str::to_owned).collect();
    let only = std::env::var("ORBIT_TEST_CASE").ok();
    let is_full = std::env::var_os("ORBIT_TEST_FULL").is_some();
    let is_taken = |case: &&String| match &only {
        Some(only) => *case == only,
        None => is_full || SHORT.contains(&case.as_str()),
    };
    for name in SHORT.iter().copied().chain(REFUSED.iter().map(|(name, _)| *name)) {
        assert!(all.iter().any(|case| case == name), "{name} is a case");
    }
    let (mut counts, mut wrong) = (BTreeMap::new(), Vec::new());
    for case in all.iter().filter(is_taken) {
        let folder = scratch.join(case);
        fs::create_dir_all(&folder).expect("a folder");
        let log = scratch.join(&format!("{case}.events"));
        let code = go(&program, case, &folder, &log);
        let said: Vec<String> = events(&log)
            .iter()
            .flat_map(|event| match event["event"].as_str() {
                Some("limit" | "warning") => vec![event["text"].as_str().unwrap_or_default().to_owned()],
                Some("gave-up") => vec![event["why"].as_str().unwrap_or_default().to_owned()],
                Some("recovered") => {
                    let left = event["restored"]["left"].as_array().cloned().unwrap_or_default();
                    left.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
                }
                _ => Vec::new(),
            })
            .collect();
        let word = REFUSED.iter().find(|(name, _)| name == case).map(|(_, word)| *word);
        let limit = LIMITED.iter().find(|(name, _)| name == case).map(|(_, word)| *word);
        let is_limited = limit.is_none_or(|word| said.iter().any(|text| text.contains(word)));
        let outcome = match (code, word) {
            (Some(2), _) => Outcome::Lacking,
            (Some(0), None) if is_limited => Outcome::Kept,
            (_, Some(word)) if said.iter().any(|text| text.contains(word)) => Outcome::Refused,
            _ => Outcome::Wrong,
        };
        println!("{way} {case}: {outcome:?} (status {code:?})");
        if outcome == Outcome::Wrong {
            let text = fs::read_to_string(log.with_extension("text")).unwrap_or_default();
            println!("  said: {said:?}\n  {}", text.lines().rev().take(6).collect::<Vec<_>>().join("\n  "));
            wrong.push(case.clone());
        }
        *counts.entry(outcome).or_insert(0) += 1;
    }
    let n = |outcome| counts.get(&outcome).copied().unwrap_or(0);
    println!(
        "{}",
        serde_json::json!({"way": way, "kept": n(Outcome::Kept), "refused": n(Outcome::Refused), "wrong": n(Outcome::Wrong), "lacking": n(Outcome::Lacking)})
    );
    assert!(wrong.is_empty(), "wrong, and no sentence says so: {wrong:?}");
}

#[test]
fn of_a_program_that_the_keeper_starts() {
    run("dynamic", &[], started_by_keeper);
}

#[test]
fn of_a_static_program_that_runs_already() {
    run("static", &["-static"], attached);
}
