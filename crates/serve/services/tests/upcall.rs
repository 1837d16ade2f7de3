//! A pure native service runs in whichever member is current, and in an agent when none is.

mod common;

use common::{Member, host, is_root, native, spec, until};
use orbit_services::{Dispatch, GrantRequest};
use std::time::Duration;

#[test]
#[ignore = "the program of members"]
fn member_program() {
    common::member_program();
}

#[test]
fn runs_in_the_member_that_is_current() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let mut member = Member::start(&mut host, "member_program");
    host.start_ticks(Duration::from_millis(2));
    if let Some(why) = host.no_ticks() {
        println!("SKIP: needs ticks: {why}");
        return;
    }
    let target = GrantRequest::set("cpu:nice", std::process::id() as i32);
    let id = host.load(&spec("count", Dispatch::Upcall, vec![target]), &native("count")).expect("loaded");
    until("100 upcalls", || host.status(id).expect("loaded").account.upcalls >= 100);
    let account = host.status(id).expect("loaded").account;
    // A run that the machine delays may be ended for its time.
    let bad = account.faults + account.failed + account.orphaned;
    assert!(account.cpu_ns > 0 && bad == 0 && account.overruns < account.runs / 10, "{account:?}");
    assert!(member.is_alive(), "the member's results are as before");
    println!("{account:?} {:?}", host.tick_outcomes());
}

#[test]
fn runs_in_the_agent_when_no_member_is_current() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let id = host.load(&spec("count", Dispatch::Upcall, vec![]), &native("count")).expect("loaded");
    until("20 runs", || host.status(id).expect("loaded").account.runs >= 20);
    assert_eq!(host.status(id).expect("loaded").account.upcalls, 0);
}

#[test]
fn clocks_of_the_members_own_threads_make_upcalls_too() {
    clocks(&mut host());
}

/// The same as an ordinary user: this test once more, in a process of that user.
#[test]
fn without_rights_there_are_upcalls_all_the_same() {
    if !is_root() {
        return;
    }
    use std::os::unix::process::CommandExt;
    // Where this user can read it.
    let program = std::env::temp_dir().join(format!("orbit-upcall-{}", std::process::id()));
    orbit_testing::copy_of_program(&std::env::current_exe().expect("own program"), &program);
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("own file");
    let output = std::process::Command::new(&program)
        .args(["ordinary_user", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env("ORBIT_TEST_OBJECT", object_for_others())
        .current_dir("/")
        .uid(65534)
        .gid(65534)
        .output()
        .expect("a process");
    let _ = std::fs::remove_file(program);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    println!("{text}");
    assert!(output.status.success());
}

/// A compiled service that every user can read.
fn object_for_others() -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("orbit-upcall-{}.so", std::process::id()));
    std::fs::write(&path, native("count")).expect("written");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("own file");
    path
}

#[test]
#[ignore = "a host of an ordinary user"]
fn ordinary_user() {
    if std::env::var_os("ORBIT_TEST_OBJECT").is_none() {
        return;
    }
    let options = orbit_services::Options { cpus: vec![common::cpu()], ..Default::default() };
    clocks(&mut orbit_services::Host::new(options).expect("a host"));
}

fn clocks(host: &mut orbit_services::Host) {
    let object = std::env::var_os("ORBIT_TEST_OBJECT").map(|path| std::fs::read(path).expect("the object"));
    let object = object.unwrap_or_else(|| native("count"));
    if let Err(error) = host.start_clocks(Duration::from_millis(2)) {
        return println!("SKIP: needs clocks of own threads: {error}");
    }
    assert_eq!(host.upcalls(), orbit_services::Upcalls::Clocks);
    let mut member = Member::start(host, "member_program");
    let id = host.load(&spec("count", Dispatch::Upcall, vec![]), &object).expect("loaded");
    until("50 upcalls", || {
        host.tend();
        host.status(id).expect("loaded").account.upcalls >= 50
    });
    assert!(member.is_alive() && host.status(id).expect("loaded").account.faults == 0);
    let pid = member.pid();
    host.remove_member(pid);
    let before = host.status(id).expect("loaded").account;
    until("an agent takes the events", || host.status(id).expect("loaded").account.runs > before.runs + 20);
    assert!(member.is_alive());
}
