//! What the orbit has of the cluster: nothing it could harm. And which users may ask for faults.

use orbit_postgres::deadlock::{Ring, prepare, victims};
use orbit_postgres::{Cluster, below, descriptors, parent, shared_writable, wait_until};

fn orbit_of(cluster: &Cluster) -> i32 {
    wait_until("the orbit is there", || cluster.state("orbit_pid") > 0);
    cluster.state("orbit_pid") as i32
}

#[test]
fn the_orbit_has_no_shared_memory_of_the_cluster() {
    let Some(cluster) = Cluster::start("") else { return };
    let of_cluster =
        |line: &String| line.contains("/dev/zero") || line.contains("/SYSV") || line.contains("PostgreSQL");
    let worker = shared_writable(cluster.state("worker_pid") as i32);
    assert!(worker.iter().any(of_cluster), "the worker has it, so this test would see it: {worker:?}");
    for _ in 0..2 {
        let found = shared_writable(orbit_of(&cluster));
        assert!(!found.iter().any(of_cluster), "{found:?}");
        // After a restart too.
        cluster.fault("kill");
    }
}

/// The server's socket is nowhere but in the postmaster: with it in an orbit, a server could not be
/// started again.
#[test]
fn no_descriptor_of_the_server() {
    let Some(cluster) = Cluster::start("") else { return };
    let orbit = orbit_of(&cluster);
    let mut processes = below(cluster.state("worker_pid") as i32);
    processes.push(parent(orbit).expect("a template"));
    let of_postmaster: Vec<_> = descriptors(cluster.postmaster_pid()).into_iter().map(|(_, to)| to).collect();
    let listening = of_postmaster.iter().filter(|to| to.to_string_lossy().starts_with("socket:")).count();
    assert!(listening > 0, "{of_postmaster:?}");
    for pid in processes {
        for (number, to) in descriptors(pid) {
            let name = to.to_string_lossy().into_owned();
            assert!(!(name.starts_with("socket:") && of_postmaster.contains(&to)), "{pid} has {number}: {name}");
            assert!(!name.contains("/data/"), "{pid} has a file of the cluster, {number}: {name}");
        }
    }
}

/// PostgreSQL's signal handlers must run in the worker's main thread: the library's threads block
/// every signal.
#[test]
fn threads_of_the_library_take_no_signals() {
    let Some(cluster) = Cluster::start("") else { return };
    orbit_of(&cluster);
    let worker = cluster.state("worker_pid");
    let mut others = 0;
    for task in std::fs::read_dir(format!("/proc/{worker}/task")).expect("the worker").flatten() {
        if task.file_name().to_string_lossy() == worker.to_string() {
            continue;
        }
        others += 1;
        let status = std::fs::read_to_string(task.path().join("status")).expect("a thread");
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("a mask").trim();
        let blocked = u64::from_str_radix(blocked, 16).expect("a number");
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGALRM] {
            assert!(blocked & (1 << (signal - 1)) != 0, "signal {signal} is open: {blocked:x}");
        }
    }
    assert!(others >= 1, "the supervisor is a thread of the worker");
}

#[test]
fn faults_need_a_superuser_and_a_setting() {
    let Some(cluster) = Cluster::start("") else { return };
    cluster.query("CREATE ROLE someone; GRANT EXECUTE ON FUNCTION orbit_deadlock_fault TO someone");
    let mut session = cluster.session();
    assert_eq!(session.run("SELECT orbit_deadlock_fault('segv')").error(), Some("55000"));
    session.run("SET orbit_deadlock.faults = on");
    assert_eq!(session.run("SELECT orbit_deadlock_fault('nonsense')").error(), Some("22023"));
    session.run("SET ROLE someone");
    assert_eq!(session.run("SELECT orbit_deadlock_fault('segv')").error(), Some("42501"));
    assert_eq!(session.run("SET orbit_deadlock.faults = off").error(), Some("42501"));
    assert_eq!(
        session.run("SELECT crashes FROM orbit_deadlock").error(),
        Some("42501"),
        "the view is its owner's to grant"
    );
    assert_eq!(cluster.state("crashes"), 0);
}

/// The forms for comparison find what the orbit finds.
#[test]
fn forks_and_the_worker_itself_find_the_same() {
    for settings in
        ["orbit_deadlock.run_in = fork", "orbit_deadlock.run_in = worker", "orbit_deadlock.wait_for_call = on"]
    {
        let Some(cluster) = Cluster::start(settings) else { return };
        prepare(&cluster);
        for size in [2, 3] {
            let mut ring = Ring::new(&cluster, size, 10 * size);
            ring.close(&cluster);
            assert_eq!(victims(&ring.finish()).len(), 1, "{settings}");
        }
    }
}

/// What the orbit is for: the same fault without one ends every session.
#[test]
fn without_an_orbit_the_same_crash_ends_every_session() {
    let Some(cluster) = Cluster::start("orbit_deadlock.run_in = worker") else { return };
    let mut bystander = cluster.session();
    bystander.run("BEGIN");
    let mut session = cluster.session();
    session.run("SET orbit_deadlock.faults = on");
    session.send("SELECT orbit_deadlock_fault('segv')");
    cluster.wait_for_log("terminating any other active server processes");
    wait_until("the bystander's session is gone", || bystander.run("SELECT 1").text() != "1");
}
