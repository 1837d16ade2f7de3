//! Stacks of C programs are whole and right, however the program was built: without frame pointers,
//! at any place, static, stripped, with its file deleted, inside signal handlers, in libraries
//! loaded later and after an exec.

use crate::common;
use common::{Dir, Running, until};
use orbit_inspect::Sure;
use orbit_inspect::stacks::{End, Frame, How, ThreadStack, Unwinder};
use std::process::Command;

const LEAN: &[&str] = &["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

fn names(s: &ThreadStack) -> Vec<&str> {
    s.frames.iter().filter_map(|f| f.function.as_deref()).collect()
}

/// The stack of the first thread, once it is in `gamma_park`.
fn parked(u: &mut Unwinder) -> ThreadStack {
    let pid = u.pid();
    until("the program to be parked", || {
        let s = u.capture(&[pid]).pop().unwrap();
        names(&s).contains(&"gamma_park").then_some(s)
    })
}

/// The frames come one after the other, with others in between at most where that is asked for.
fn in_order(s: &ThreadStack, want: &[&str]) {
    let all = names(s);
    let mut rest = all.iter();
    for w in want {
        assert!(rest.any(|n| n == w), "{w} is missing or out of order in {all:#?}");
    }
}

fn frame<'a>(s: &'a ThreadStack, name: &str) -> &'a Frame {
    s.frames.iter().find(|f| f.function.as_deref() == Some(name)).unwrap()
}

#[test]
fn built_in_any_way() {
    let dir = Dir::new("stacks-c");
    for flags in [&["-pie", "-fPIE"][..], &["-no-pie"], &["-static"], &["-static-pie"], &["-O0"], &["-g"]] {
        let program = dir.build("deep.c", &[LEAN, flags].concat());
        let p = Running::program(&program, &["0"]);
        let s = parked(&mut Unwinder::new(p.pid()).unwrap());
        in_order(&s, &["gamma_park", "beta_middle", "alpha_outer", "main"]);
        assert_eq!((s.how, s.end), (How::Stopped, End::Complete), "{flags:?}: {s:#?}");
        assert!(s.frames.iter().all(|f| f.sure == Sure::Certain), "{flags:?}: {s:#?}");
        assert!(frame(&s, "main").module.ends_with("deep_c"));
        let line = frame(&s, "beta_middle").line;
        assert_eq!(line.is_some(), flags == ["-g"], "{flags:?}");
        if let Some(l) = line {
            let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/deep.c")).unwrap();
            let text = text.lines().nth(l as usize - 1).unwrap();
            assert!(text.contains("gamma_park(n + 1)"), "line {l} is {text}");
            assert!(frame(&s, "beta_middle").file.as_ref().unwrap().ends_with("deep.c"));
        }
    }
}

fn own(s: &ThreadStack) -> Vec<&Frame> {
    s.frames.iter().filter(|f| f.module.ends_with("deep_c")).collect()
}

#[test]
fn stripped_gives_places_and_says_what_it_knows() {
    let dir = Dir::new("stacks-stripped");
    let program = dir.build("deep.c", LEAN);
    let known = Running::program(&program, &["0"]);
    let want = parked(&mut Unwinder::new(known.pid()).unwrap());
    drop(known);
    assert!(Command::new("strip").arg(&program).status().unwrap().success());
    let p = Running::program(&program, &["0"]);
    let mut u = Unwinder::new(p.pid()).unwrap();
    let s = until("the program to be parked", || {
        let s = u.capture(&[p.pid()]).pop().unwrap();
        (s.end == End::Complete && own(&s).len() == own(&want).len()).then_some(s)
    });
    assert!(own(&s).len() >= 4, "{s:#?}");
    for f in own(&s) {
        assert_eq!(f.function, None, "no name is made up: {f}");
        assert_eq!(f.sure, Sure::Certain, "the place itself is certain: {f}");
        assert!(f.offset > 0 && f.offset < 1 << 20, "{f}");
    }
}

#[test]
fn file_deleted_while_it_runs() {
    let dir = Dir::new("stacks-deleted");
    let program = dir.build("deep.c", LEAN);
    let p = Running::program(&program, &["0"]);
    std::fs::remove_file(&program).unwrap();
    let s = parked(&mut Unwinder::new(p.pid()).unwrap());
    in_order(&s, &["gamma_park", "beta_middle", "alpha_outer", "main"]);
    assert_eq!(s.end, End::Complete);
}

#[test]
fn through_a_signal_handler() {
    let dir = Dir::new("stacks-handler");
    let program = dir.build("deep.c", LEAN);
    let p = Running::program(&program, &["0", "handler"]);
    let s = parked(&mut Unwinder::new(p.pid()).unwrap());
    in_order(&s, &["gamma_park", "beta_middle", "alpha_outer", "handler", "struck", "main"]);
    assert_eq!(s.end, End::Complete);
    let p = Running::program(&program, &["0", "wild"]);
    let s = parked(&mut Unwinder::new(p.pid()).unwrap());
    in_order(&s, &["gamma_park", "beta_middle", "alpha_outer", "handler"]);
}

#[test]
fn deeper_than_the_copy() {
    let dir = Dir::new("stacks-deep");
    let program = dir.build("deep.c", LEAN);
    let p = Running::program(&program, &["0", "deep"]);
    let mut u = Unwinder::new(p.pid()).unwrap();
    let s = until("the recursion", || {
        let s = u.capture(&[p.pid()]).pop().unwrap();
        (names(&s).len() > 400).then_some(s)
    });
    assert_eq!(s.end, End::Complete);
    in_order(&s, &["recursion", "recursion", "main"]);
    assert_eq!(frame(&s, "recursion").sure, Sure::Certain);
    assert_eq!(frame(&s, "main").sure, Sure::Likely, "read after the thread went on");
}

#[test]
fn library_loaded_later_and_another_program() {
    let dir = Dir::new("stacks-load");
    let library = dir.build("deep.c", &[LEAN, &["-shared", "-fPIC", "-DLIBRARY"]].concat());
    let renamed = dir.0.join("late.so");
    std::fs::rename(&library, &renamed).unwrap();
    let program = dir.build("deep.c", &[LEAN, &["-ldl"]].concat());
    let p = Running::program(&program, &["0", "load", renamed.to_str().unwrap()]);
    let mut u = Unwinder::new(p.pid()).unwrap();
    u.prepare().unwrap();
    let s = parked(&mut u);
    in_order(&s, &["gamma_park", "from_library", "main"]);
    assert!(frame(&s, "gamma_park").module.ends_with("late.so"));

    let other = dir.0.join("other");
    orbit_testing::copy_of_program(&program, &other);
    let p = Running::program(&program, &["0", "exec", other.to_str().unwrap()]);
    let mut u = Unwinder::new(p.pid()).unwrap();
    u.prepare().unwrap();
    let s = until("the other program", || {
        let s = u.capture(&[p.pid()]).pop().unwrap();
        s.frames.iter().any(|f| f.module.ends_with("/other")).then(|| parked(&mut u))
    });
    in_order(&s, &["gamma_park", "beta_middle", "alpha_outer", "main"]);
}

#[test]
fn without_stopping() {
    let dir = Dir::new("stacks-gentle");
    let program = dir.build("deep.c", LEAN);
    let p = Running::program(&program, &["3"]);
    let mut u = Unwinder::new(p.pid()).unwrap();
    u.gentle(true);
    let all = until("all to be parked", || {
        let all = u.capture(&[]);
        all.iter().all(|s| s.how == How::Asleep && names(s).contains(&"gamma_park")).then_some(all)
    });
    assert_eq!(all.len(), 4);
    assert!(u.stopped().is_zero());
    for s in &all {
        in_order(s, &["gamma_park", "beta_middle", "alpha_outer"]);
        assert_eq!(s.end, End::Complete, "{s:#?}");
    }
}
