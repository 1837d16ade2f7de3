//! As the first process of a container the guard reaps what the program leaves behind, as an init
//! would: no orphan that has ended keeps its number.

use crate::guard_common;
use guard_common::{Dir, PATIENCE, skipped, until};
use std::process::{Command, Stdio};

#[test]
fn orphans_of_a_container() {
    if skipped() {
        return;
    }
    let unshare = |what: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-pf", "--mount-proc", "--kill-child"]).args(what);
        command
    };
    if !unshare(&["true"]).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        println!("SKIP: needs unshare and the right to make namespaces of processes");
        return;
    }
    let dir = Dir::new("reaps");
    let pids = dir.0.join("pids");
    // It ends well once no number that an orphan had is taken any more.
    let program = format!(
        "for i in 1 2 3 4 5 6 7 8 9; do sh -c 'sleep 0.05 & echo $!' >>{0}; done; left=1; while [ $left = 1 ]; do \
         left=0; for p in $(cat {0}); do [ ! -e /proc/$p ] || left=1; done; sleep 0.05; done; exit 7",
        pids.display()
    );
    // A command of its own is no orphan: how it ends is reported, as ever.
    let orbit = [env!("CARGO_BIN_EXE_orbit"), "watch", "--on-hang", "exec:true", "--", "sh", "-c", &program];
    let mut guard = guard_common::Owned(unshare(&orbit).stdin(Stdio::null()).spawn().expect("unshare"));
    let status = until("the last orphan to be reaped", || guard.0.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(7), "within {PATIENCE:?}");
    assert_eq!(std::fs::read_to_string(&pids).expect("a file").lines().count(), 9);
}
