//! However server and plugin end, nothing of the orbit is left, and what is started again works.

use orbit_mariadb::{Detector, Ring, Server, build, wait_until, wait_until_gone};

fn next_deadlock_is_broken(server: &Server, row: usize) {
    assert_eq!(Ring::new(server, &[1, 2], row).resolve(server).len(), 1);
}

#[test]
fn server_stopped_and_killed() {
    for how in [libc::SIGTERM, libc::SIGKILL] {
        let Some(mut server) = Server::start(Detector::Orbit, &[]) else { return };
        server.fault("segv");
        wait_until("the run has failed", || server.state("failed") >= 1);
        let processes = server.processes();
        assert!(processes.len() >= 2, "template and orbit: {processes:?}");
        server.stop(how);
        wait_until_gone(&processes, &format!("signal {how}"));
    }
}

/// The plugin is unloaded, its file replaced, and loaded again, as by an upgrade of its package:
/// meanwhile InnoDB's own detector is back.
#[test]
fn plugin_reinstalled() {
    let Some(server) = Server::start(Detector::Orbit, &[]) else { return };
    let mut bystander = server.session();
    bystander.run("BEGIN");
    bystander.run("UPDATE test.ring SET v = -1 WHERE id = 9999");
    for round in 1..=3 {
        let processes = server.processes();
        server.query("UNINSTALL SONAME 'orbit_deadlock.so'");
        wait_until_gone(&processes, "unloaded");
        assert_eq!(server.query("SELECT @@innodb_deadlock_detect"), "1");
        next_deadlock_is_broken(&server, 2000 * round - 2000);
        let file = server.directory().join("plugins/orbit_deadlock.so");
        std::fs::remove_file(&file).expect("removed");
        std::fs::copy(build().expect("it was built"), &file).expect("installed");
        server.query("INSTALL SONAME 'orbit_deadlock.so'");
        wait_until("it is ready", || server.log().matches("orbit_deadlock: ready").count() == 1 + round);
        assert_eq!(server.query("SELECT @@innodb_deadlock_detect"), "0");
        next_deadlock_is_broken(&server, 2000 * round - 1000);
    }
    assert_eq!(bystander.run("SELECT v FROM test.ring WHERE id = 9999").text(), "-1");
}

/// A task that hangs delays no stop.
#[test]
fn stopped_while_the_task_hangs() {
    let Some(mut server) = Server::start(Detector::Orbit, &["--orbit-deadlock-deadline=600000"]) else { return };
    let processes = server.processes();
    let calls = server.state("calls");
    server.fault("hang");
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(server.state("calls"), calls, "the run has not ended");
    let began = std::time::Instant::now();
    server.stop(libc::SIGTERM);
    wait_until_gone(&processes, "stopped while the task hangs");
    assert!(began.elapsed().as_secs() < 40, "{:?}", began.elapsed());
}
