//! Arguments that make no sense are rejected with exit status 2 and a way out, help teaches, a
//! closed pipe is no panic.

use std::process::{Command, Output, Stdio};

fn orbit(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_orbit")).args(args).output().expect("orbit runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn bad_arguments_are_refused_with_a_way_out() {
    let bad: [&[&str]; 6] = [
        &["nonsense"],
        &["--nonsense"],
        &["ps", "--interval", "soon"],
        &["ps", "--pid", "-4"],
        &["ps", "--pid", "0"],
        &["top", "--json"],
    ];
    for args in bad {
        let output = orbit(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}: {}", text(&output.stdout));
        let said = text(&output.stderr);
        assert!(said.contains("--help") || said.contains("Usage"), "{args:?}: {said}");
    }
}

#[test]
fn watch_has_its_former_name_as_well() {
    for name in ["watch", "guard"] {
        assert_eq!(orbit(&[name, "--", "sh", "-c", "exit 42"]).status.code(), Some(42), "{name}");
        assert_eq!(orbit(&[name, "--nonsense"]).status.code(), Some(125), "{name}");
    }
    let help = text(&orbit(&["--help"]).stdout);
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("watch Runs") && words.contains("[alias: guard]"), "{help}");
}

#[test]
fn help_teaches() {
    for args in [&["--help"][..], &["doctor", "--help"], &["ps", "--help"], &["top", "--help"]] {
        let output = orbit(args);
        assert!(output.status.success(), "{args:?}");
        assert!(text(&output.stdout).contains("Usage"), "{args:?}");
    }
    let help = text(&orbit(&["--help"]).stdout);
    assert!(help.contains("Examples") && help.contains("orbit doctor"), "{help}");
}

#[test]
fn top_without_a_terminal_says_what_to_do() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_orbit")).arg("top").stdin(Stdio::null()).output().expect("orbit runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("--once --json"), "{}", text(&output.stderr));
}

#[test]
fn a_closed_pipe_is_no_panic() {
    for args in [&["ps"][..], &["ps", "--json"], &["doctor"], &["doctor", "--json"], &["--help"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_orbit"))
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("orbit runs");
        // The reader is gone before the first byte.
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        let said = text(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{args:?}: {} {said}", output.status);
    }
}
