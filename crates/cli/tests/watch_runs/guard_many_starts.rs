//! Programs of ten kinds, started again and again under watch: each ends as it does without, with
//! the same output, and none by a signal. Cores are on, so that one that does leaves a trace.
//!
//! `ORBIT_TEST_FULL=1` starts 2,000.

use crate::guard_common;
use guard_common::{Dir, skipped};
use std::process::{Command, Output};

/// Programs that give the same output each time; the first word is what they need.
const PROGRAMS: [&str; 10] = [
    "sqlite3 :memory: 'with recursive n(i) as (select 1 union all select i+1 from n where i<5000) select sum(i) from n;'",
    "python3 -c 'import threading; t = [threading.Thread(target=print) for _ in range(4)]; [x.start() for x in t]; [x.join() for x in t]'",
    "perl -e 'print join(q(,), map { $_ * $_ } 1..200)'",
    "awk 'BEGIN { for (i = 0; i < 5000; i++) s += i; print s; exit 3 }'",
    "git --version",
    "sort -n /proc/self/limits --output=/dev/null",
    "bash -c 'for i in 1 2 3; do (exit $i) & done; wait; echo done; exit 7'",
    "node -e 'setTimeout(() => console.log(42), 5)'",
    "openssl version",
    "find / -maxdepth 1 -name etc",
];

/// Runs a line of shell with cores allowed; under watch if asked.
fn run(dir: &Dir, line: &str, under_watch: bool) -> Output {
    let orbit = env!("CARGO_BIN_EXE_orbit");
    let script = match under_watch {
        true => format!("ulimit -c unlimited; exec '{orbit}' watch -- {line}"),
        false => format!("ulimit -c unlimited; exec {line}"),
    };
    Command::new("sh").args(["-c", &script]).current_dir(&dir.0).output().expect("sh")
}

#[test]
fn each_ends_as_without_watch() {
    if skipped() {
        return;
    }
    let dir = Dir::new("starts");
    let rounds = if std::env::var_os("ORBIT_TEST_FULL").is_some() { 200 } else { 2 };
    for line in PROGRAMS {
        let bare = run(&dir, line, false);
        if bare.status.code() == Some(127) {
            println!("SKIP: needs {}", line.split(' ').next().unwrap_or_default());
            continue;
        }
        for round in 0..rounds {
            let watched = run(&dir, line, true);
            let said = String::from_utf8_lossy(&watched.stderr).into_owned();
            assert_eq!(watched.status.code(), bare.status.code(), "{line}, round {round}: {said}");
            assert_eq!(watched.stdout, bare.stdout, "{line}, round {round}: {said}");
        }
    }
}
