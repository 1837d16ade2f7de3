//! What a handle is worth: its target and no other, the host's rights wherever the handler runs,
//! and what was set through it is put back, no more.

mod common;

use common::{Killed, host, is_root, native, spec, until};
use orbit_services::{Dispatch, GrantRequest, Host, Kind, ServiceId};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

fn nice(pid: i32) -> i32 {
    orbit_linux::sched::nice(pid).expect("its niceness")
}

/// A process with this number, if the kernel gives it to us within some tries.
fn process_with_number(number: i32) -> Option<Killed> {
    for _ in 0..50 {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string()).ok()?;
        let process = Killed::sleeper();
        if process.pid() == number {
            return Some(process);
        }
    }
    None
}

#[test]
fn a_handle_is_of_its_target_and_not_of_another_with_its_number() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let target = Killed::sleeper();
    let number = target.pid();
    let grant = |min: i32| format!("cpu:nice:set(pid={number},min={min})").parse::<GrantRequest>().expect("a grant");
    let spec = spec("count", Dispatch::Agent, vec![grant(nice(number) + 1)]);
    let id = host.load(&spec, &native("count")).expect("loaded");
    let own = host.grant(std::process::id() as i32, &[grant(0)]).expect("granted");
    until("it is set", || nice(number) > 0);
    drop(target);
    let Some(other) = process_with_number(number) else {
        return println!("SKIP: needs /proc/sys/kernel/ns_last_pid and a machine that makes few processes");
    };
    let before = nice(other.pid());
    let runs = host.status(id).expect("loaded").account.runs;
    until("more runs", || host.status(id).expect("loaded").account.runs > runs + 10);
    let (_, result) = own[0].set(7);
    let error = result.expect_err("its target is gone");
    assert!(error.kind() == Kind::NotFound && own[0].read().is_err(), "{error}");
    host.unload(id).expect("unloaded");
    host.release(&own);
    assert_eq!(nice(other.pid()), before, "neither set nor put back");
    assert!(host.status(id).is_err() && host.put_back().is_empty());
}

/// A service that sets nothing by itself: posted values are set.
fn load_setter(host: &mut Host, target: i32) -> ServiceId {
    let grant = format!("cpu:nice:set(pid={target})").parse().expect("a grant");
    let mut spec = spec("lower", Dispatch::Agent, vec![grant]);
    spec.period = Duration::ZERO;
    host.load(&spec, &native("lower")).expect("loaded")
}

fn post(host: &Host, id: ServiceId, value: i32) {
    let before = host.status(id).expect("loaded").account.runs;
    assert!(host.post(id, value as u64).expect("loaded"));
    until("it has run", || host.status(id).expect("loaded").account.runs > before);
}

#[test]
fn only_what_was_set_is_put_back_and_each_has_a_line() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let target = Killed::sleeper();
    let pid = target.pid();
    let before = nice(pid);
    // One that set nothing touches nothing.
    let idle = load_setter(&mut host, pid);
    orbit_linux::sched::set_nice(pid, 3).expect("own child");
    host.unload(idle).expect("unloaded");
    assert!(nice(pid) == 3 && host.put_back().is_empty(), "not set, not put back");
    orbit_linux::sched::set_nice(pid, before).expect("own child");
    // What others set remains; the last puts back what was before all.
    let (first, second) = (load_setter(&mut host, pid), load_setter(&mut host, pid));
    post(&host, first, 5);
    post(&host, second, 7);
    host.unload(second).expect("unloaded");
    assert_eq!(nice(pid), 5, "what the first has set");
    assert_eq!(host.put_back(), [format!("cpu:nice of {pid} put back from 7 to 5, as another service has set it")]);
    host.unload(first).expect("unloaded");
    assert_eq!(nice(pid), before);
    assert_eq!(host.put_back(), [format!("cpu:nice of {pid} put back from 5 to {before}, as it was")]);
    // What somebody else has set since is theirs.
    let third = load_setter(&mut host, pid);
    post(&host, third, 9);
    orbit_linux::sched::set_nice(pid, 11).expect("own child");
    host.unload(third).expect("unloaded");
    assert_eq!(nice(pid), 11);
    assert!(host.put_back()[0].ends_with("is 11, no more the 9 that was set: left as it is"));
}

#[test]
fn a_handle_has_the_rights_of_the_host_in_a_member_without_them_too() {
    if !is_root() {
        return;
    }
    let mut host = host();
    host.start_ticks(Duration::from_millis(2));
    if let Some(why) = host.no_ticks() {
        return println!("SKIP: needs ticks: {why}");
    }
    let mut command = Command::new("taskset");
    command.args(["-c", &common::cpu().to_string(), "sh", "-c", "while :; do :; done"]).uid(65_534).gid(65_534);
    let mut member = Killed(command.spawn().expect("taskset"));
    let program = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    until("it is the shell", || program(member.pid()).trim() == "sh" && nice(member.pid()) >= 0);
    host.join(member.pid()).expect("joined");
    let grant = format!("cpu:nice:set(pid={},min=-10)", member.pid()).parse().expect("a grant");
    let id = host.load(&spec("lower", Dispatch::Upcall, vec![grant]), &native("lower")).expect("loaded");
    until("it is set", || nice(member.pid()) == -5);
    let before = host.status(id).expect("loaded").account;
    until("more runs", || host.status(id).expect("loaded").account.runs > before.runs + 20);
    let account = host.status(id).expect("loaded").account;
    assert_eq!((account.failed, account.aborts()), (0, 0), "{account:?}");
    assert!(member.0.try_wait().expect("own child").is_none());
}
