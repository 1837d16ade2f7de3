//! A program that changes its credentials: root continues watching it; an ordinary user learns
//! what cannot be seen, and what it needs, once for all processes.
//!
//! The test starts itself again as the ordinary user's watcher.

use crate::common::{Dir, Program, Watcher, functions};
use orbit_ahd::{Config, Event};
use orbit_inspect::Sure;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

const PROGRAM: &str = "ORBIT_AHD_TEST_PRIVATE";
const FOREIGN: &str = "ORBIT_AHD_TEST_FOREIGN";
const NOBODY: u32 = 65534;

fn root() -> bool {
    // SAFETY: plain call.
    unsafe { libc::geteuid() == 0 }
}

/// Watches the program until it hangs after its change.
fn watch(program: &mut Command) -> Watcher {
    let p = Program::start(program);
    let mut w = Watcher::of(p.pid(), Config { limit: Duration::from_secs(1), ..Config::default() });
    // It changes after 2.5 s: its habits are known by then, if it has had its CPU.
    w.run(Duration::from_secs(4));
    p.signal(libc::SIGUSR1);
    w.hang();
    w
}

fn troubles(w: &Watcher) -> Vec<&str> {
    w.events
        .iter()
        .filter_map(|e| if let Event::Trouble { text, .. } = e { Some(text.as_str()) } else { None })
        .collect()
}

#[test]
fn root_goes_on() {
    if !root() {
        println!("SKIP: needs root");
        return;
    }
    let dir = Dir::new("credentials");
    let Some(fares) = dir.program() else { return };
    let w = watch(Command::new(fares).arg("private"));
    assert!(troubles(&w).is_empty(), "{:?}", troubles(&w));
    let h = w.hangs()[0];
    assert_eq!(h.sure, Sure::Guess);
    assert!(functions(h).contains(&"still_here"), "{h:#?}");
}

#[test]
fn an_ordinary_user_learns_what_is_missing() {
    if let Some(program) = std::env::var_os(PROGRAM) {
        let p = Program::start(Command::new(program).arg("private"));
        let mut w = Watcher::of(p.pid(), Config { limit: Duration::from_secs(1), ..Config::default() });
        w.until("that it cannot be seen", |all| all.iter().any(|e| matches!(e, Event::Trouble { .. })));
        w.run(Duration::from_secs(4));
        let reported = troubles(&w);
        assert!(reported.iter().all(|t| t.contains("CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH")), "{reported:?}");
        assert!(w.hangs().is_empty(), "nothing is concluded from what is not seen: {:#?}", w.hangs());
        return;
    }
    let dir = Dir::new("credentials-user");
    let Some(fares) = dir.program() else { return };
    let itself = std::env::current_exe().expect("the test");
    let mut again = Command::new(itself);
    again
        .args(["credentials::an_ordinary_user_learns_what_is_missing", "--exact", "--nocapture"])
        .env(PROGRAM, &fares)
        .current_dir("/");
    if root() {
        again.uid(NOBODY).gid(NOBODY);
    }
    let out = match again.output() {
        Ok(out) => out,
        Err(e) => {
            println!("SKIP: needs a test directory that other users may reach: {e}");
            return;
        }
    };
    println!("{}", String::from_utf8_lossy(&out.stdout));
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn of_many_processes_it_is_reported_once() {
    if let Ok(pid) = std::env::var(FOREIGN) {
        let mut w =
            Watcher::of(pid.parse().expect("a pid"), Config { limit: Duration::from_secs(1), ..Config::default() });
        w.run(Duration::from_secs(2));
        let joined = w.events.iter().filter(|e| matches!(e, Event::Joined { .. })).count();
        assert_eq!((joined, troubles(&w).len()), (4, 1), "{:?}", w.events);
        return;
    }
    if !root() {
        println!("SKIP: needs root");
        return;
    }
    // What outlives the shell ends by itself.
    let p = Program::start(Command::new("sh").args(["-c", "for n in 1 2 3; do sleep 8 & done; wait"]));
    let mut again = Command::new(std::env::current_exe().expect("the test"));
    again
        .args(["credentials::of_many_processes_it_is_reported_once", "--exact"])
        .env(FOREIGN, p.pid().to_string())
        .current_dir("/");
    match again.uid(NOBODY).gid(NOBODY).output() {
        Ok(out) => assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout)),
        Err(e) => println!("SKIP: needs a test directory that other users may reach: {e}"),
    }
}
