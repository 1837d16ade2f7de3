//! Main killed with -9 leaves no control group: its template removes them; and if that was killed
//! with it, the next program that sets the library up does.

mod common;
mod limits_common;

use std::ffi::{c_long, c_void};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use common::{eventually, groups_of, marked_processes};
use limits_common::needs_group;
use orbit::{Limits, Orbit};

unsafe extern "C" fn spin(_: *mut c_void, _: *mut c_void) -> c_long {
    loop {
        std::hint::spin_loop();
    }
}

fn limited(name: &str) -> Orbit {
    Orbit::builder(name).entry(spin).limits(Limits::new().memory(64 << 20).cpu_percent(10)).build().expect("orbit")
}

/// The life of the main that will be killed: two orbits in groups, one at work.
fn live() -> ! {
    let orbits = [limited("busy"), limited("idle")];
    let _call = orbits[0].call_async(&[], &[]).expect("call");
    println!("up");
    loop {
        std::thread::park();
    }
}

/// Such a main, with its groups; `mark` is in the environment of all its processes.
fn start(test: &str, mark: &str) -> Child {
    let (key, value) = mark.split_once('=').expect("a mark");
    let mut main = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", test, "--nocapture"])
        .env("ORBIT_TEST_LIVE", "1")
        .env(key, value)
        .stdout(Stdio::piped())
        .spawn()
        .expect("start");
    let mut out = BufReader::new(main.stdout.take().expect("piped")).lines();
    assert!(out.any(|line| line.is_ok_and(|line| line.ends_with("up"))), "main came up");
    assert!(groups_of(main.id()).len() >= 2, "a group an orbit: {:?}", groups_of(main.id()));
    main
}

#[test]
fn the_template_removes_the_groups_of_a_killed_main() {
    if std::env::var_os("ORBIT_TEST_LIVE").is_some() {
        live();
    }
    if needs_group("memory").is_none() {
        return;
    }
    for round in 0..3 {
        let mark = format!("ORBIT_TEST_MARK=groups-{}-{round}", std::process::id());
        let mut main = start("the_template_removes_the_groups_of_a_killed_main", &mark);
        main.kill().expect("kill");
        main.wait().expect("wait");
        let gone = eventually(|| groups_of(main.id()).is_empty() && marked_processes(&mark).is_empty());
        assert!(gone, "left: {:?}, {:?}", groups_of(main.id()), marked_processes(&mark));
    }
}

#[test]
fn the_next_program_removes_what_nobody_could() {
    if std::env::var_os("ORBIT_TEST_LIVE").is_some() {
        live();
    }
    if needs_group("memory").is_none() {
        return;
    }
    let mark = format!("ORBIT_TEST_MARK=all-{}", std::process::id());
    let mut main = start("the_next_program_removes_what_nobody_could", &mark);
    // All at once, the template before main, so that it cannot see main's end.
    let mut all = marked_processes(&mark);
    all.sort_by_key(|&pid| pid == main.id() as i32);
    for pid in all {
        // SAFETY: processes that this test started.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    main.wait().expect("wait");
    assert!(eventually(|| marked_processes(&mark).is_empty()), "all have ended");
    // A program of its own: this one has set the library up already.
    let mark = format!("ORBIT_TEST_MARK=next-{}", std::process::id());
    let mut next = start("the_next_program_removes_what_nobody_could", &mark);
    assert!(groups_of(main.id()).is_empty(), "left: {:?}", groups_of(main.id()));
    next.kill().expect("kill");
    next.wait().expect("wait");
    assert!(eventually(|| groups_of(next.id()).is_empty()), "left: {:?}", groups_of(next.id()));
}
