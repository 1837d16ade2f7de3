//! Arguments that make no sense are rejected with exit status 2 and a way out; help teaches.

use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_orbit-bench")).args(args).output().expect("orbit-bench runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn bad_arguments_are_rejected_with_a_way_out() {
    for args in [&[][..], &["call", "--engine", "steam"], &["create", "--max", "x"]] {
        let output = bench(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}: {}", text(&output.stdout));
        let said = text(&output.stderr);
        assert!(said.contains("--help") || said.contains("Usage"), "{args:?}: {said}");
    }
    let said = text(&bench(&["call", "--engine", "steam"]).stderr);
    assert!(said.contains("steam") && said.contains("compare"), "names the value and what there is: {said}");
}

#[test]
fn help_teaches() {
    let help = text(&bench(&["--help"]).stdout);
    assert!(help.contains("Usage: orbit bench"), "{help}");
    for name in ["create", "call", "incremental", "write", "delegate"] {
        let help = text(&bench(&[name, "--help"]).stdout);
        assert!(
            help.contains("--quick") && help.contains("_us") || help.contains("_ns") || help.contains("Transactions"),
            "{help}"
        );
    }
}
