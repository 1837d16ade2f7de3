//! A program whose name is no UTF-8, such as one that the kernel cuts in the middle of a letter, is
//! watched as any other.

use crate::guard_common::{Dir, Guard, build, skipped};

/// Letters of two bytes: the kernel keeps seven and a half.
const LONG: &str = "абвгдежзик";
const CUT: &str = "абвгдеж\u{fffd}";

fn found(options: &[&str], name: &str) {
    if skipped() {
        return;
    }
    let dir = Dir::new(name);
    let program = dir.0.join(LONG);
    std::fs::rename(build(&dir, "hangs.c"), &program).expect("another name");
    let mut guard = Guard::start(&dir, options, &[program.to_str().expect("a path"), "self"]);
    let joined = guard.next("joined");
    assert_eq!(joined["comm"], CUT);
    let hang = guard.next("hang");
    assert_eq!((&hang["pid"], &hang["comm"]), (&joined["pid"], &CUT.into()), "{hang:#}");
}

#[test]
fn a_name_cut_in_mid_letter() {
    found(&[], "cut");
}

#[test]
fn in_the_guard_itself() {
    found(&["--in-process"], "cut-here");
}

#[test]
fn a_program_that_takes_such_a_name_later() {
    if skipped() {
        return;
    }
    let dir = Dir::new("renamed");
    let (program, now) = (build(&dir, "later.c"), dir.0.join("now"));
    let arguments = [program.to_str().expect("a path"), now.to_str().expect("a path"), "renamed"];
    let mut guard = Guard::start(&dir, &[], &arguments);
    let pid = guard.program();
    dir.file("now", "");
    // What is guarded is scanned when a process is added.
    assert_ne!(guard.program(), pid);
    std::fs::remove_file(&now).expect("a file");
    let hang = guard.next("hang");
    assert_eq!((&hang["kind"], &hang["pid"]), (&"blocked".into(), &pid.into()), "{hang:#}");
    assert!(guard.events().iter().all(|event| event["event"] != "left"), "{:?}", guard.events());
}
