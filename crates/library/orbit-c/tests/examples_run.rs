//! The examples end well by themselves: the deadlock detector with each kind of fault at each step,
//! what delegates save, and audits of a large index.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{Scratch, must, needs, package, run, sources};

const LIMIT: Duration = Duration::from_secs(240);
const DEADLOCK: &str = "../../../examples/c/deadlock.c";

fn small(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--threads", "6", "--transactions", "12", "--locks", "5"]);
    command
}

/// The number before `what` in the text.
fn number(text: &str, what: &str) -> u64 {
    let before = text.split(what).next().unwrap_or_default();
    let digits: String = before.trim_end().chars().rev().take_while(char::is_ascii_digit).collect();
    digits.chars().rev().collect::<String>().parse().unwrap_or_else(|_| panic!("no number before {what:?} in:\n{text}"))
}

#[test]
fn transactions_finish_with_a_sound_detector() {
    if !sources() {
        return;
    }
    let scratch = Scratch::new();
    let program = scratch.compile("deadlock", &[DEADLOCK], &[]);
    let text = must(&mut small(&program), LIMIT);
    assert_eq!(number(&text, "of 72"), 72, "{text}");
    assert_eq!(number(&text, "crashed"), 0, "{text}");
    assert!(number(&text, "by the detector") > 0, "deadlocks were found and resolved:\n{text}");
    assert!(must(Command::new(&program).arg("--help"), LIMIT).contains("--fault"));
    for wrong in [["--fault", "nowhere:segv"], ["--fault", "push"], ["--threads", "0"]] {
        assert_eq!(run(Command::new(&program).args(wrong), LIMIT).code, Some(2), "{wrong:?}");
    }
}

#[test]
fn transactions_finish_whatever_the_detector_does() {
    if !sources() {
        return;
    }
    let scratch = Scratch::new();
    let program = scratch.compile("deadlock", &[DEADLOCK], &[]);
    let steps = ["start", "search", "victim", "update", "push", "return"];
    let kinds = ["segv", "abort", "exit", "kill", "wild"];
    let outcomes = ["crashed", "crashed", "exited", "killed", ""];
    for (kind, outcome) in kinds.iter().zip(outcomes) {
        for step in steps {
            let text = must(small(&program).args(["--fault", &format!("{step}:{kind}")]), LIMIT);
            assert_eq!(number(&text, "of 72"), 72, "{text}");
            assert!(outcome.is_empty() || number(&text, outcome) > 0, "{text}");
        }
    }
    // A leak ends by the memory limit, however long that takes here.
    for (kind, outcome, deadline) in [("hang", "timed out", "100"), ("leak", "out of memory", "60000")] {
        let fault = format!("victim:{kind}");
        let text = must(small(&program).args(["--fault", &fault, "--every", "5", "--deadline", deadline]), LIMIT);
        assert_eq!(number(&text, "of 72"), 72, "{text}");
        assert!(number(&text, outcome) > 0, "{text}");
    }
    // A detector that never gets anywhere.
    let text = must(small(&program).args(["--fault", "start:abort", "--every", "1"]), LIMIT);
    assert_eq!((number(&text, "of 72"), number(&text, "returned")), (72, 0), "{text}");
}

#[test]
fn delegates_make_calls_smaller() {
    if !sources() {
        return;
    }
    let scratch = Scratch::new();
    let program = scratch.compile("delegates", &["../../../examples/cpp/delegates.cpp"], &[]);
    assert!(must(Command::new(&program).arg("--help"), LIMIT).contains("ROUNDS"));
    assert_eq!(run(Command::new(&program).arg("none"), LIMIT).code, Some(2));
    let text = must(Command::new(&program).arg("100"), LIMIT);
    let pages = |name: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(name)).expect("a line");
        line.split_whitespace().rev().nth(2).and_then(|n| n.parse().ok()).expect("a number")
    };
    assert!(pages("delegates") * 10.0 < pages("whole structs"), "{text}");
}

/// 4 GiB with `ORBIT_TEST_FULL=1`.
#[test]
fn audits_of_an_index_that_grows_are_right() {
    if !sources() {
        return;
    }
    let scratch = Scratch::new();
    let program = scratch.compile("audit", &["../../../examples/cpp/audit.cpp"], &[]);
    assert!(must(Command::new(&program).arg("--help"), LIMIT).contains("MIB"));
    assert_eq!(run(Command::new(&program).arg("3"), LIMIT).code, Some(2));
    let (mib, limit) = if std::env::var_os("ORBIT_TEST_FULL").is_some() { ("4096", 20 * LIMIT) } else { ("16", LIMIT) };
    let text = must(Command::new(&program).arg(mib), limit);
    assert!(number(&text, "records") > 500_000 && number(&text, "audits") > 2, "{text}");
    assert_eq!(number(&text, "wrong"), 0, "{text}");
}

#[test]
fn the_address_sanitizer_finds_nothing() {
    if !sources() {
        return;
    }
    // Asked for a library that it has not, the compiler answers with the bare name.
    let asan = Command::new("cc").arg("-print-file-name=libasan.so").output().expect("cc").stdout;
    if !asan.starts_with(b"/") {
        println!("SKIP: needs libasan");
        return;
    }
    let scratch = Scratch::new();
    for (name, source) in [
        ("deadlock", DEADLOCK),
        ("updates", "tests/c/updates.c"),
        ("containers", "tests/c/containers.cpp"),
        ("delegates", "../../../examples/cpp/delegates.cpp"),
    ] {
        let program = scratch.compile(name, &[source], &["-fsanitize=address,undefined", "-fno-sanitize-recover"]);
        let mut command = Command::new(&program);
        match name {
            "deadlock" => command.args(["--threads", "4", "--transactions", "10", "--locks", "4"]),
            "delegates" => command.arg("20"),
            _ => &mut command,
        };
        must(&mut command, LIMIT);
        if name != "deadlock" {
            continue;
        }
        // What the detector's end brings upon itself it may report; main would end with another
        // status.
        for fault in FAULTS {
            let text = must(small(&program).args(["--transactions", "4", "--fault", fault, "--every", "4"]), LIMIT);
            assert_eq!(number(&text, "of 24"), 24, "{fault}:\n{text}");
        }
    }
}

/// What each of the programs in other languages prints: sums, a crash of the task, the next sum.
fn sums_and_survives(command: &mut Command) {
    let text = must(command, LIMIT);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!((lines.len(), &lines[..3]), (5, &["sum 10", "sum 21", "sum 33"][..]), "{text}");
    assert!(lines[3].starts_with("crashed: SIGSEGV at 0x0") && lines[4] == "sum 33", "{text}");
}

/// The options by which C in another language's program finds the library.
fn flags(scratch: &Scratch) -> [String; 2] {
    let lib = scratch.library();
    let lib = lib.display();
    [format!("-I{}", package().join("include").display()), format!("-L{lib} -lorbit -Wl,-rpath,{lib}")]
}

fn example(name: &str) -> PathBuf {
    package().join("../../../examples").join(name)
}

#[test]
fn a_task_in_python_beside_threads() {
    if !sources() || !needs("python3") {
        return;
    }
    let scratch = Scratch::new();
    let shim = scratch.0.join("libshim.so");
    must(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&shim).arg(example("python/shim.c")), LIMIT);
    let library = scratch.library().join("liborbit.so.0");
    sums_and_survives(Command::new("python3").arg(example("python/sum.py")).arg(library).arg(shim));
}

#[test]
fn a_task_beside_go() {
    if !sources() || !needs("go") {
        return;
    }
    // One that stays: the standard library is compiled once.
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache");
    let mark = cache.join("orbit-c");
    if std::fs::create_dir_all(&cache).and_then(|()| std::fs::write(&mark, "")).is_err() {
        println!("SKIP: needs a build directory that this user may write to");
        return;
    }
    let scratch = Scratch::new();
    let program = scratch.0.join("sum");
    let [include, link] = flags(&scratch);
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(example("go/sum.go"));
    build.env("GOCACHE", cache).env("GO111MODULE", "off").env("GOFLAGS", "").env("CGO_ENABLED", "1");
    must(build.env("CGO_CFLAGS", include).env("CGO_LDFLAGS", link), LIMIT);
    sums_and_survives(&mut Command::new(program));
}

#[test]
fn a_task_beside_java() {
    if !sources() || !needs("javac") || !needs("java") {
        return;
    }
    let javac = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .find_map(|directory| directory.join("javac").canonicalize().ok())
        .expect("it was found before");
    let include = javac.ancestors().nth(2).expect("the JDK").join("include");
    if !include.join("jni.h").is_file() {
        println!("SKIP: needs jni.h");
        return;
    }
    let scratch = Scratch::new();
    let library = scratch.0.join("libsum.so");
    let [ours, link] = flags(&scratch);
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&library);
    compiler.arg(example("java/sum_jni.c")).arg(ours).args(link.split(' '));
    compiler.arg(format!("-I{}", include.display())).arg(format!("-I{}", include.join("linux").display()));
    must(&mut compiler, LIMIT);
    must(Command::new("javac").arg("-d").arg(&scratch.0).arg(example("java/Sum.java")), LIMIT);
    sums_and_survives(Command::new("java").args(["-XX:-UsePerfData", "-cp"]).arg(&scratch.0).arg("Sum").arg(&library));
}

/// Every kind, and every step.
const FAULTS: [&str; 7] =
    ["start:segv", "search:abort", "victim:exit", "update:kill", "push:leak", "return:wild", "victim:hang"];

/// Valgrind before 3.22 does not know pidfd_open, without which there are no orbits: then this
/// checks the way to the error only, and the sanitizer above at the rest.
#[test]
fn valgrind_finds_nothing() {
    if !sources() || !needs("valgrind") {
        return;
    }
    let scratch = Scratch::new();
    let program = scratch.compile("deadlock", &[DEADLOCK], &[]);
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"]).arg(&program);
    let ran = run(valgrind.args(["--threads", "3", "--transactions", "4", "--locks", "4"]), LIMIT);
    assert!(ran.text.contains("ERROR SUMMARY: 0 errors"), "{}", ran.text);
    if ran.text.contains("Function not implemented") {
        assert_eq!(ran.code, Some(1), "{}", ran.text);
        println!("SKIP: needs a valgrind that knows pidfd_open to run orbits under it");
        return;
    }
    assert_eq!(ran.code, Some(0), "{}", ran.text);
}
