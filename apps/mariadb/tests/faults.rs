//! Whatever the task does, the server lives: it keeps its pid, no session is ended, the event is in
//! its log, the task is back, and the next deadlock is broken.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use orbit_mariadb::{Detector, Ring, Server, Session, lives, signal, started, wait_until};

/// A server, and what must not change.
struct Scene {
    server: Server,
    since: Option<u64>,
    bystander: Session,
    next_row: usize,
}

impl Scene {
    fn begin() -> Option<Scene> {
        let server = Server::start(Detector::Orbit, &["--orbit-deadlock-deadline=500", "--orbit-deadlock-memory=16"])?;
        let mut bystander = server.session();
        bystander.run("BEGIN");
        bystander.run("UPDATE test.ring SET v = -1 WHERE id = 9999");
        Some(Scene { since: started(server.pid()), server, bystander, next_row: 0 })
    }

    /// The task has this fault, and the log gets a line of a failed run with this event. On a
    /// loaded machine a run may meet its deadline before it comes to its fault: then another has
    /// it.
    fn fails(&self, fault: &str, event: &str) {
        let logged = self.server.log().len();
        let is_logged = || {
            let new = self.server.log().split_off(logged);
            new.lines().any(|line| {
                line.contains("[ERROR] orbit_deadlock: a run of the detector failed: ") && line.contains(event)
            })
        };
        let mut failed = self.server.state("failed");
        self.server.fault(fault);
        wait_until(event, || {
            let is_logged = is_logged();
            let now = self.server.state("failed");
            if !is_logged && now > failed {
                failed = now;
                self.server.fault(fault);
            }
            is_logged
        });
    }

    fn next_deadlock_is_broken(&mut self) {
        let failed = Ring::new(&self.server, &[1, 2], self.next_row).resolve(&self.server);
        self.next_row += 300;
        assert_eq!(failed, [(0, "1213 (40001)".to_owned())]);
    }

    fn server_is_as_it_was(&mut self) {
        assert!(lives(self.server.pid()) && started(self.server.pid()) == self.since);
        let open = self.bystander.run("SELECT v FROM test.ring WHERE id = 9999");
        assert_eq!(open.text(), "-1", "a session lost its transaction");
        assert!(!self.server.log().contains("got signal"), "{}", self.server.log());
    }

    /// Runs `body` while sessions write to rows of their own; none fails.
    fn under_load(&mut self, body: impl FnOnce(&mut Scene)) {
        let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let loads: Vec<_> = (0..3)
                .map(|nth| {
                    let mut session = self.server.session();
                    let (stop, written) = (&stop, &written);
                    scope.spawn(move || {
                        while !stop.load(Ordering::Relaxed) {
                            let done =
                                session.run(&format!("UPDATE test.ring SET v = v + 1 WHERE id = {}", 9900 + nth));
                            assert_eq!(done.error(), None, "{done:?}");
                            written.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(self)));
            stop.store(true, Ordering::Relaxed);
            let loads: Vec<_> = loads.into_iter().map(|load| load.join()).collect();
            if let Err(panic) = ended {
                std::panic::resume_unwind(panic);
            }
            loads.into_iter().for_each(|load| load.expect("no session saw an error"));
        });
        assert!(written.into_inner() > 10);
    }
}

#[test]
fn every_fault_of_the_task() {
    let Some(mut scene) = Scene::begin() else { return };
    // The fault; in the log: signal, file and line where it is a crash.
    let faults = [
        ("segv", "crashed: SIGSEGV at 0x0 in write_to_null (fault.c:"),
        ("hang", "not done at its deadline"),
        ("memory", "out of memory"),
        ("recursion", "recurse_for_ever (fault.c:"),
        ("kill", "killed by signal 9"),
    ];
    scene.under_load(|scene| {
        for (fault, event) in faults {
            wait_until("the task is there", || scene.server.state("pid") > 0);
            let before = scene.server.state("pid");
            scene.fails(fault, event);
            wait_until("the task is back", || ![0, before].contains(&scene.server.state("pid")));
            scene.next_deadlock_is_broken();
            scene.server_is_as_it_was();
        }
    });
    assert!(scene.server.log().contains("search_task (/"), "the call stack is in the log:\n{}", scene.server.log());
}

/// MySQL's bug 28523042, by its mechanism: an assertion that fails once a deadlock is found. There
/// all connections are lost; here the deadlock is broken by the next run.
#[test]
fn bug_28523042_an_assertion_that_fails_on_a_deadlock() {
    let Some(mut scene) = Scene::begin() else { return };
    scene.under_load(|scene| {
        // On a loaded machine a run may meet its deadline before it comes to the assertion.
        let crashes =
            |scene: &Scene| scene.server.log().matches("crashed: SIGABRT in report_cycles (search.c:").count();
        for _ in 0..10 {
            let failed = scene.server.state("failed");
            scene.server.fault("assert");
            scene.next_deadlock_is_broken();
            assert!(scene.server.state("failed") > failed);
            if crashes(scene) >= 2 {
                break;
            }
        }
        assert!(crashes(scene) >= 2, "{}", scene.server.log());
        scene.server_is_as_it_was();
    });
}

/// A task that lies can end no wait that is in no deadlock.
#[test]
fn cycles_that_are_none() {
    let Some(mut scene) = Scene::begin() else { return };
    let mut waiters = [scene.server.session(), scene.server.session()];
    for waiter in &mut waiters {
        waiter.send("UPDATE test.ring SET v = 3 WHERE id = 9999");
    }
    let threads = waiters.each_ref().map(Session::thread);
    wait_until("both wait", || threads.iter().all(|thread| scene.server.is_waiting(*thread)));
    scene.server.fault("lie");
    wait_until("the lies are counted", || scene.server.state("refuted") >= 8);
    assert_eq!(scene.server.state("broken"), 0);
    scene.server_is_as_it_was();
    scene.bystander.run("COMMIT");
    for waiter in &mut waiters {
        assert_eq!(waiter.reply().error(), None);
    }
}

/// kill -9 from outside, again and again, beside deadlocks.
#[test]
fn killed_from_outside() {
    let Some(mut scene) = Scene::begin() else { return };
    for _ in 0..4 {
        wait_until("the task is there", || scene.server.state("pid") > 0);
        signal(scene.server.state("pid") as i32, libc::SIGKILL);
        scene.next_deadlock_is_broken();
        scene.server_is_as_it_was();
    }
}
