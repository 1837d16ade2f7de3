//! The orbit's herder keeps as many threads as Varnish' own, whatever happens to it.

use orbit_varnish::{Herder, Server, burst, signal, started, wait_until, wait_until_gone};

/// Threads with nothing to do, with more requests than threads may be, and when they have been idle
/// long.
fn threads_of(herder: Herder) -> Option<[u64; 4]> {
    let server = Server::start(herder, &[])?;
    let idle = server.count("threads");
    assert_eq!(burst(&server.socket(), "/slow", 60), 60, "{herder:?}: all are answered");
    let (most, limited) = (server.count("threads"), server.count("threads_limited").min(1));
    wait_until("threads that are idle end", || server.count("threads") <= 11);
    let balance = server.count("threads_created") - server.count("threads_destroyed");
    assert_eq!(balance, server.count("threads"), "{herder:?}: the counters agree");
    assert!(server.count("sess_queued") > 0, "{herder:?}: what waited is counted");
    if herder == Herder::Orbit {
        let log = server.log();
        assert!(!log.contains("failed") && !log.contains("not one of version"), "{log}");
        assert!(server.orbit().is_some(), "{:?}", server.processes());
    }
    Some([idle, most, limited, server.count("threads_failed")])
}

#[test]
fn as_many_threads_as_stock() {
    let Some(ours) = threads_of(Herder::Orbit) else { return };
    let stock = threads_of(Herder::Stock).expect("Varnish is there");
    assert_eq!(ours, stock);
    assert_eq!(ours, [10, 40, 1, 0]);
}

/// Has the herder do this harm in its next call, while requests wait for threads that it is to
/// make.
fn fault_is_survived(fault: &str, calls: u32, event: &str) {
    let Some(server) = Server::start(Herder::Orbit, &[]) else { return };
    let worker = server.worker();
    let since = started(worker);
    server.order_fault(fault, calls);
    assert_eq!(burst(&server.socket(), "/slow", 35), 35, "{fault}: all are answered");
    wait_until("the event is in the log", || server.log().contains(event));
    assert!(server.count("threads") > 10, "{fault}: the next process makes threads:\n{}", server.log());
    assert!(!server.log().contains("takes over"), "{fault}:\n{}", server.log());
    assert_eq!((server.worker(), started(worker)), (worker, since), "{fault}: another worker process");
    assert!(!server.said().contains("Panic"), "{}", server.said());
    assert_eq!(burst(&server.socket(), "/", 20), 20);
}

#[test]
fn null_write() {
    fault_is_survived("segv", 1, "a run of the herder failed: crashed: SIGSEGV at 0x0 in write_to_null (fault.c:");
}

#[test]
fn endless_loop() {
    fault_is_survived("hang", 1, "a run of the herder failed: not done at its deadline");
}

#[test]
fn memory_beyond_the_limit() {
    fault_is_survived("memory", 1, "a run of the herder failed: out of memory");
}

#[test]
fn endless_recursion() {
    fault_is_survived("recursion", 1, "in recurse_for_ever (fault.c:");
}

#[test]
fn kill_9() {
    fault_is_survived("kill", 2, "a run of the herder failed: killed by signal 9");
}

#[test]
fn results_that_cannot_be() {
    fault_is_survived("lie", 2, "a run of the herder failed: it decided what cannot be");
}

#[test]
fn after_three_failures_varnish_has_its_own_herder() {
    let Some(server) = Server::start(Herder::Orbit, &[]) else { return };
    server.order_fault("segv", 3);
    assert_eq!(burst(&server.socket(), "/slow", 35), 35);
    wait_until("it is in the log", || server.log().contains("Varnish' own takes over for this pool"));
    assert_eq!(burst(&server.socket(), "/slow", 35), 35);
    assert!(server.count("threads") > 20, "threads are made");
}

/// Several pools share the orbit.
#[test]
fn several_pools() {
    let Some(server) = Server::start(Herder::Orbit, &["thread_pools=3"]) else { return };
    wait_until("all threads of all pools are there", || server.count("threads") == 30);
    assert_eq!(burst(&server.socket(), "/slow", 60), 60);
    assert!(server.count("threads") > 30);
    assert!(!server.log().contains("failed"), "{}", server.log());
}

#[test]
fn server_stopped_and_killed() {
    for with in [libc::SIGTERM, libc::SIGKILL] {
        let Some(mut server) = Server::start(Herder::Orbit, &[]) else { return };
        server.order_fault("segv", 1);
        assert_eq!(burst(&server.socket(), "/slow", 35), 35);
        let processes = server.processes();
        assert!(processes.len() >= 4, "manager, worker, template, orbit: {processes:?}");
        server.stop(with);
        wait_until_gone(&processes, &format!("signal {with}"));
    }
}

/// The worker process is killed: the manager starts another, whose herder is in an orbit again.
#[test]
fn worker_killed() {
    let Some(server) = Server::start(Herder::Orbit, &[]) else { return };
    let worker = server.worker();
    let mut others = server.processes();
    others.retain(|(pid, _)| *pid != server.pid());
    signal(worker, libc::SIGKILL);
    wait_until_gone(&others, "worker killed");
    wait_until("the next answers", || server.get("/").is_ok_and(|status| status == 200));
    assert_ne!(server.worker(), worker);
    assert_eq!(burst(&server.socket(), "/slow", 35), 35);
    wait_until("its herder is in an orbit", || server.orbit().is_some());
}

/// An upgrade of the package under a running server: the orbit that has the old file crashes and is
/// back, and so is a worker process that is started afterwards.
#[test]
fn library_replaced() {
    let Some(mut server) = Server::start(Herder::Orbit, &[]) else { return };
    server.replace_library();
    server.order_fault("segv", 1);
    assert_eq!(burst(&server.socket(), "/slow", 35), 35);
    wait_until("the event is in the log", || server.log().contains("SIGSEGV at 0x0 in write_to_null (fault.c:"));
    assert!(server.count("threads") > 10, "the next process makes threads:\n{}", server.log());
    let worker = server.worker();
    signal(worker, libc::SIGKILL);
    wait_until("the next answers", || server.get("/").is_ok_and(|status| status == 200));
    assert_ne!(server.worker(), worker);
    assert_eq!(burst(&server.socket(), "/slow", 35), 35);
    wait_until("its herder is in an orbit", || server.orbit().is_some());
    let processes = server.processes();
    server.stop(libc::SIGTERM);
    wait_until_gone(&processes, "stopped after an upgrade");
}

/// A herder that hangs delays no stop.
#[test]
fn stopped_while_the_herder_hangs() {
    let Some(mut server) = Server::start(Herder::Orbit, &[]) else { return };
    server.order_fault("hang", 1_000);
    assert_eq!(burst(&server.socket(), "/slow", 12), 12);
    wait_until("it hangs", || std::fs::read_to_string(server.faults()).is_ok_and(|left| left != "hang 1000\n"));
    let processes = server.processes();
    let began = std::time::Instant::now();
    server.stop(libc::SIGTERM);
    wait_until_gone(&processes, "stopped while the herder hangs");
    assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
}
