//! Sections that a compiler marks: clang with the pass of `crates/watch/section/clang`, in sources
//! that know nothing of sections, and functions by `-finstrument-functions`.

use crate::guard_common::{Dir, Guard, signal, skipped, until};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, Weak};

fn section() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../watch/section")
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name)
}

/// What a command prints; nothing if it cannot be run or fails.
fn says(command: &str, argument: &str) -> Option<String> {
    let done = Command::new(command).arg(argument).stderr(Stdio::null()).output().ok()?;
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

fn must(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text") + &String::from_utf8_lossy(&done.stderr)
}

/// The pass, built once for all tests that run at a time, and the library beside it.
struct Built {
    dir: Dir,
    pass: PathBuf,
    library: PathBuf,
}

impl Built {
    /// Nothing, and a line that says so, where there is no clang, or no headers of its LLVM.
    fn get() -> Option<Arc<Built>> {
        static ONE: Mutex<Weak<Built>> = Mutex::new(Weak::new());
        let mut one = ONE.lock().expect("no test fails here");
        if let Some(built) = one.upgrade() {
            return Some(built);
        }
        let clang = says("clang", "-dumpversion").unwrap_or_default();
        let major = clang.split('.').next().unwrap_or_default();
        let of_clang = |config: &String| {
            let headers = says(config, "--includedir").unwrap_or_default();
            !major.is_empty()
                && says(config, "--version").is_some_and(|v| v.split('.').next() == Some(major))
                && Path::new(&headers).join("llvm/Passes/PassPlugin.h").exists()
        };
        let configs = [format!("llvm-config-{major}"), "llvm-config".to_owned()];
        let config = configs.into_iter().find(of_clang);
        let (Some(config), true) = (config, says("make", "--version").is_some()) else {
            println!("SKIP: needs clang with its llvm-config and headers (clang, llvm-dev), make, c++");
            return None;
        };
        let library = std::env::current_exe().expect("the test").with_file_name("librmk_section.so");
        assert!(library.exists(), "{} is built with this test", library.display());
        let dir = Dir::new("pass");
        let pass = dir.0.join("rmk_sections.so");
        let mut make = Command::new("make");
        make.arg("-C").arg(section().join("clang")).arg(format!("OUT={}", pass.display()));
        must(make.arg(format!("LLVM_CONFIG={config}")).env_remove("MAKEFLAGS"));
        std::os::unix::fs::symlink(&library, dir.0.join("librmk_section.so.0")).expect("a link");
        let built = Arc::new(Built { dir, pass, library });
        *one = Arc::downgrade(&built);
        Some(built)
    }

    fn marks(&self, compiler: &str, words: &str) -> Command {
        let mut clang = Command::new(compiler);
        clang.arg(format!("-fpass-plugin={}", self.pass.display())).env("ORBIT_SECTIONS", words);
        clang
    }

    /// `compiled.c` with the marks of the pass.
    fn program(&self, dir: &Dir) -> PathBuf {
        let program = dir.0.join("compiled");
        let mut clang = self.marks("clang", "");
        clang.args(["-O2", "-g", "-pthread"]).arg(source("compiled.c")).arg(&self.library);
        must(clang.arg(format!("-Wl,-rpath,{}", self.dir.0.display())).arg("-o").arg(&program));
        program
    }
}

/// Asserts that the program is found to hang in this section, of which a part of the name is given.
fn hangs_in(dir: &Dir, program: &Path, way: &str, section: &str) {
    let mut guard = Guard::start(dir, &["--limit", "1s"], &[program.to_str().expect("a path"), way]);
    let hang = guard.next("hang");
    println!("{way}: {}", hang["why"]);
    assert_eq!(hang["section"], section, "{hang:#}");
    assert_eq!(hang["kind"], "busy", "{hang:#}");
    signal(hang["pid"].as_i64().expect("a pid") as i32, libc::SIGKILL);
    guard.ended();
}

#[test]
fn every_way_out_leaves_the_section() {
    let Some(built) = Built::get() else { return };
    let dir = Dir::new("exits");
    let recorder = dir.0.join("recorder.o");
    must(Command::new("cc").arg("-c").arg(source("recorder.c")).arg("-o").arg(&recorder));
    let expected = "\
+loop-ways -loop-ways.0
+loop-ways -loop-ways.1
+loop-ways -loop-ways.2
+loop-ways -loop-ways.3
+loop-ways -loop-ways.0
+loop-ways -loop-ways.4
+loop-ways -loop-ways.4
+loop-thrown -loop-thrown.6
+loop-cleaned -loop-cleaned.6 ~ -loop-cleaned.6
+loop-caught_inside caught -loop-caught_inside.0
+loop-caught_outside -loop-caught_outside.6 caught
+loop-waits -loop-waits.5 +loop-waits -loop-waits.5 +loop-waits -loop-waits.0
+loop-forever -loop-forever.0 +loop-forever -loop-forever.0 +loop-forever -loop-forever.1 -loop-forever.6
+lock-locked -lock-locked.0 +lock-locked -lock-locked.1
+lock-tried -lock-tried.0";
    // Inline marks count the same; leaving what was left already counts nothing.
    let mut counts: BTreeMap<&str, [u32; 8]> = BTreeMap::new();
    for mark in expected.split_whitespace() {
        if let Some(name) = mark.strip_prefix('+') {
            counts.entry(name).or_default()[0] |= 1;
        } else if let Some((name, exit)) = mark.strip_prefix('-').and_then(|left| left.split_once('.')) {
            let cell = counts.get_mut(name).expect("entered before");
            let inside = cell[0] & 1;
            cell[1 + exit.parse::<usize>().expect("an exit")] += inside;
            cell[0] += inside;
        }
    }
    for flags in [&["-O0"][..], &["-O2", "-g"]] {
        let program = dir.0.join("exits");
        let run = |words: &str| {
            let mut clang = built.marks("clang++", words);
            clang.args(flags).arg(source("exits.cpp")).arg(&recorder).arg("-o").arg(&program);
            must(&mut clang);
            must(&mut Command::new(&program))
        };
        let marks = run("skip=main marks=call");
        let marks: Vec<&str> = marks.lines().map(str::trim_end).collect();
        assert_eq!(marks.join("\n"), expected, "{flags:?}");
        let inline = run("skip=main");
        let cells = inline.lines().filter_map(|line| line.strip_prefix('=')?.split_once(' '));
        let cells: BTreeMap<&str, [u32; 8]> = cells
            .map(|(name, counts)| {
                let counts: Vec<u32> = counts.split(' ').map(|count| count.parse().expect("a count")).collect();
                (name, counts.try_into().expect("entries and seven exits"))
            })
            .collect();
        assert_eq!(cells, counts, "{flags:?}");
    }
}

#[test]
fn what_is_chosen_is_marked_and_the_rest_said() {
    let Some(built) = Built::get() else { return };
    let dir = Dir::new("chosen");
    let says = |words: &str| {
        let mut clang = built.marks("clang++", words);
        clang.args(["-g", "-c"]).arg(source("exits.cpp")).arg("-o").arg(dir.0.join("exits.o"));
        let done = clang.output().expect("clang++");
        (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let marked = |words: &str| {
        let (well, said) = says(words);
        assert!(well, "{words}: {said}");
        said.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let all = marked("report skip=main");
    assert!(all.iter().any(|l| l == "rmk_sections: exits.cpp:24 loop in ways"), "{all:#?}");
    let unmarked: Vec<&String> = all.iter().filter(|l| l.contains("is marked: ") || l.contains("not marked")).collect();
    assert_eq!(unmarked.len(), 2, "a function that calls itself, a lock that stays held: {all:#?}");
    let one = marked("report functions=thrown");
    assert_eq!(one, ["rmk_sections: exits.cpp:48 loop in thrown"]);
    let iterated = marked("report functions=waits iterate=waits loops=all");
    assert_eq!(iterated, ["rmk_sections: exits.cpp:81 loop in waits: each iteration is an execution"]);
    assert_eq!(marked("report files=*/other.cpp"), [""; 0]);
    assert_eq!(marked("report loops=none locks=no"), [""; 0]);
    assert_eq!(marked("report loops=none locks=yes functions=tried"), ["rmk_sections: exits.cpp:117 lock in tried"]);
    for wrong in ["file=x", "loops=some", "lock=a", "files=", "marks=no"] {
        let (well, said) = says(wrong);
        assert!(!well && said.contains(&format!("\"{wrong}\" is none of")), "{said}");
    }
}

#[test]
fn a_marked_loop_that_never_ends() {
    let Some(built) = Built::get().filter(|_| !skipped()) else { return };
    let dir = Dir::new("compiled-loop");
    hangs_in(&dir, &built.program(&dir), "loop", "compiled.c:45 loop in sum");
}

#[test]
fn a_marked_mutex_block_that_never_ends() {
    let Some(built) = Built::get().filter(|_| !skipped()) else { return };
    let dir = Dir::new("compiled-lock");
    hangs_in(&dir, &built.program(&dir), "lock", "compiled.c:61 lock in put");
}

#[test]
fn no_report_where_loops_were_left_by_return_goto_and_break() {
    let Some(built) = Built::get().filter(|_| !skipped()) else { return };
    let dir = Dir::new("compiled-healthy");
    let program = built.program(&dir);
    let mut guard = Guard::start(&dir, &["--limit", "1s"], &[program.to_str().expect("a path"), "healthy"]);
    until("the end of the program", || guard.events().iter().any(|e| e["event"] == "left").then_some(()));
    assert_eq!(guard.ended().code(), Some(0));
    guard.no_hang();
}

#[test]
fn a_function_by_finstrument_functions() {
    if skipped() {
        return;
    }
    let library = std::env::current_exe().expect("the test").with_file_name("librmk_section.so");
    let dir = Dir::new("compiled-function");
    std::os::unix::fs::symlink(&library, dir.0.join("librmk_section.so.0")).expect("a link");
    let list = dir.file("list.c", "#define RMK_FUNCTIONS(is) is(sum) is(put)\n#include <rmk_functions.h>\n");
    for compiler in ["cc", "clang"] {
        if says(compiler, "--version").is_none() {
            println!("SKIP: needs {compiler}");
            continue;
        }
        let (object, program) = (dir.0.join("compiled.o"), dir.0.join(format!("by-{compiler}")));
        let mut instrumented = Command::new(compiler);
        instrumented.args(["-O2", "-g", "-finstrument-functions", "-c"]).arg(source("compiled.c"));
        must(instrumented.arg("-o").arg(&object));
        let mut linked = Command::new(compiler);
        linked.args(["-Wall", "-Wextra", "-Werror", "-pthread", "-I"]).arg(section().join("include"));
        linked.arg(&list).arg(&object).arg(&library).arg(format!("-Wl,-rpath,{}", dir.0.display()));
        must(linked.arg("-o").arg(&program));
        for (way, section) in [("loop", "sum"), ("lock", "put")] {
            hangs_in(&dir, &program, way, section);
        }
    }
}
