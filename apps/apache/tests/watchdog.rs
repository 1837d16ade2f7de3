//! The watchdog reports a thread that holds a lock too long, and no other.

use orbit_apache::{Server, Setup, get, wait_until};

#[test]
fn a_lock_that_is_held_too_long() {
    let Some(server) = Server::start(&Setup::default().line("OrbitLockLimit 500")) else { return };
    let port = server.port();
    std::thread::scope(|scope| {
        let holder = scope.spawn(move || get(port, "/orbit?hold=4000"));
        // Waits for the same lock.
        let waiter = scope.spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(300));
            get(port, "/orbit?hold=1")
        });
        server.wait_for_log("orbit-watchdog: thread ");
        server.wait_for_log("1 threads wait for it; taken at ");
        for client in [holder, waiter] {
            assert_eq!(client.join().expect("no panic").expect("an answer").status, 200);
        }
    });
    let log = server.log();
    let line = log.lines().find(|line| line.contains("orbit-watchdog: thread ")).expect("waited for");
    assert!(line.contains("mod_orbit.so"), "where it was taken: {line}");
    assert!(line.contains("the thread is asleep now"), "what the holder does: {line}");
    assert!(server.state("reports") >= 1);
}

/// Idle workers wait on a condition: they hold nothing.
#[test]
fn idle_workers_are_not_reported() {
    let Some(server) = Server::start(&Setup::default().line("OrbitLockLimit 100")) else { return };
    let before = server.state("watchdog_calls");
    wait_until("the watchdog has run", || server.state("watchdog_calls") > before + 30);
    assert_eq!(server.state("reports"), 0, "{}", server.log());
}
