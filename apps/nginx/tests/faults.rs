//! Whatever the task does, the worker lives: its clients keep their connections, the event is in
//! nginx' log, the task is back.

use orbit_nginx::{How, Load, Put, Server, started, wait_until};

const LOCATION: &str = "orbit_dav_deadline 2s;";

struct Scene {
    server: Server,
    load: Load,
    worker: (i32, Option<u64>),
}

impl Scene {
    fn begin() -> Option<Scene> {
        let server = Server::start(How::new(Put::Orbit, LOCATION))?;
        let worker = server.wait_for("worker process");
        let load = Load::start(&server.socket(), "load", 4, 2000, 1);
        Some(Scene { load, worker: (worker, started(worker)), server })
    }

    fn next_put_is_good(&self) {
        let response = self.server.connect().put("/next", b"good").expect("a response");
        assert!([201, 204].contains(&response.status), "{response:?}\n{}", self.server.log());
        assert_eq!(std::fs::read(self.server.www().join("next")).expect("the file"), b"good");
    }

    /// No client of all the time was disturbed, but for PUTs that were in the orbit when it was
    /// killed.
    fn end(self, most_failed: u64) {
        let loaded = self.load.stop();
        assert!(loaded.wrong.is_empty(), "{:?}\n{}", loaded.wrong, self.server.log());
        assert!(loaded.stored > 0, "the clients stored nothing");
        assert!(loaded.failed <= most_failed, "{} failed\n{}", loaded.failed, self.server.log());
        assert_eq!(self.server.find("worker process"), Some(self.worker.0), "another worker");
        assert_eq!(started(self.worker.0), self.worker.1, "another worker");
        assert!(!self.server.log().contains("exited on signal"), "{}", self.server.log());
        assert_eq!(self.server.bodies(), Vec::<String>::new(), "bodies of failed PUTs are left");
        let strange: Vec<_> = self.server.targets().into_iter().filter(|name| name.contains('.')).collect();
        assert_eq!(strange, Vec::<String>::new(), "copies are left");
    }
}

#[test]
fn every_fault_of_the_task() {
    let Some(scene) = Scene::begin() else { return };
    let faults = [
        ("segv", "orbit_dav: PUT failed: crashed: SIGSEGV at 0x0 in "),
        ("hang", "orbit_dav: PUT failed: not done at its deadline"),
        ("memory", "orbit_dav: PUT failed: out of memory"),
        ("recursion", "orbit_dav: PUT failed: crashed: SIGSEGV at 0x7"),
        ("kill", "orbit_dav: PUT failed: killed by signal 9"),
        ("lie", "orbit_dav: PUT failed: the task returned a status that PUT does not have"),
    ];
    for (fault, event) in faults {
        let mut client = scene.server.connect();
        let path = format!("/{fault}");
        let response =
            client.request("PUT", &path, &[&format!("X-Orbit-Fault: {fault}")], b"body").expect("a response");
        assert_eq!(response.status, 500, "{fault}");
        scene.server.wait_for_log(event);
        assert_eq!(scene.server.connect().request("GET", &path, &[], b"").expect("a response").status, 404, "{fault}");
        scene.next_put_is_good();
    }
    let log = scene.server.log();
    assert!(log.contains("request: \"PUT /segv HTTP/1.1\""), "{log}");
    scene.end(0);
}

/// nginx bug 238, by its mechanism: the handler of a PUT without a body follows a pointer that is
/// NULL. There the worker dies with all its clients.
#[test]
fn bug_238() {
    let Some(scene) = Scene::begin() else { return };
    for _ in 0..5 {
        let mut client = scene.server.connect();
        let response = client.request("PUT", "/238", &["X-Orbit-Fault: no-body"], b"").expect("a response");
        assert_eq!(response.status, 500);
    }
    scene.server.wait_for_log("orbit_dav: PUT failed: crashed: SIGSEGV at 0x0 in size_of_missing_body (task.c:");
    scene.next_put_is_good();
    scene.end(0);
}

/// kill -9 from outside, again and again: one PUT fails each time, at most.
#[test]
fn killed_from_outside() {
    let Some(scene) = Scene::begin() else { return };
    const KILLS: u64 = 10;
    for _ in 0..KILLS {
        let orbit = scene.server.wait_for("orbit of PUT");
        let named = (orbit, started(orbit));
        scene.server.signal(orbit, libc::SIGKILL);
        wait_until("it is gone", || orbit_nginx::is_gone(named));
        // The first call after its end may still be one for the process that has ended.
        wait_until("a PUT is stored", || {
            let next = scene.server.connect().put("/next", b"good").expect("a response");
            [201, 204].contains(&next.status)
        });
    }
    scene.end(KILLS);
}

/// A client that leaves while its task runs disturbs nobody; nothing of its request is left.
#[test]
fn the_client_leaves() {
    let Some(scene) = Scene::begin() else { return };
    for _ in 0..3 {
        let mut stream = std::os::unix::net::UnixStream::connect(scene.server.socket()).expect("a connection");
        let request = "PUT /gone HTTP/1.1\r\nHost: test\r\nX-Orbit-Fault: hang\r\nContent-Length: 1\r\n\r\nx";
        std::io::Write::write_all(&mut stream, request.as_bytes()).expect("it is sent");
        let orbit = scene.server.wait_for("orbit of PUT");
        let before = orbit_nginx::cpu_seconds(&[orbit]);
        wait_until("the task loops", || orbit_nginx::cpu_seconds(&[orbit]) > before + 0.1);
        drop(stream);
        scene.server.wait_for_log("not done at its deadline");
        wait_until("its process has ended", || orbit_nginx::title(orbit).is_empty());
        scene.next_put_is_good();
    }
    scene.end(0);
}

/// Faults only where the configuration permits them.
#[test]
fn faults_need_a_directive() {
    let Some(server) = Server::start(How::new(Put::Orbit, "")) else { return };
    let mut client = server.connect();
    assert_eq!(client.request("PUT", "/a", &["X-Orbit-Fault: segv"], b"x").expect("a response").status, 500);
    drop(server);
    let mut how = How::new(Put::Orbit, "} location /plain { orbit_dav_put on; alias /nowhere;");
    how.workers = 1;
    let Some(server) = Server::start(how) else { return };
    let response = server.connect().request("PUT", "/plain/a", &["X-Orbit-Fault: segv"], b"x").expect("a response");
    assert_eq!(response.status, 500, "there is no such directory");
    assert!(!server.log().contains("SIGSEGV"), "{}", server.log());
}
