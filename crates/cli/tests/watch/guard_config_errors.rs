//! Settings that make no sense are rejected before the program runs, with file, line, key and what
//! would be right.

use crate::guard_common::Dir;
use std::process::Command;

fn refused(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_orbit")).arg("watch").args(args).output().expect("orbit");
    assert_eq!(out.status.code(), Some(125), "{out:?}");
    assert!(out.stdout.is_empty(), "the program ran: {out:?}");
    String::from_utf8(out.stderr).expect("text")
}

#[test]
fn file_line_key_and_the_way_out() {
    let dir = Dir::new("config");
    for (text, parts) in [
        ("# fine\nwidnow = 5\n", [":2:", "`widnow`", "known are"]),
        ("limit_ms = 1\n", [":1:", "limit_ms = 1", "from 100 to 3600000"]),
        ("children = \"no\"\n", [":1:", "children", "true or false"]),
        ("factor = \"big\"\n", [":1:", "factor", "number from 1 to 1000"]),
        ("on_hang = \"explode\"\n", [":1:", "explode", "report"]),
    ] {
        let path = dir.file("guard.toml", text);
        let path = path.to_str().expect("a path");
        let said = refused(&["--config", path, "--", "echo", "ran"]);
        assert!(said.contains(path), "{said}");
        for part in parts {
            assert!(said.contains(part), "`{part}` in: {said}");
        }
    }
}

#[test]
fn mistakes_in_the_file_are_reported_with_their_place() {
    let dir = Dir::new("config-place");
    for (text, parts) in [
        (&b"# fine\n\nlimit_ms = 5000 # \xff\n"[..], &[":3:", "UTF-8"][..]),
        (b"\xff\xfep\0", &[":1:", "UTF-8"]),
        (b"\nevents = \"a\" \"b\"\n", &[":2:", "key = value"]),
        (b"\nevents = \"/no/such/dir/file\"\n", &[":2:", "events", "/no/such/dir/file"]),
        // A byte order mark is skipped.
        (b"\xef\xbb\xbflimitms = 5\n", &[":1:", "unknown key `limitms`"]),
    ] {
        let path = dir.0.join("guard.toml");
        std::fs::write(&path, text).expect("a file");
        let path = path.to_str().expect("a path");
        let said = refused(&["--config", path, "--", "echo", "ran"]);
        for part in [path].iter().chain(parts) {
            assert!(said.contains(part), "`{part}` in: {said}");
        }
    }
}

#[test]
fn a_file_without_end() {
    let dir = Dir::new("config-long");
    let long = dir.file("guard.toml", &"# fine\n".repeat(150_000));
    for path in ["/dev/zero", long.to_str().expect("a path")] {
        let said = refused(&["--config", path, "--", "echo", "ran"]);
        for part in [path, "more than 1 MiB", "key = value"] {
            assert!(said.contains(part), "`{part}` in: {said}");
        }
    }
    let most = format!("{}\nlimitms = 5", "#".repeat((1 << 20) - 13));
    let said = refused(&["--config", dir.file("most.toml", &most).to_str().expect("a path"), "--", "echo", "ran"]);
    assert!(said.contains(":2: unknown key `limitms`"), "{said}");
}

#[test]
fn arguments_that_make_no_sense() {
    for args in [&[][..], &["--nonsense"], &["--on-hang", "explode", "--", "echo", "ran"], &["--pid", "x"]] {
        assert!(refused(args).contains("--help"), "{args:?}");
    }
}

#[test]
fn nothing_to_watch() {
    for args in [&[][..], &["--"], &["--in-process"], &["--on-hang", "kill"]] {
        let said = refused(args);
        for way in ["PROGRAM", "--pid N", "--system"] {
            assert!(said.contains(way), "`{way}` in: {said}");
        }
    }
}

#[test]
fn a_number_that_is_no_process() {
    for number in ["0", "-5", "2147483648", "x"] {
        for args in [&["--pid", number][..], &[&format!("--pid={number}")]] {
            let said = refused(args);
            assert!(said.contains(number) && said.contains("1 or more"), "{said}");
        }
    }
}

#[test]
fn what_cannot_be_opened_or_joined() {
    assert!(refused(&["--config", "/no/such/file", "--", "echo", "ran"]).contains("/no/such/file"));
    assert!(refused(&["--events", "/no/such/dir/file", "--", "echo", "ran"]).contains("/no/such/dir/file"));
    assert!(refused(&["--pid", "999999999"]).contains("999999999"));
    let own = std::process::id().to_string();
    assert!(refused(&["--on-hang", "restart", "--pid", &own]).contains("restart"));
}
