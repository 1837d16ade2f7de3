//! What a program may do to itself: overflow a stack, execute another program, have 500 threads,
//! crash without end, exit of itself; and what the keeper may lack: room for its events.

mod common;

use common::{KEEP, Scratch, count, events, lacks, lacks_tracking, until};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const WELL: i32 = 7;

fn compile(scratch: &Scratch, options: &[&str]) -> PathBuf {
    let program = scratch.join("faults");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/faults.c");
    let mut cc = Command::new("cc");
    cc.args(["-D_GNU_SOURCE", "-O1", "-pthread"]).args(options).arg(source).arg("-o").arg(&program);
    assert!(cc.status().expect("cc").success());
    program
}

/// The status of a case under a keeper, and what was said on stderr.
fn keep(program: &Path, case: &str, options: &[&str], log: &Path) -> (i32, String) {
    let folder = program.parent().expect("a folder");
    let said = folder.join(format!("{case}.stderr"));
    let mut command = Command::new(KEEP);
    command
        .args(common::BEST_EFFORT)
        .args(options)
        .arg("--events")
        .arg(log)
        .arg("--")
        .arg(program)
        .arg(case)
        .current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&said).expect("a file"));
    let mut keeper = command.spawn().expect("orbit-keep");
    let status = until("it exits", || keeper.try_wait().expect("a child"));
    (status.code().or(status.signal().map(|signal| -signal)).expect("an end"), fs::read_to_string(said).expect("text"))
}

/// One that is put back once and comes to a good end.
fn is_put_back(case: &str, options: &[&str], compiled: &[&str]) {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new(&format!("faults-{case}-{}", compiled.len()));
    let log = scratch.join("events");
    let (status, said) = keep(&compile(&scratch, compiled), case, options, &log);
    assert_eq!((status, count(&log, "recovered")), (WELL, 1), "{said}");
}

#[test]
fn the_first_thread_overflows_its_stack() {
    is_put_back("overflow-first-thread", &["--every", "100ms"], &[]);
}

#[test]
fn another_thread_overflows_its_stack() {
    is_put_back("overflow-other-thread", &["--every", "100ms"], &[]);
}

#[test]
fn five_hundred_threads() {
    is_put_back("threads", &["--every", "200ms"], &[]);
}

#[test]
fn a_static_program_is_kept_from_its_start() {
    is_put_back("plain", &["--every", "50ms"], &["-static"]);
}

#[test]
fn a_static_program_that_exits_at_once_has_its_own_status() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("faults-at-once");
    let (source, program) = (scratch.join("well.c"), scratch.join("well"));
    fs::write(&source, "int main(void) { return 7; }\n").expect("written");
    let built = Command::new("cc").args(["-static", "-o"]).arg(&program).arg(&source).status();
    assert!(built.expect("cc").success());
    // It may exit before, while and after its handlers are put into it.
    for _ in 0..20 {
        let kept = Command::new(KEEP).arg("--").arg(&program).output().expect("orbit-keep");
        let said = String::from_utf8_lossy(&kept.stderr);
        assert_eq!(kept.status.code(), Some(WELL), "{said}");
        assert!(!said.contains("not kept"), "{said}");
    }
}

#[test]
fn a_program_that_unmaps_the_keepers_memory_is_put_back() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("faults-unmaps");
    let log = scratch.join("events");
    let (status, said) = keep(&compile(&scratch, &[]), "unmaps-ours", &["--every", "5s"], &log);
    assert_eq!((status, count(&log, "recovered")), (WELL, 2), "{said}");
}

#[test]
fn a_core_is_left_by_a_program_that_is_given_up() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim() != "core" {
        println!("SKIP: needs cores in the working directory, core_pattern is {pattern:?}");
        return;
    }
    let scratch = Scratch::new("faults-core");
    let program = compile(&scratch, &[]);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "ulimit -c unlimited && exec \"$0\" --quiet -- \"$1\" endless", KEEP])
        .arg(&program)
        .current_dir(&scratch.0);
    let mut keeper = shell.stderr(Stdio::null()).spawn().expect("sh");
    let status = until("it is given up", || keeper.try_wait().expect("a child"));
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
    let is_core = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("core");
    let left = fs::read_dir(&scratch.0).expect("a folder").filter_map(Result::ok).filter(is_core).count();
    assert_eq!(left, 1, "one core");
}

#[test]
fn what_a_program_executes_is_kept_from_its_start() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("faults-exec");
    let log = scratch.join("events");
    let (status, said) = keep(&compile(&scratch, &[]), "exec", &["--every", "100ms"], &log);
    assert_eq!(
        (status, count(&log, "kept"), count(&log, "recovered")),
        (WELL, 2, 2),
        "before the exec and after it: {said}"
    );
    assert!(said.contains("executes "), "{said}");
}

#[test]
fn a_program_that_crashes_without_end_gets_its_true_status() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("faults-endless");
    let log = scratch.join("events");
    let (status, said) = keep(&compile(&scratch, &[]), "endless", &["--quiet"], &log);
    assert_eq!(status, -libc::SIGSEGV, "{said}");
    let why = events(&log).iter().find(|e| e["event"] == "gave-up").map(|e| e["why"].to_string());
    assert!(why.is_some_and(|why| why.contains("too often")), "{said}");
    assert!(count(&log, "recovered") >= 100);
}

#[test]
fn an_exit_and_a_kill_are_not_recovered_from_and_that_is_said() {
    if lacks("cc") || lacks_tracking() {
        return;
    }
    let scratch = Scratch::new("faults-exit");
    let program = compile(&scratch, &[]);
    let (status, said) = keep(&program, "exit-after-panic", &[], &scratch.join("events"));
    assert_eq!(status, 101);
    assert!(said.contains("exited of itself with status 101"), "{said}");
    let (status, said) = keep(&program, "killed", &[], &scratch.join("events2"));
    assert_eq!(status, -libc::SIGKILL);
    assert!(said.contains("SIGKILL") && said.contains("cannot be recovered from"), "{said}");
}

#[test]
fn a_full_disk_costs_events_only() {
    if lacks("cc") || lacks_tracking() || !Path::new("/dev/full").exists() {
        return;
    }
    let scratch = Scratch::new("faults-full");
    let (status, said) = keep(&compile(&scratch, &[]), "plain", &[], Path::new("/dev/full"));
    assert_eq!(status, WELL, "{said}");
    assert!(said.contains("put back"), "{said}");
}
