//! Whatever the tasks do, the server serves: first process and child keep their pids, no client
//! sees an error, the event is in the error log, the task is back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use orbit_apache::{Backend, Client, Server, Setup, lives, signal, started, wait_until};

/// A fault, and what the log says of it: signal and address where it is a crash. The balancer
/// never waits for the names of functions: file and offset stand in their place.
const FAULTS: [(&str, &str); 5] = [
    ("segv", "crashed: SIGSEGV at 0x0 in "),
    ("hang", "not done at its deadline"),
    ("memory", "out of memory"),
    ("recursion", "crashed: SIGSEGV at 0x7"),
    ("kill", "killed by signal 9"),
];

fn setup(backends: &[Backend]) -> Setup {
    let members: Vec<(u16, u32)> = backends.iter().map(|backend| (backend.port(), 1)).collect();
    Setup::default().balance("orbit", &members).line("OrbitLockLimit 400\nOrbitMemory 16\nOrbitDeadline 4000")
}

/// Runs `body` while clients make requests, proxied and others; no request fails.
fn under_load(server: &Server, body: impl FnOnce()) {
    let (stop, served) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|nth| {
                let (stop, served, port) = (&stop, &served, server.port());
                scope.spawn(move || {
                    let mut client = Client::open(port).expect("a connection");
                    while !stop.load(Ordering::Relaxed) {
                        let path = if nth % 2 == 0 { "/app/x" } else { "/page" };
                        let answer = client.get(path).expect("the connection stays");
                        assert_eq!(answer.status, 200, "{answer:?}");
                        served.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(std::time::Duration::from_micros(500));
                    }
                })
            })
            .collect();
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        if ended.is_ok() {
            wait_until("clients are served", || {
                served.load(Ordering::Relaxed) > 100 || clients.iter().any(|client| client.is_finished())
            });
        }
        stop.store(true, Ordering::Relaxed);
        let clients: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
        clients.into_iter().for_each(|client| client.expect("no client saw an error"));
    });
}

fn backends() -> Vec<Backend> {
    (0..3).map(|nth| Backend::start(&format!("backend {nth}"))).collect()
}

/// Every fault of one task.
fn every_fault(task: &str) {
    let backends = backends();
    let Some(server) = Server::start(&setup(&backends)) else { return };
    let (server_pid, child) = (server.pid(), server.state("child_pid") as i32);
    let since = started(child);
    let pid = format!("{task}_orbit_pid");
    under_load(&server, || {
        for (failed, (fault, event)) in (1..).zip(FAULTS) {
            wait_until("the task is there", || server.state(&pid) > 0);
            let before = server.state(&pid);
            server.fault(task, fault);
            wait_until("the task has failed", || server.state(&format!("{task}_failed")) == failed);
            let log = server.log();
            let events = log.lines().filter(|line| line.contains(&format!("orbit-{task}: ")) && line.contains(event));
            assert_eq!(events.count(), 1, "{fault}: {event}\n{log}");
            wait_until("the task is back", || ![0, before].contains(&server.state(&pid)));
            let calls = server.state(&format!("{task}_calls"));
            wait_until("it works", || server.state(&format!("{task}_calls")) > calls + 1);
        }
        assert_eq!(server.state(&format!("{task}_failed")), FAULTS.len() as i64);
    });
    assert!(lives(server_pid) && server.state("child_pid") == i64::from(child) && started(child) == since);
    assert!(!server.log().contains("exit signal"), "{}", server.log());
}

#[test]
fn every_fault_of_the_balancer() {
    every_fault("balancer");
}

#[test]
fn every_fault_of_the_watchdog() {
    every_fault("watchdog");
}

/// Apache's bug 59864 by its mechanism: two workers that are not usable and name each other are
/// followed without end. There the child dies with all its connections; here requests are
/// distributed as before.
#[test]
fn bug_59864_an_endless_search_for_a_route() {
    let backends = backends();
    let Some(server) = Server::start(&setup(&backends)) else { return };
    let child = server.state("child_pid");
    under_load(&server, || {
        for failed in 1..=3 {
            server.fault("balancer", "redirect");
            wait_until("the task has failed", || server.state("balancer_failed") == failed);
        }
    });
    assert!(server.log().contains("find_route (schedule.c:"), "{}", server.log());
    assert_eq!(server.state("child_pid"), child);
}

/// A task that lies: its decisions are dropped, and requests go where they may.
#[test]
fn decisions_that_make_no_sense() {
    let backends = backends();
    let Some(server) = Server::start(&setup(&backends)) else { return };
    under_load(&server, || {
        server.fault("balancer", "lie");
        wait_until("the lies are counted", || server.state("refuted") >= 4);
    });
    assert_eq!(server.state("balancer_failed"), 0);
}

/// kill -9 from outside, again and again.
#[test]
fn killed_from_outside() {
    let backends = backends();
    let Some(server) = Server::start(&setup(&backends)) else { return };
    under_load(&server, || {
        for task in ["balancer", "watchdog", "balancer", "watchdog"] {
            let name = format!("{task}_orbit_pid");
            wait_until("the task is there", || server.state(&name) > 0);
            let pid = server.state(&name) as i32;
            signal(pid, libc::SIGKILL);
            wait_until("the task is back", || ![0, i64::from(pid)].contains(&server.state(&name)));
        }
    });
}
