//! What members do to themselves: the service, the agent and the other members continue.

mod common;

use common::{Member, host, is_root, native, spec, until};
use orbit_services::{Dispatch, Host, ServiceId};
use std::time::Duration;

#[test]
#[ignore = "the program of members"]
fn member_program() {
    common::member_program();
}

/// A member that does something to itself, by the name in its environment, and then computes.
#[test]
#[ignore = "the program of a member that does something to itself"]
fn odd_program() {
    let Ok(what) = std::env::var("ORBIT_TEST_ODD") else { return };
    let Ok(value) = std::env::var(orbit_services::Invitation::VARIABLE) else { return };
    orbit_linux::sched::set_affinity(0, &[common::cpu()]).expect("own affinity");
    orbit_services::Invitation::parse(&value).expect("an invitation").accept().expect("joining");
    // SAFETY: this process's own memory, signals and children; what it breaks is what the test is
    // about.
    unsafe {
        match what.as_str() {
            "unmaps" => {
                std::thread::sleep(Duration::from_millis(300));
                libc::munmap(
                    orbit_services::layout::BASE as *mut _,
                    orbit_services::layout::END - orbit_services::layout::BASE,
                );
            }
            "blocks" => {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigfillset(&raw mut set);
                libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            }
            "forks" => {
                for _ in 0..3 {
                    if libc::fork() == 0 {
                        break;
                    }
                }
            }
            _ => {}
        }
    }
    let (parent, begin) = (std::os::unix::process::parent_id(), std::time::Instant::now());
    while begin.elapsed() < Duration::from_secs(120) && std::os::unix::process::parent_id() == parent {
        std::hint::black_box(begin);
    }
}

/// A host with ticks, a service, and a healthy member; `None` where there are no ticks.
fn stage() -> Option<(Host, Member, ServiceId)> {
    let mut host = host();
    host.start_ticks(Duration::from_millis(2));
    if let Some(why) = host.no_ticks() {
        println!("SKIP: needs ticks: {why}");
        return None;
    }
    let member = Member::start(&mut host, "member_program");
    let id = host.load(&spec("count", Dispatch::Upcall, vec![]), &native("count")).expect("loaded");
    Some((host, member, id))
}

fn odd(host: &mut Host, what: &str) -> Member {
    let child = std::process::Command::new(std::env::current_exe().expect("own program"))
        .args(["odd_program", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(orbit_services::Invitation::VARIABLE, host.invitation().to_string())
        .env("ORBIT_TEST_ODD", what)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("a member");
    let member = Member(child);
    until("it joins", || host.add_member(member.pid()).is_ok());
    member
}

fn runs_on(host: &mut Host, healthy: &mut Member, id: ServiceId) {
    let before = host.status(id).expect("loaded").account.runs;
    until("50 more runs", || host.status(id).expect("loaded").account.runs > before + 50);
    assert!(healthy.is_alive() && host.tend().is_empty());
    assert_eq!(host.status(id).expect("loaded").account.aborts(), 0);
}

#[test]
fn one_that_unmaps_the_region_harms_itself_only() {
    if !is_root() {
        return;
    }
    let Some((mut host, mut healthy, id)) = stage() else { return };
    let mut member = odd(&mut host, "unmaps");
    until("its own end", || !member.is_alive());
    runs_on(&mut host, &mut healthy, id);
}

#[test]
fn one_that_blocks_all_signals_is_left_alone() {
    if !is_root() {
        return;
    }
    let Some((mut host, mut healthy, id)) = stage() else { return };
    let mut member = odd(&mut host, "blocks");
    runs_on(&mut host, &mut healthy, id);
    assert!(member.is_alive());
}

#[test]
fn children_of_members_are_no_members_and_are_unharmed() {
    if !is_root() {
        return;
    }
    let Some((mut host, mut healthy, id)) = stage() else { return };
    let mut member = odd(&mut host, "forks");
    // Of whatever thread of it made them.
    let pid = member.pid();
    let children = || {
        let threads = orbit_linux::procfs::ids(format!("/proc/{pid}/task"));
        let of =
            |thread: i32| std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")).unwrap_or_default();
        threads.into_iter().map(|thread| of(thread).split_whitespace().count()).sum::<usize>()
    };
    until("three children", || children() == 3);
    runs_on(&mut host, &mut healthy, id);
    assert!(member.is_alive());
    assert_eq!(children(), 3, "all live");
}

#[test]
fn one_that_exits_in_a_handler_does_not_stop_the_service() {
    if !is_root() {
        return;
    }
    let mut host = host();
    host.start_ticks(Duration::from_millis(2));
    if let Some(why) = host.no_ticks() {
        return println!("SKIP: needs ticks: {why}");
    }
    let mut member = Member::start(&mut host, "member_program");
    let mut wild = spec("wild", Dispatch::Upcall, vec![]);
    wild.arguments = vec![b'x'];
    let object = native("wild");
    let mut id = host.load(&wild, &object).expect("loaded");
    // Agents end in it too, and are started again; a service that costs several is revoked.
    until("it ends in the handler", || {
        host.tend();
        if host.status(id).expect("loaded").is_revoked {
            host.unload(id).expect("unloaded");
            id = host.load(&wild, &object).expect("loaded");
        }
        !member.is_alive()
    });
    until("the claim is released", || {
        host.tend();
        host.status(id).expect("loaded").account.orphaned > 0
    });
    until("it is unloaded, which waits for the claim", || {
        host.tend();
        host.unload(id).is_ok()
    });
    until("its agent, which the handler ended too, is back", || {
        host.tend();
        host.agents()
            .all(|agent| std::fs::read_to_string(format!("/proc/{agent}/stat")).is_ok_and(|s| !s.contains(") Z ")))
    });
    let mut healthy = Member::start(&mut host, "member_program");
    let id = host.load(&spec("count", Dispatch::Upcall, vec![]), &native("count")).expect("loaded");
    until("runs", || {
        host.tend();
        host.status(id).expect("loaded").account.runs > 20
    });
    assert!(healthy.is_alive());
}
