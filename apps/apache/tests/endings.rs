//! However server and children end, nothing of the orbits is left: no process, no zombie, no port.

use std::net::TcpListener;

use orbit_apache::{Backend, Server, Setup, build, get, signal, wait_until, wait_until_gone};

fn server(backend: &Backend, setup: Setup) -> Option<Server> {
    let server = Server::start(&setup.balance("orbit", &[(backend.port(), 1)]).line("OrbitLockLimit 1000"))?;
    for _ in 0..20 {
        assert_eq!(server.get("/app/x").status, 200, "{}", server.log());
    }
    Some(server)
}

#[test]
fn server_stopped_and_killed() {
    let backend = Backend::start("b");
    for how in [libc::SIGTERM, libc::SIGWINCH, libc::SIGKILL] {
        for mpm in ["event", "worker", "prefork"] {
            let Some(mut server) = server(&backend, Setup { mpm, ..Setup::default() }) else { return };
            if mpm != "prefork" {
                server.fault("balancer", "segv");
                server.get("/app/x");
            }
            let processes = server.processes();
            assert!(processes.len() >= 4, "child, template and orbits: {processes:?}");
            let children = server.children();
            server.stop(how);
            if how == libc::SIGKILL {
                // Children of a killed server serve until they find out: as in stock.
                children.iter().for_each(|child| signal(*child, libc::SIGKILL));
            }
            wait_until_gone(&processes, &format!("{mpm}, signal {how}"));
            wait_until("the port is free", || TcpListener::bind(("127.0.0.1", server.port())).is_ok());
        }
    }
}

/// A child that is killed: its orbits go with it, and the server starts another.
#[test]
fn child_killed() {
    let backend = Backend::start("b");
    let Some(server) = server(&backend, Setup::default()) else { return };
    for _ in 0..3 {
        let child = server.state("child_pid") as i32;
        let processes = server.processes();
        signal(child, libc::SIGKILL);
        wait_until_gone(&processes, "child killed");
        wait_until("there is another child", || {
            get(server.port(), "/app/x").is_ok_and(|answer| answer.status == 200)
                && server.state("child_pid") != i64::from(child)
        });
    }
}

/// A graceful restart: requests that were begun are served, old children go with their orbits.
#[test]
fn reloaded_gracefully() {
    let backend = Backend::start("b");
    let Some(server) = server(&backend, Setup::default()) else { return };
    for _ in 0..3 {
        let child = server.state("child_pid");
        let processes = server.processes();
        let port = server.port();
        let begun = std::thread::spawn(move || get(port, "/orbit?hold=700"));
        wait_until("the request is served", || server.get("/orbit").status == 200);
        server.reload_gracefully();
        wait_until("there is another child", || {
            get(port, "/app/x").is_ok_and(|answer| answer.status == 200) && server.state("child_pid") != child
        });
        assert_eq!(begun.join().expect("no panic").expect("an answer").status, 200);
        wait_until_gone(&processes, "reloaded");
    }
    assert!(!server.log().contains("exit signal"), "{}", server.log());
}

/// An upgrade of the package: the files are removed and installed again, the server is reloaded; it
/// runs the new ones.
#[test]
fn module_reinstalled() {
    let backend = Backend::start("b");
    let Some(server) = server(&backend, Setup::default()) else { return };
    let built = build().expect("it was built");
    let path = server.directory().join("mod_orbit.so");
    std::fs::remove_file(&path).expect("removed");
    assert_eq!(server.get("/app/x").status, 200, "the running server has the old one");
    std::fs::copy(&built.module, &path).expect("installed");
    let (child, processes) = (server.state("child_pid"), server.processes());
    server.reload_gracefully();
    wait_until("there is another child", || {
        get(server.port(), "/app/x").is_ok_and(|answer| answer.status == 200) && server.state("child_pid") != child
    });
    wait_until_gone(&processes, "upgraded");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.state("child_pid"))).expect("its maps");
    assert!(!maps.lines().any(|line| line.contains("mod_orbit.so") && line.contains("(deleted)")), "{maps}");
    assert!(server.state("balancer_orbit_pid") > 0);
}

/// A task that hangs delays neither a stop nor a reload.
#[test]
fn stopped_while_a_task_hangs() {
    let backend = Backend::start("b");
    for task in ["balancer", "watchdog"] {
        let Some(mut server) = server(&backend, Setup::default().line("OrbitDeadline 600000")) else { return };
        let calls = server.state(&format!("{task}_calls"));
        server.fault(task, "hang");
        server.get("/app/x");
        if task == "balancer" {
            // The first may be answered by what was decided before the fault was set.
            wait_until("the call is made", || {
                server.get("/app/x");
                server.state("balancer_calls") > calls
            });
        } else {
            std::thread::sleep(std::time::Duration::from_millis(600));
        }
        let processes = server.processes();
        let began = std::time::Instant::now();
        server.stop(libc::SIGTERM);
        wait_until_gone(&processes, task);
        assert!(began.elapsed().as_secs() < 30, "{task}: {:?}", began.elapsed());
    }
}
