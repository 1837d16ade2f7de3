//! Names that a program chooses are shown on one line and without control characters; JSON keeps
//! them as they are.

use crate::guard_common::{Dir, Guard, build, skipped};

const NAME: &str = "a\u{1b}[31m\nb'c";
const SHOWN: &str = "a\\u{1b}[31m\\nb'c";

#[test]
fn a_name_with_a_line_break() {
    if skipped() {
        return;
    }
    let dir = Dir::new("harmless");
    let program = dir.0.join(NAME);
    std::fs::rename(build(&dir, "hangs.c"), &program).expect("another name");
    let mut guard = Guard::start(&dir, &["--on-hang", "guess:kill"], &[program.to_str().expect("a path"), "self"]);
    assert_eq!(guard.next("hang")["comm"], NAME);
    let text = String::from_utf8(guard.finish().stderr).expect("text");
    assert!(text.contains(&format!("({SHOWN}), thread")), "{text}");
    for line in text.lines() {
        assert!(line.starts_with("orbit watch: ") || line.starts_with("  "), "a line of its own: {line:?} in {text}");
    }
}

#[test]
fn a_section_with_a_line_break() {
    if skipped() {
        return;
    }
    let dir = Dir::new("harmless-section");
    let out = dir.0.join("named");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../watch/named/tests/live/c/named.c");
    let cc = std::process::Command::new("cc").args(["-O2", "-g", "-pthread", "-o"]).arg(&out).arg(source).status();
    assert!(cc.expect("cc").success());
    let section = format!("{NAME}=request");
    let options = ["--section", &section, "--on-hang", "guess:kill"];
    let mut guard = Guard::start(&dir, &options, &[out.to_str().expect("a path"), "spin", "10"]);
    assert_eq!(guard.next("hang")["section"], NAME);
    let text = String::from_utf8(guard.finish().stderr).expect("text");
    assert!(text.contains(&format!("in section {SHOWN}\n")) && !text.contains(NAME), "{text}");
}
