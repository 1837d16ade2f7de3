//! However server or worker end, nothing of the orbit is left, and what is started again works.

use orbit_nginx::{How, Put, Server, is_gone, wait_until};

fn put_is_good(server: &Server, path: &str) {
    let response = server.connect().put(path, b"good").expect("a response");
    assert!([201, 204].contains(&response.status), "{response:?}\n{}", server.log());
}

fn all_gone(processes: &[(i32, Option<u64>)], how: &str) {
    wait_until(&format!("{how}: nothing of {processes:?} is left"), || processes.iter().all(|one| is_gone(*one)));
}

#[test]
fn server_stopped() {
    // Graceful, fast.
    for (signal, name) in [(libc::SIGQUIT, "QUIT"), (libc::SIGTERM, "TERM")] {
        let Some(mut server) = Server::start(How::new(Put::Orbit, "")) else { return };
        put_is_good(&server, "/a");
        // With a crash behind it.
        let crashed = server.connect().request("PUT", "/b", &["X-Orbit-Fault: segv"], b"x").expect("a response");
        assert_eq!(crashed.status, 500);
        put_is_good(&server, "/a");
        let processes = server.processes();
        assert!(processes.len() >= 4, "master, worker, template, orbit: {processes:?}");
        server.signal(server.pid(), signal);
        server.wait();
        all_gone(&processes, name);
    }
}

#[test]
fn worker_killed() {
    let Some(server) = Server::start(How::new(Put::Orbit, "")) else { return };
    for round in 0..3 {
        put_is_good(&server, "/a");
        let worker = server.wait_for("worker process");
        let mut others = server.processes();
        others.retain(|(pid, _)| *pid != server.pid());
        server.signal(worker, libc::SIGKILL);
        all_gone(&others, "worker killed");
        server.wait_for("worker process");
        put_is_good(&server, &format!("/{round}"));
    }
}

/// A request whose task runs is answered, though its worker is to quit; new ones go to the new
/// worker at once.
#[test]
fn reloaded_while_a_task_runs() {
    let Some(mut server) = Server::start(How::new(Put::Orbit, "orbit_dav_deadline 3s;")) else { return };
    put_is_good(&server, "/a");
    let socket = server.socket();
    let hanging = std::thread::spawn(move || {
        let mut client = orbit_nginx::Client::connect(&socket).expect("a connection");
        client.request("PUT", "/never", &["X-Orbit-Fault: hang"], b"x").map(|response| response.status)
    });
    let orbit = server.wait_for("orbit of PUT");
    wait_until("the task loops", || orbit_nginx::cpu_seconds(&[orbit]) > 0.1);
    server.reload("orbit_dav_deadline 5s;", true);
    assert_eq!(hanging.join().expect("the client ends").expect("a response"), 500);
    put_is_good(&server, "/b");
}

/// A task that hangs delays no fast stop.
#[test]
fn stopped_while_a_task_hangs() {
    let Some(mut server) = Server::start(How::new(Put::Orbit, "orbit_dav_deadline 600s;")) else { return };
    put_is_good(&server, "/a");
    let socket = server.socket();
    let hanging = std::thread::spawn(move || {
        let mut client = orbit_nginx::Client::connect(&socket).expect("a connection");
        client.request("PUT", "/never", &["X-Orbit-Fault: hang"], b"x").is_err()
    });
    let orbit = server.wait_for("orbit of PUT");
    wait_until("the task loops", || orbit_nginx::cpu_seconds(&[orbit]) > 0.1);
    let processes = server.processes();
    server.signal(server.pid(), libc::SIGTERM);
    server.wait();
    all_gone(&processes, "stopped while the task hangs");
    assert!(hanging.join().expect("the client ends"), "the connection is closed");
}

/// The module is removed from the configuration, its file replaced, and put back: by reloads, the
/// server runs on.
#[test]
fn module_removed_upgraded_and_put_back() {
    let Some(mut server) = Server::start(How::new(Put::Orbit, "")) else { return };
    let master = server.pid();
    for _ in 0..3 {
        put_is_good(&server, "/a");
        server.reload("", false);
        assert_eq!(server.find("of orbits"), None, "{:?}", server.processes());
        assert_eq!(server.connect().put("/a", b"x").expect("a response").status, 405);
        server.replace_module();
        server.reload("", true);
    }
    put_is_good(&server, "/a");
    assert_eq!(server.pid(), master);
    let processes = server.processes();
    server.signal(master, libc::SIGQUIT);
    server.wait();
    all_gone(&processes, "stopped");
}
