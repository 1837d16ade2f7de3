//! Rules do what they say: errors, answers, delays, other paths, altered arguments, kills, and only
//! where they apply.

mod common;
use common::{guest, run};
use orbit_hijack::Options;
use orbit_hijack::rules::Rules;
use std::time::{Duration, Instant};

fn ruled(rules: &str) -> Options {
    Options { rules: Rules::parse(rules).unwrap_or_else(|error| panic!("{error}")), ..Options::default() }
}

#[test]
fn an_error_after_some_matches() {
    let line = "for i in 1 2 3 4; do echo $i 2>/dev/null; done; true";
    let run = run(&ruled("write(fd=1) -> ENOSPC after 2"), &["sh", "-c", line]);
    assert_eq!(run.stdout, "1\n2\n");
    assert_eq!(run.outcome.rules[0].1, 4, "matched");
    assert_eq!(run.outcome.rules[0].2, 2, "acted");
}

#[test]
fn another_path_is_opened() {
    let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("other");
    std::fs::write(&place, "other\n").expect("written");
    let rule = format!("openat(path=\"/etc/hos*\") -> \"{}\"", place.display());
    assert_eq!(run(&ruled(&rule), &["cat", "/etc/hosts"]).stdout, "other\n");
}

#[test]
fn a_descriptor_is_known_by_its_path() {
    let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("full.log");
    let line = format!("echo a >{0} || echo failed; echo b", place.display());
    let run = run(&ruled("write(fd=path(\"*/full.log\")) -> EIO"), &["sh", "-c", &line]);
    assert_eq!(run.stdout, "failed\nb\n");
    assert_eq!(std::fs::read(&place).expect("a file"), b"");
}

#[test]
fn a_delay_delays() {
    let began = Instant::now();
    let run = run(&ruled("getppid -> delay 300ms once; getppid -> 42"), &["sh", "-c", "echo $PPID"]);
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert_eq!(run.stdout, "42\n");
}

#[test]
fn arguments_are_altered() {
    let run = run(
        &ruled("read(fd=0..2,size>1) -> size=1; read(size>1000) -> pass"),
        &["sh", "-c", "printf abc | dd bs=3 count=1 2>/dev/null"],
    );
    assert_eq!(run.stdout, "a");
}

#[test]
fn a_process_is_killed() {
    assert_eq!(
        run(&ruled("chdir -> kill SIGTERM"), &["sh", "-c", "trap '' TERM; cd /; echo alive"]).outcome.status,
        128 + 15
    );
}

#[test]
fn the_first_answer_counts_and_pass_shields() {
    let rules = "mkdir*(path=\"*allowed\") -> pass; mkdir* -> EROFS; mkdir* -> 0";
    let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("shielded");
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir(&place).expect("a folder");
    let line = format!("cd {} && mkdir allowed && mkdir other 2>/dev/null || echo refused", place.display());
    assert_eq!(run(&ruled(rules), &["sh", "-c", &line]).stdout, "refused\n");
    assert!(place.join("allowed").is_dir() && !place.join("other").exists());
}

#[test]
fn a_port_that_cannot_be_is_an_error() {
    for (text, number) in [("connect(port=65536) -> EPERM", "65536"), ("connect(port>70000) -> EPERM", "70000")] {
        let error = orbit_hijack::rules::Rules::parse(text).expect_err("an error").to_string();
        assert!(error.contains(&format!("there is no port {number}")), "{error}");
    }
    assert!(orbit_hijack::rules::Rules::parse("connect(port=1..65535) -> EPERM").is_ok());
}

#[test]
fn a_seed_repeats_what_was_drawn() {
    let script = "i=0; while [ $i -lt 64 ]; do i=$((i+1)); [ -e / ] && printf 1 || printf 0; done; \
                  sh -c '[ -e / ]; [ -e / ]; [ -e / ]; [ -e / ]; echo'";
    let drawn = |seed| {
        let options = Options { seed, ..ruled("*stat*|*access*(path=\"/\") -> EACCES p=0.5") };
        let run = run(&options, &["sh", "-c", script]);
        (run.stdout, run.outcome.rules[0].2, run.outcome.seed.expect("a seed"))
    };
    let first = drawn(None);
    assert!(first.0.contains('0') && first.0.contains('1'), "{first:?}");
    assert_eq!(drawn(Some(first.2)), first);
    assert_ne!(drawn(Some(first.2 + 1)).0, first.0);
}

#[test]
fn a_chance_is_kept_roughly() {
    let run = run(&ruled("getppid -> count p=0.5"), &[guest("threads", &[]).to_str().expect("a path")]);
    assert_eq!(run.outcome.rules[0].1, 0, "not called");
    let run = common::run(&ruled("getpid -> count p=0.5"), &[guest("threads", &[]).to_str().expect("a path")]);
    let (_, matched, acted) = &run.outcome.rules[0];
    assert_eq!(*matched, 40_000);
    assert!((18_000..22_000).contains(acted), "{acted}");
}
