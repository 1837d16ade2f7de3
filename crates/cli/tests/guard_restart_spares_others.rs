//! `--on-hang restart` ends what the program made and nothing else: not what the guard got as
//! children from the shell that became it, nor what these make and leave behind, nor what others
//! start in a container whose first process is the guard.

mod guard_common;
use guard_common::{Dir, Guard, Owned, build, skipped, until};
use orbit_linux::procfs;
use std::path::Path;
use std::process::{Command, Stdio};

/// A program that sleeps, with a name that no other test has.
fn stray(dir: &Dir) -> String {
    let stray = dir.0.join("stray");
    // By a process of its own: a file that this one writes is no program as long as a child of
    // another test has it too.
    assert!(Command::new("cp").arg("/bin/sleep").arg(&stray).status().expect("cp").success());
    stray.display().to_string()
}

/// Whether this command runs, but for one that has ended and is not reaped.
fn runs(stray: &str, seconds: u32) -> Option<i32> {
    let line = format!("{stray}\0{seconds}\0");
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(|pid: &i32| procfs::text(format!("/proc/{pid}/cmdline")).is_ok_and(|of| of == line))
}

fn kill(pid: i32) {
    guard_common::signal(pid, libc::SIGKILL);
}

/// A program that leaves an orphan and hangs; at its second start it sleeps.
fn program(dir: &Dir, stray: &str) -> String {
    let (hangs, second) = (build(dir, "hangs.c"), dir.0.join("second"));
    format!(
        "if [ -e {0} ]; then exec sleep 300; fi; echo >{0}; ({1} 299 &); while ! [ -e {0}-go ]; do sleep 0.02; done; \
         exec {2} self",
        second.display(),
        stray,
        hangs.display()
    )
}

fn go(dir: &Dir) {
    std::fs::write(dir.0.join("second-go"), "").expect("a file");
}

fn restart_reported(events: &Path) -> Option<()> {
    std::fs::read_to_string(events).unwrap_or_default().contains("started it again").then_some(())
}

#[test]
fn what_was_there_before() {
    if skipped() {
        return;
    }
    let dir = Dir::new("spares-before");
    let stray = stray(&dir);
    let marker = dir.0.join("orphan");
    // It leaves an orphan of its own on a signal, which becomes a child of the guard.
    let sidecar =
        format!("while ! [ -e {0} ]; do sleep 0.02; done; ({1} 296 &); exec {1} 297", marker.display(), stray);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{{ {sidecar}; }} & exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_orbit")]);
    let program = program(&dir, &stray);
    let mut guard =
        Guard::start_by(&dir, shell, &["--on-hang", "guess:restart"], &["sh", "-c", &program], Stdio::inherit());
    guard.program();
    std::fs::write(&marker, "").expect("a file");
    let spared = [296, 297].map(|seconds| until("the sidecar", || runs(&stray, seconds)));
    until("the program's", || runs(&stray, 299));
    go(&dir);
    let did = guard.next("action")["did"].as_str().expect("words").to_owned();
    let left = [296, 297, 299].map(|seconds| runs(&stray, seconds));
    spared.into_iter().chain(left[2]).for_each(kill);
    assert!(did.contains("started it again"), "{did}");
    assert_eq!(left, [Some(spared[0]), Some(spared[1]), None]);
}

#[test]
fn what_others_leave_in_a_container() {
    if skipped() {
        return;
    }
    let unshare = |orbit: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-pf", "--mount-proc", "--kill-child"]).args(orbit);
        command
    };
    if !unshare(&["true"]).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        println!("SKIP: needs unshare and the right to make namespaces of processes");
        return;
    }
    let dir = Dir::new("spares-container");
    let (stray, events) = (stray(&dir), dir.0.join("events"));
    let program = program(&dir, &stray);
    let orbit = [env!("CARGO_BIN_EXE_orbit"), "watch", "--on-hang", "guess:restart", "--events"];
    let guard = unshare(&orbit).arg(&events).args(["--", "sh", "-c", &program]).stdout(Stdio::null()).spawn();
    let guard = Owned(guard.expect("unshare"));
    until("the program's", || runs(&stray, 299));
    // As `docker exec` does.
    let first = until("the first process", || {
        let id = guard.0.id();
        procfs::text(format!("/proc/{id}/task/{id}/children")).ok()?.trim().parse::<i32>().ok()
    });
    let pid = first.to_string();
    let script = format!("setsid {stray} 298 &");
    let entered = Command::new("nsenter").args(["-t", &pid, "-p", "-m", "sh", "-c", &script]).status();
    assert!(entered.expect("nsenter").success());
    let other = until("another's", || runs(&stray, 298));
    go(&dir);
    until("the restart", || restart_reported(&events));
    let left = [298, 299].map(|seconds| runs(&stray, seconds));
    // With it all of its namespace ends.
    kill(first);
    drop(guard);
    assert_eq!(left, [Some(other), None]);
}
