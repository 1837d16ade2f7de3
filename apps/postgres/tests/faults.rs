//! Whatever the task does, the server lives: the postmaster keeps its pid, no session is ended, the
//! event is in the server's log, the task is back, and the next deadlock is broken.

use orbit_postgres::deadlock::{Ring, prepare, victims};
use orbit_postgres::{Cluster, lives, started, wait_until};

const SETTINGS: &str = "orbit_deadlock.deadline = 500ms\norbit_deadlock.memory = 16MB";

/// A server under load, and what must not change.
struct Scene {
    cluster: Cluster,
    load: std::process::Child,
    postmaster: (i32, Option<u64>),
    worker: i64,
    bystander: orbit_postgres::Session,
    next_row: usize,
}

impl Scene {
    fn begin(seconds: u32) -> Option<Scene> {
        let cluster = Cluster::start(SETTINGS)?;
        prepare(&cluster);
        let script = "\\set r random(0, 9)\nUPDATE ring SET v = v + 1 WHERE id = 90 + :r;\n";
        std::fs::write(cluster.directory().join("load.sql"), script).expect("a script");
        let mut load = cluster.client("pgbench");
        load.args(["-n", "-c", "4", "-f", "load.sql", "-T"]).arg(seconds.to_string()).arg("postgres");
        let load =
            load.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().expect("pgbench");
        let mut bystander = cluster.session();
        bystander.run("BEGIN");
        bystander.run("UPDATE ring SET v = -1 WHERE id = 89");
        let pid = cluster.postmaster_pid();
        let worker = cluster.state("worker_pid");
        Some(Scene { postmaster: (pid, started(pid)), worker, cluster, load, bystander, next_row: 0 })
    }

    /// The task is back, and does what it is for.
    fn next_deadlock_is_broken(&mut self) {
        let mut ring = Ring::new(&self.cluster, 2, self.next_row);
        self.next_row += 2;
        ring.close(&self.cluster);
        let replies = ring.finish();
        assert_eq!(victims(&replies).len(), 1, "{replies:?}");
    }

    fn server_is_as_it_was(&mut self) {
        let (pid, since) = self.postmaster;
        assert!(lives(pid) && started(pid) == since, "the postmaster is another one");
        assert_eq!(self.cluster.state("worker_pid"), self.worker, "the worker is another one");
        let open = self.bystander.run("SELECT v FROM ring WHERE id = 89");
        assert_eq!(open.text(), "-1", "a session lost its transaction");
        let log = self.cluster.log();
        for sign in ["terminating any other active server processes", "terminated by signal", "automatic recovery"] {
            assert!(!log.contains(sign), "{sign}: {log}");
        }
    }

    /// The load of all the time: no client was disturbed.
    fn end(mut self) {
        self.server_is_as_it_was();
        let mut said = String::new();
        let ended = self.load.wait().expect("pgbench ends");
        std::io::Read::read_to_string(&mut self.load.stdout.take().expect("piped"), &mut said).expect("its words");
        let mut errors = String::new();
        std::io::Read::read_to_string(&mut self.load.stderr.take().expect("piped"), &mut errors).expect("its words");
        assert!(ended.success() && said.contains("number of failed transactions: 0 "), "{said}\n{errors}");
        assert!(!errors.contains("ERROR"), "{errors}");
    }
}

#[test]
fn every_fault_of_the_task() {
    let Some(mut scene) = Scene::begin(6) else { return };
    // The fault; in the event, and in the log: signal, file and line where it is a crash.
    let faults = [
        ("segv", "crashed: SIGSEGV at 0x0 in write_to_null (fault.c:"),
        ("hang", "not done at its deadline"),
        ("memory", "out of memory"),
        ("recursion", "recurse_for_ever (fault.c:"),
        ("kill", "killed by signal 9"),
    ];
    for (crashes, (fault, event)) in (1..).zip(faults) {
        let before = scene.cluster.state("orbit_pid");
        let said = scene.cluster.fault(fault);
        assert!(said.contains(event), "{fault}: {said}");
        scene.cluster.wait_for_log(&format!("a run of the detector failed: {said}"));
        assert_eq!(scene.cluster.state("crashes"), crashes, "{fault}");
        wait_until("the task is back", || scene.cluster.state("orbit_pid") > 0);
        assert_ne!(scene.cluster.state("orbit_pid"), before, "{fault}: it is a new process");
        scene.next_deadlock_is_broken();
        scene.server_is_as_it_was();
    }
    assert!(scene.cluster.log().contains("search_task (/"), "the call stack is in the log:\n{}", scene.cluster.log());
    scene.end();
}

/// MySQL bug 28523042, by its mechanism: an assertion in the detector that fails when it has found
/// a deadlock. There all connections are lost; here the deadlock is broken as soon as the detector
/// no longer fails.
#[test]
fn an_assertion_that_fails_on_a_deadlock() {
    let Some(mut scene) = Scene::begin(3) else { return };
    let order = "SET orbit_deadlock.faults = on; SELECT orbit_deadlock_fault('assert', 3)";
    scene.cluster.query(order);
    scene.next_deadlock_is_broken();
    assert_eq!(scene.cluster.state("crashes"), 3);
    let log = scene.cluster.log();
    assert!(log.contains("crashed: SIGABRT in push_cycle (task.c:"), "{log}");
    scene.end();
}

/// kill -9 from outside, again and again, beside deadlocks.
#[test]
fn killed_from_outside() {
    let Some(mut scene) = Scene::begin(3) else { return };
    for _ in 0..5 {
        wait_until("the task is there", || scene.cluster.state("orbit_pid") > 0);
        let orbit = scene.cluster.state("orbit_pid") as i32;
        // SAFETY: a system call on numbers; the process is one of this test's server.
        unsafe { libc::kill(orbit, libc::SIGKILL) };
        scene.next_deadlock_is_broken();
    }
    scene.end();
}
