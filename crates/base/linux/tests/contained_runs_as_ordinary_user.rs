//! The runner: the command sees an ordinary user under the filter, and its exit status comes back.

use std::process::Command;

const RUNNER: &str = env!("CARGO_BIN_EXE_orbit-contained");

#[test]
fn the_command_is_an_ordinary_user_under_a_filter() {
    let out = Command::new(RUNNER)
        .args(["sh", "-c", "id -u; grep -E '^(Seccomp|NoNewPrivs|CapEff):' /proc/self/status; exit 7"])
        .output()
        .expect("run");
    let text = String::from_utf8_lossy(&out.stdout);
    if out.status.code() == Some(125) {
        println!("SKIP: needs seccomp filters: {}", String::from_utf8_lossy(&out.stderr));
        return;
    }
    assert_eq!(out.status.code(), Some(7), "{text}");
    let mut lines = text.lines();
    assert!(lines.next().and_then(|l| l.parse::<u32>().ok()).is_some_and(|uid| uid != 0), "{text}");
    assert!(text.contains("Seccomp:\t2") && text.contains("NoNewPrivs:\t1"), "{text}");
    assert!(text.contains("CapEff:\t0000000000000000"), "{text}");
}

#[test]
fn mistakes_are_reported() {
    for args in [&[][..], &["--user", "0", "true"][..], &["/no/such/command"][..]] {
        let out = Command::new(RUNNER).args(args).output().expect("run");
        assert_eq!(out.status.code(), Some(125), "{args:?}");
        assert!(String::from_utf8_lossy(&out.stderr).starts_with("orbit-contained: "), "{args:?}");
    }
}
