//! Whatever ends, the rest continues: owners, members in the middle of a handler, members that
//! exec, the host.

mod common;

use common::{Killed, Member, host, is_root, native, spec, times, until};
use orbit_services::{Dispatch, GrantRequest, Happened};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
#[ignore = "the program of members"]
fn member_program() {
    common::member_program();
}

/// Joins, waits for a byte, then becomes another program.
#[test]
#[ignore = "the program of a member that execs"]
fn exec_program() {
    let Ok(value) = std::env::var(orbit_services::Invitation::VARIABLE) else { return };
    orbit_linux::sched::set_affinity(0, &[common::cpu()]).expect("own affinity");
    orbit_services::Invitation::parse(&value).expect("an invitation").accept().expect("joining");
    let begin = std::time::Instant::now();
    while begin.elapsed() < Duration::from_millis(300) {
        std::hint::black_box(begin);
    }
    let error = Command::new("/bin/sh").args(["-c", "while :; do :; done"]).exec();
    panic!("{error}");
}

/// A host in a process of its own, which sets the niceness of the process that is named.
#[test]
#[ignore = "the program of a host"]
fn host_program() {
    let Ok(target) = std::env::var("ORBIT_TEST_TARGET") else { return };
    let mut host = host();
    if let Ok(member) = std::env::var("ORBIT_TEST_JOIN") {
        host.join(member.parse().expect("a number")).expect("joined");
    }
    let target = raises(target.parse().expect("a number"));
    let id = host.load(&spec("count", Dispatch::Agent, vec![target]), &native("count")).expect("loaded");
    until("it runs", || host.status(id).expect("loaded").account.runs > 5);
    println!("agent {}", host.restorer().expect("one that puts back"));
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn nice(pid: i32) -> i32 {
    orbit_linux::sched::nice(pid).expect("its niceness")
}

/// A handle by which any value of the test service is a higher niceness, also where tests run with
/// a niceness of their own.
fn raises(pid: i32) -> GrantRequest {
    format!("cpu:nice:set(pid={pid},min={})", nice(pid) + 1).parse().expect("a grant")
}

#[test]
fn a_service_ends_with_its_owner_and_what_it_set_is_put_back() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let (target, mut owner) = (Killed::sleeper(), Killed::sleeper());
    let before = nice(target.pid());
    let mut spec = spec("count", Dispatch::Agent, vec![raises(target.pid())]);
    spec.owner = owner.pid();
    let id = host.load(&spec, &native("count")).expect("loaded");
    until("the service sets the niceness", || nice(target.pid()) > before);
    owner.0.kill().expect("own child");
    let mut happened = Vec::new();
    until("the host sees it", || {
        happened.extend(host.tend());
        !happened.is_empty()
    });
    assert!(matches!(happened[..], [Happened::OwnerEnded { .. }]), "{happened:?}");
    assert!(host.status(id).is_err());
    assert_eq!(nice(target.pid()), before);
}

#[test]
fn what_two_services_set_is_as_before_both_once_they_are_gone() {
    if !is_root() {
        return;
    }
    let mut host = host();
    let target = Killed::sleeper();
    let before = nice(target.pid());
    let load = |host: &mut orbit_services::Host| {
        let spec = spec("count", Dispatch::Agent, vec![raises(target.pid())]);
        let id = host.load(&spec, &native("count")).expect("loaded");
        until("it sets the niceness", || host.status(id).expect("loaded").account.runs > 2);
        assert!(nice(target.pid()) > before);
        id
    };
    let (first, second) = (load(&mut host), load(&mut host));
    host.unload(first).expect("unloaded");
    host.unload(second).expect("unloaded");
    assert_eq!(nice(target.pid()), before, "the second found what the first had set");
    load(&mut host);
    load(&mut host);
    drop(host);
    assert_eq!(nice(target.pid()), before, "after the host");
}

#[test]
fn a_member_killed_in_a_handler_does_not_stop_the_service() {
    if !is_root() {
        return;
    }
    let mut host = host();
    host.start_ticks(Duration::from_millis(2));
    if let Some(why) = host.no_ticks() {
        println!("SKIP: needs ticks: {why}");
        return;
    }
    // It spins for its whole budget, so that most kills come in the middle of a run.
    let mut wild = spec("wild", Dispatch::Upcall, vec![]);
    wild.arguments = vec![b's'];
    let id = host.load(&wild, &native("wild")).expect("loaded");
    for nth in 0..10 {
        let mut member = Member::start(&mut host, "member_program");
        let before = host.status(id).expect("loaded").account;
        until("an upcall", || host.status(id).expect("loaded").account.runs > before.runs + nth % 3);
        member.0.kill().expect("own child");
        member.0.wait().expect("own child");
        let before = host.status(id).expect("loaded").account;
        until("the service runs on", || host.status(id).expect("loaded").account.runs > before.runs + 2);
    }
}

#[test]
fn a_member_that_execs_is_not_killed_by_upcalls() {
    if !is_root() {
        return;
    }
    let mut host = host();
    host.start_ticks(Duration::from_millis(2));
    if let Some(why) = host.no_ticks() {
        println!("SKIP: needs ticks: {why}");
        return;
    }
    let id = host.load(&spec("count", Dispatch::Upcall, vec![]), &native("count")).expect("loaded");
    let mut member = Member::start(&mut host, "exec_program");
    let pid = member.pid();
    let program = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    until("it is another program", || program().trim() == "sh");
    let before = host.status(id).expect("loaded").account.runs;
    until("100 more events", || host.status(id).expect("loaded").account.runs > before + 100);
    assert!(member.is_alive() && program().trim() == "sh");
}

/// Starts a host in a process of its own, which manages `target` and may join `member`; answers it
/// and its agent.
fn start_host(target: i32, member: Option<i32>) -> (Killed, i32) {
    let mut command = Command::new(std::env::current_exe().expect("own program"));
    command
        .args(["host_program", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env("ORBIT_TEST_TARGET", target.to_string())
        .stdout(Stdio::piped());
    if let Some(member) = member {
        command.env("ORBIT_TEST_JOIN", member.to_string());
    }
    let mut host = Killed(command.spawn().expect("a host"));
    let mut text = String::new();
    let mut output = host.0.stdout.take().expect("piped");
    let mut bytes = [0u8; 256];
    loop {
        let n = output.read(&mut bytes).expect("its output");
        assert!(n > 0, "the host ended: {text}");
        text += &String::from_utf8_lossy(&bytes[..n]);
        let agent = text.lines().find_map(|line| line.rsplit_once("agent ")?.1.trim().parse::<i32>().ok());
        if let Some(agent) = agent {
            return (host, agent);
        }
    }
}

fn is_there(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn what_was_set_is_put_back_when_the_host_is_killed_and_members_are_unharmed() {
    if !is_root() {
        return;
    }
    let (target, mut member) = (Killed::sleeper(), Killed::sleeper());
    let before = nice(target.pid());
    for round in 0..times(5, 300) {
        // The next host joins the same member, which has the region of the one before mapped.
        let (mut host, agent) = start_host(target.pid(), Some(member.pid()));
        until("it has set something", || nice(target.pid()) > before);
        std::thread::sleep(Duration::from_micros((round as u64 * 7919) % 20_000));
        host.0.kill().expect("own child");
        host.0.wait().expect("own child");
        until("the agent ends", || !is_there(agent));
        assert_eq!(nice(target.pid()), before, "round {round}");
        let ended = member.0.try_wait().expect("own child");
        assert!(ended.is_none(), "round {round}: {ended:?}");
    }
}

/// The host is killed at any time after its start: before, in the middle of and after joining a
/// program that computes and checks itself, and while upcalls come.
#[test]
fn a_member_that_computes_is_unharmed_whenever_its_host_is_killed() {
    if !is_root() {
        return;
    }
    let target = Killed::sleeper();
    let before = nice(target.pid());
    let mut member = common::Subject::start(&[]);
    until("it runs", || member.is_running());
    let object = std::env::temp_dir().join(format!("orbit-test-{}-ends.so", std::process::id()));
    std::fs::write(&object, native("count")).expect("written");
    let mut joined = 0;
    for round in 0..times(10, 300) as u64 {
        let mut command = Command::new(std::env::current_exe().expect("own program"));
        command
            .args(["ticking_host_program", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env("ORBIT_TEST_TARGET", target.pid().to_string())
            .env("ORBIT_TEST_JOIN", member.pid().to_string())
            .env("ORBIT_TEST_OBJECT", &object)
            .stdout(Stdio::piped());
        let mut host = Killed(command.spawn().expect("a host"));
        let mut output = host.0.stdout.take().expect("piped");
        let mut text = String::new();
        // Killed from its first join on, or from a moment on at which the program is a member.
        let from = if round % 2 == 0 { "begins" } else { "joined" };
        while !text.contains(from) {
            let mut bytes = [0u8; 64];
            let n = output.read(&mut bytes).expect("its output");
            assert!(n > 0, "round {round}: the host ended: {text}");
            text += &String::from_utf8_lossy(&bytes[..n]);
        }
        // It joins and leaves each 10 ms or so.
        let delay = (round * 7919) % 25_000;
        std::thread::sleep(Duration::from_micros(delay));
        host.0.kill().expect("own child");
        host.0.wait().expect("own child");
        output.read_to_string(&mut text).expect("its output");
        joined += u64::from(text.contains("joined"));
        until("what was set is put back", || nice(target.pid()) == before);
        let ended = member.ended();
        assert!(ended.is_none(), "round {round}, killed after {delay} us, {text:?}: the member ended: {ended:?}");
    }
    let _ = std::fs::remove_file(object);
    println!("{joined} of the hosts had joined it");
    assert!(joined > 0);
    let mut last = host();
    last.join(member.pid()).expect("it can still join");
    last.leave(member.pid()).expect("and leave");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", member.pid())).expect("maps");
    assert!(!maps.contains("orbit-sandbox") && member.ended().is_none());
}

/// A host that joins a member, starts ticks, and has a service that is an upcall there.
#[test]
#[ignore = "the program of a host"]
fn ticking_host_program() {
    let Ok(target) = std::env::var("ORBIT_TEST_TARGET") else { return };
    let member = std::env::var("ORBIT_TEST_JOIN").expect("a member").parse().expect("a number");
    let mut host = host();
    host.start_ticks(Duration::from_millis(1));
    let target = raises(target.parse().expect("a number"));
    let mut spec = spec("count", Dispatch::Upcall, vec![target]);
    spec.period = Duration::from_millis(1);
    let object = std::fs::read(std::env::var_os("ORBIT_TEST_OBJECT").expect("an object")).expect("read");
    host.load(&spec, &object).expect("loaded");
    println!("begins");
    loop {
        host.join(member).expect("joined");
        println!("joined");
        std::thread::sleep(Duration::from_millis(7));
        host.leave(member).expect("left");
    }
}

#[test]
fn the_region_of_a_dead_host_is_replaced_and_that_of_a_living_one_is_not() {
    if !is_root() {
        return;
    }
    let (target, member) = (Killed::sleeper(), Killed::sleeper());
    let maps = || std::fs::read_to_string(format!("/proc/{}/maps", member.pid())).expect("maps");
    let (mut first, _) = start_host(target.pid(), Some(member.pid()));
    let mut second = host();
    let error = second.join(member.pid()).expect_err("it is a member of a host that lives");
    assert!(error.to_string().contains("member of a region already"), "{error}");
    first.0.kill().expect("own child");
    first.0.wait().expect("own child");
    assert!(maps().contains("orbit-sandbox"));
    second.join(member.pid()).expect("joined");
    second.leave(member.pid()).expect("left");
    assert!(!maps().contains("orbit-sandbox"), "nothing of either is left");
}
