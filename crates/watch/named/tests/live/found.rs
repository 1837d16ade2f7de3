//! Hangs inside functions that are named as sections, of a program that was not changed for it, are
//! reported with the section's name.

use crate::common::{Dir, Program, Watcher, functions, have};
use orbit_ahd::{Config, Event, Hang, Kind};
use orbit_modules::hangs::Settings;
use orbit_named::Named;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn named(list: &[&str]) -> Vec<Named> {
    let one = |s: &&str| {
        let (name, function) = s.split_once('=').expect("a name");
        Named { name: name.into(), function: function.parse().expect("a function") }
    };
    list.iter().map(one).collect()
}

fn config(sections: &[&str]) -> Settings {
    Settings {
        config: Config { limit: Duration::from_secs(1), ..Config::default() },
        sections: named(sections),
        ..Settings::default()
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/live/c").join(name)
}

fn build(dir: &Dir) -> Option<PathBuf> {
    if !have("cc", "--version") {
        return None;
    }
    let out = dir.0.join("named");
    let built = Command::new("cc").args(["-O2", "-g", "-pthread", "-o"]).arg(&out).arg(source("named.c")).status();
    assert!(built.expect("cc").success());
    Some(out)
}

fn hang(name: &str, sections: &[&str], way: [&str; 2], check: impl FnOnce(&Hang)) {
    let dir = Dir::new(name);
    let Some(program) = build(&dir) else { return };
    let program = Program::start(Command::new(program).args(way));
    let mut watcher = Watcher::of(program.pid(), config(sections));
    check(watcher.hang());
}

#[test]
fn a_spin() {
    hang("named-spin", &["request=request"], ["spin", "20"], |h| {
        assert_eq!((h.kind, h.section.as_deref()), (Kind::Busy, Some("request")), "{h:#?}");
        assert!(h.progress >= h.check_value, "{h:#?}");
        assert!(functions(h).contains(&"request"), "{h:#?}");
    });
}

#[test]
fn the_inner_one_of_two() {
    hang("named-inner", &["outer=request", "inner=inner"], ["inner", "20"], |h| {
        assert_eq!((h.kind, h.section.as_deref()), (Kind::Busy, Some("inner")), "{h:#?}");
    });
}

#[test]
fn the_outer_one_that_calls_the_inner_without_end() {
    hang("named-outer", &["outer=request", "inner=inner"], ["outer", "20"], |h| {
        assert_eq!((h.kind, h.section.as_deref()), (Kind::Busy, Some("outer")), "{h:#?}");
    });
}

#[test]
fn a_loop_that_begins_where_the_function_does() {
    hang("named-tight", &["tight=tight"], ["tight", "5"], |h| {
        assert_eq!((h.kind, h.section.as_deref()), (Kind::Busy, Some("tight")), "{h:#?}");
    });
}

#[test]
fn a_wait() {
    hang("named-pause", &["request=request"], ["pause", "10"], |h| {
        assert_eq!((h.kind, h.section.as_deref()), (Kind::Blocked, Some("request")), "{h:#?}");
        assert!(h.progress >= 1_000_000_000, "{h:#?}");
    });
}

#[test]
fn by_address_in_a_stripped_program() {
    let dir = Dir::new("named-stripped");
    let Some(program) = build(&dir) else { return };
    let nm = Command::new("nm").arg(&program).output().expect("nm").stdout;
    let nm = String::from_utf8(nm).expect("text");
    let line = nm.lines().find(|l| l.ends_with(" request")).expect("the function");
    let section = format!("request=0x{}", &line[..16]);
    assert!(Command::new("strip").arg(&program).status().expect("strip").success());
    let program = Program::start(Command::new(program).args(["pause", "5"]));
    let mut watcher = Watcher::of(program.pid(), config(&[&section]));
    let h = watcher.hang();
    assert_eq!((h.kind, h.section.as_deref()), (Kind::Blocked, Some("request")), "{h:#?}");
}

#[test]
fn a_method_in_a_library_that_throws() {
    if !have("c++", "--version") {
        return;
    }
    let dir = Dir::new("named-library");
    let library = dir.0.join("libnamed.so");
    let mut cxx = Command::new("c++");
    cxx.args(["-O1", "-g", "-shared", "-fPIC", "-o"]).arg(&library).arg(source("named.cpp"));
    assert!(cxx.status().expect("c++").success());
    let main = dir.0.join("main.c");
    let text = "void serve(int); int main(void) { for (int i = 1; i < 200; i++) serve(i); serve(-1); return 0; }\n";
    std::fs::write(&main, text).expect("a file");
    let program = dir.0.join("served");
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(&program).arg(main).arg(&library).arg(format!("-Wl,-rpath,{}", dir.0.display()));
    assert!(cc.status().expect("cc").success());
    let program = Program::start(&mut Command::new(program));
    let mut watcher = Watcher::of(program.pid(), config(&["handle=libnamed.so:ns::Server::handle"]));
    let h = watcher.hang();
    assert_eq!((h.kind, h.section.as_deref()), (Kind::Busy, Some("handle")), "{h:#?}");
    assert!(functions(h).iter().any(|f| f.starts_with("ns::Server::handle")), "{h:#?}");
}

#[test]
fn a_name_that_is_nearly_right_is_reported_as_missing() {
    let dir = Dir::new("named-missing");
    let Some(program) = build(&dir) else { return };
    let path = program.display().to_string();
    let text = trouble_of(Command::new(program).args(["fast", "600"]), "r=reqest");
    let begins = format!("function reqest of section r was not found (searched {path}, ");
    assert!(text.starts_with(&begins), "{text}");
    for part in ["libc.so", "; names near it: request"] {
        assert!(text.contains(part), "`{part}` in: {text}");
    }
}

/// What is said of the function of this section.
fn trouble_of(program: &mut Command, section: &str) -> String {
    let program = Program::start(program);
    let mut watcher = Watcher::of(program.pid(), config(&[section]));
    let of_it = |e: &Event| match e {
        Event::Trouble { text, .. } => text.starts_with("function ").then(|| text.clone()),
        _ => None,
    };
    watcher.until("a word on it", |all| all.iter().any(|e| of_it(e).is_some()));
    watcher.events.iter().find_map(of_it).expect("a report")
}

/// C++ as compilers leave it: `twin(int)` and `twin(long)`, and `thrower(int)`, which waits, with a
/// part split off.
const SYMBOLS: &str = r#"
#include <unistd.h>
void thrower(void) __asm__("_Z7throweri");
void __attribute__((noinline)) thrower(void) { pause(); __asm__ volatile(""); }
void cold(void) __asm__("_Z7throweri.cold");
void __attribute__((noinline)) cold(void) { _exit(1); }
void first(void) __asm__("_Z4twini");
void __attribute__((noinline)) first(void) { _exit(2); }
void second(void) __asm__("_Z4twinl");
void __attribute__((noinline)) second(void) { _exit(3); }
int main(void) { thrower(); cold(); first(); second(); }
"#;

#[test]
fn a_function_with_a_part_that_was_split_off() {
    let dir = Dir::new("named-cold");
    let Some(program) = dir.build("cold", SYMBOLS) else { return };
    let program = Program::start(&mut Command::new(program));
    let mut watcher = Watcher::of(program.pid(), config(&["section=thrower"]));
    let h = watcher.hang();
    assert_eq!((h.kind, h.section.as_deref()), (Kind::Blocked, Some("section")), "{h:#?}");
}

#[test]
fn a_name_of_several_functions_is_reported_with_each() {
    let dir = Dir::new("named-several");
    let Some(program) = dir.build("several", SYMBOLS) else { return };
    let text = trouble_of(&mut Command::new(program), "t=twin");
    assert!(text.starts_with("function twin of section t is the name of several functions: twin("), "{text}");
    assert!(text.contains("twin(int) at 0x") && text.contains("twin(long) at 0x"), "{text}");
    assert!(text.ends_with("; give the address of one"), "{text}");
}
