//! Guests that install seccomp filters of their own: what a filter denies natively it denies under
//! the executive, in the same way, and what it allows works.

mod common;
use common::{Run, guest, has, run};
use orbit_hijack::Options;
use orbit_hijack::rules::Rules;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

/// Plain, traced, without rewriting, and with all calls through C.
fn ways() -> [Options; 4] {
    [
        Options::default(),
        Options { trace: true, ..Options::default() },
        Options { no_rewrite: true, ..Options::default() },
        Options { rules: Rules::parse("* -> count").expect("a rule"), ..Options::default() },
    ]
}

fn as_natively(part: &str, lines: usize) {
    let program = guest("filters", &[]);
    let native = Command::new(&program).arg(part).output().expect("run");
    let status = native.status.code().unwrap_or_else(|| 128 + native.status.signal().expect("a signal"));
    let expected = String::from_utf8_lossy(&native.stdout);
    assert_eq!(expected.lines().count(), lines, "{part}: {expected}");
    for options in ways() {
        let run = run(&options, &[program.to_str().expect("a path"), part]);
        assert_eq!((run.stdout.as_str(), run.outcome.status), (&*expected, status), "{part}, {options:?}");
        assert!(run.outcome.filters_refused.is_empty(), "{:?}", run.outcome.filters_refused);
    }
}

#[test]
fn calls_are_denied_with_the_same_errors() {
    as_natively("errno", 69);
}

#[test]
fn calls_are_trapped_with_the_same_signals() {
    as_natively("trap", 69);
}

#[test]
fn calls_kill_as_natively() {
    as_natively("kill", 69);
}

#[test]
fn traps_that_nobody_may_catch_kill() {
    as_natively("forced", 4);
}

#[test]
fn what_an_allow_list_names_works() {
    as_natively("list", 8);
    as_natively("kill-list", 7);
}

#[test]
fn filters_see_whole_arguments() {
    as_natively("arguments", 7);
}

#[test]
fn filters_hold_for_threads_forks_and_programs() {
    for _ in 0..3 {
        as_natively("who", 5);
    }
}

#[test]
fn filters_that_cannot_be_held_to_are_refused() {
    let program = guest("filters", &[]);
    let Run { outcome, stdout, .. } = run(&Options::default(), &[program.to_str().expect("a path"), "refused"]);
    let expected =
        ["address -1", "many -1", "listener -1", "strict -1", "none -1 Invalid argument", "wrong -1 Bad address"];
    assert_eq!((stdout.lines().collect::<Vec<_>>(), outcome.status), (expected.to_vec(), 0));
    assert_eq!(outcome.filters_refused.values().copied().collect::<Vec<_>>(), [1; 4]);
}

#[test]
fn what_the_kernel_offers_is_found_out_as_natively() {
    as_natively("probes", 9);
}

/// Programs of others whose filters allow what they need, and nothing else.
#[test]
fn sandboxes_of_others_work() {
    let programs: [(&str, &[&str]); 2] = [
        ("man", &["man", "--no-hyphenation", "-P", "cat", "ls"]),
        ("bwrap", &["bwrap", "--ro-bind", "/", "/", "--proc", "/proc", "--unshare-pid", "true"]),
    ];
    for (name, words) in programs {
        let native = || Command::new(words[0]).args(&words[1..]).output();
        if !has(name) {
            continue;
        }
        let native = native().expect("it starts");
        if !native.status.success() {
            println!("SKIP: needs {name} to work here");
            continue;
        }
        let run = run(&Options::default(), words);
        assert_eq!((run.outcome.status, run.stdout.as_bytes()), (0, &native.stdout[..]), "{words:?}");
    }
}
