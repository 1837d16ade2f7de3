//! However server, worker or backend end, nothing of the orbit is left, and what is started again
//! works.

use orbit_postgres::deadlock::{Ring, prepare, victims};
use orbit_postgres::{Cluster, Stop, below, is_zombie, lives, parent, started, wait_until};

/// Processes named for good: pid and start.
type Named = Vec<(i32, Option<u64>)>;

/// The worker's processes: template, orbit, spares.
fn orbit_processes(cluster: &Cluster) -> Named {
    wait_until("the orbit is there", || cluster.state("orbit_pid") > 0);
    let worker = cluster.state("worker_pid") as i32;
    let named: Named = below(worker).into_iter().map(|pid| (pid, started(pid))).collect();
    assert!(named.len() >= 2, "template and orbit: {named:?}");
    named
}

fn all_gone(processes: &Named, how: &str) {
    wait_until(&format!("{how}: nothing of {processes:?} is left"), || {
        processes.iter().all(|(pid, since)| started(*pid) != *since || (!lives(*pid) && !is_zombie(*pid)))
    });
}

fn signal(pid: i64, signal: i32) {
    // SAFETY: a system call on numbers; the process is one of this test's server.
    unsafe { libc::kill(pid as i32, signal) };
}

fn next_deadlock_is_broken(cluster: &Cluster, row: usize) {
    let mut ring = Ring::new(cluster, 2, row);
    ring.close(cluster);
    assert_eq!(victims(&ring.finish()).len(), 1);
}

#[test]
fn server_stopped_and_killed() {
    for how in [Stop::Fast, Stop::Kill] {
        let Some(mut cluster) = Cluster::start("") else { return };
        // With a crash behind it.
        cluster.fault("segv");
        let processes = orbit_processes(&cluster);
        cluster.stop(how);
        all_gone(&processes, &format!("{how:?}"));
    }
}

/// A background worker with access to shared memory that is killed makes the postmaster end all
/// sessions: so PostgreSQL treats its own. The server is back by itself, and so is the detector.
#[test]
fn worker_killed() {
    let Some(cluster) = Cluster::start("") else { return };
    prepare(&cluster);
    let processes = orbit_processes(&cluster);
    let (worker, postmaster) = (cluster.state("worker_pid"), cluster.postmaster_pid());
    signal(worker, libc::SIGKILL);
    all_gone(&processes, "worker killed");
    cluster.wait_for_log("all server processes terminated; reinitializing");
    wait_until("the server is back", || cluster.log().matches("orbit_deadlock: ready").count() == 2);
    assert_eq!(cluster.postmaster_pid(), postmaster);
    next_deadlock_is_broken(&cluster, 0);
}

/// The end of another backend by a crash: the postmaster ends the worker too, by SIGQUIT.
#[test]
fn another_backend_killed() {
    let Some(cluster) = Cluster::start("") else { return };
    prepare(&cluster);
    let processes = orbit_processes(&cluster);
    let mut session = cluster.session();
    signal(i64::from(session.pid()), libc::SIGKILL);
    session.run("SELECT 1");
    all_gone(&processes, "crash of a backend");
    wait_until("the detector is back", || cluster.log().matches("orbit_deadlock: ready").count() == 2);
    next_deadlock_is_broken(&cluster, 0);
}

/// SIGTERM to the worker: it ends in order, and the postmaster starts it again. No session notices.
#[test]
fn worker_terminated() {
    let Some(cluster) = Cluster::start("") else { return };
    prepare(&cluster);
    let mut bystander = cluster.session();
    bystander.run("BEGIN");
    let processes = orbit_processes(&cluster);
    signal(cluster.state("worker_pid"), libc::SIGTERM);
    all_gone(&processes, "worker terminated");
    wait_until("the worker is back", || cluster.log().matches("orbit_deadlock: ready").count() == 2);
    next_deadlock_is_broken(&cluster, 0);
    assert_eq!(bystander.run("COMMIT").error(), None);
}

/// A task that hangs blocks neither a stop nor a reload.
#[test]
fn stopped_while_the_task_hangs() {
    let Some(mut cluster) = Cluster::start("orbit_deadlock.deadline = 600s") else { return };
    let processes = orbit_processes(&cluster);
    let mut session = cluster.session();
    session.run("SET orbit_deadlock.faults = on");
    session.send("SELECT orbit_deadlock_fault('hang')");
    let orbit = cluster.state("orbit_pid") as i32;
    wait_until("the task loops", || cpu_ticks(orbit) > 5);
    cluster.stop(Stop::Fast);
    all_gone(&processes, "stopped while the task hangs");
}

/// CPU time a process used, clock ticks.
fn cpu_ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split_whitespace().collect();
    fields.get(11).and_then(|user| user.parse().ok()).unwrap_or(0)
}

/// A reload changes settings of the running detector, and ends nothing.
#[test]
fn settings_reloaded() {
    let Some(cluster) = Cluster::start("") else { return };
    let (worker, orbit) = (cluster.state("worker_pid"), cluster.state("orbit_pid"));
    cluster.reload_with("orbit_deadlock.deadline = 100ms");
    cluster.reload_with("orbit_deadlock.memory = 32MB");
    cluster.reload_with("orbit_deadlock.interval = 10ms");
    assert_eq!((cluster.state("worker_pid"), cluster.state("orbit_pid")), (worker, orbit));
    let before = cluster.state("scans");
    wait_until("scans go on", || cluster.state("scans") > before + 5);
    let began = std::time::Instant::now();
    let event = cluster.fault("hang");
    assert!(event.starts_with("not done at its deadline"), "{event}");
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "the new deadline counts: {:?}", began.elapsed());
    // The server's setting is the administrator's.
    cluster.reload_with("deadlock_timeout = 3s");
    assert_eq!(cluster.query("SHOW deadlock_timeout"), "3s");
    assert_eq!(cluster.query("SET deadlock_timeout = '2s'; SHOW deadlock_timeout"), "2s");
}

/// A process of the detector as this one sees it.
#[derive(PartialEq, Eq)]
enum Victim {
    Worker,
    Template,
}

impl Victim {
    fn find(&self, cluster: &Cluster) -> i32 {
        let is_worker = |pid: &i32| {
            let title = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            title.contains("orbit deadlock detector") && parent(*pid) == Some(cluster.postmaster_pid())
        };
        let mut found = None;
        wait_until("the detector's processes are there", || {
            let worker = below(cluster.postmaster_pid()).into_iter().find(is_worker);
            found = if *self == Victim::Worker { worker } else { worker.and_then(|pid| below(pid).first().copied()) };
            found.is_some()
        });
        found.expect("waited for")
    }
}

/// The postmaster as process 1, as in a container: what the worker leaves is handed to it, and a
/// killed child that it does not know makes it end all sessions.
#[test]
fn postmaster_is_process_1() {
    if !orbit_apps::needs_root() {
        return;
    }
    let Some(mut cluster) = Cluster::start_as_process_1("") else { return };
    prepare(&cluster);
    let mut bystander = cluster.session();
    bystander.run("BEGIN");
    for fault in ["segv", "kill"] {
        cluster.fault(fault);
    }
    next_deadlock_is_broken(&cluster, 0);
    // The whole family at once, and the template alone: both leave what the postmaster has to take.
    for (nth, victim) in [Victim::Worker, Victim::Template].into_iter().enumerate() {
        let with = if victim == Victim::Worker { libc::SIGTERM } else { libc::SIGKILL };
        signal(victim.find(&cluster).into(), with);
        next_deadlock_is_broken(&cluster, 2 + 2 * nth);
    }
    assert_eq!(bystander.run("COMMIT").error(), None, "no session was ended:\n{}", cluster.log());
    assert!(!cluster.log().contains("terminating any other active server processes"), "{}", cluster.log());
    wait_until("no zombie is left", || !below(cluster.postmaster_pid()).into_iter().any(is_zombie));
    // A worker that is killed costs every session, once: what it leaves must not cost the next
    // ones.
    signal(Victim::Worker.find(&cluster).into(), libc::SIGKILL);
    wait_until("the detector is back", || cluster.log().matches("orbit_deadlock: ready").count() == 3);
    let mut next = cluster.session();
    next.run("BEGIN");
    next_deadlock_is_broken(&cluster, 10);
    std::thread::sleep(std::time::Duration::from_secs(1));
    next_deadlock_is_broken(&cluster, 12);
    assert_eq!(next.run("COMMIT").error(), None, "a second round of endings:\n{}", cluster.log());
    assert_eq!(cluster.log().matches("terminating any other active server processes").count(), 1, "{}", cluster.log());
    cluster.stop(Stop::Fast);
}

/// An upgrade of the package under a running server: the library's file is replaced. The orbit that
/// has the old one crashes and is back; so is a worker that is started afterwards.
#[test]
fn library_replaced() {
    let Some(mut cluster) = Cluster::start("") else { return };
    prepare(&cluster);
    let (file, new) = (cluster.directory().join("orbit_deadlock.so"), cluster.directory().join("new.so"));
    std::fs::copy(&file, &new).expect("a copy of the library");
    std::fs::rename(&new, &file).expect("the library replaced");
    cluster.fault("segv");
    cluster.wait_for_log("in write_to_null (fault.c:");
    next_deadlock_is_broken(&cluster, 0);
    let (processes, worker) = (orbit_processes(&cluster), cluster.state("worker_pid"));
    signal(worker, libc::SIGTERM);
    all_gone(&processes, "worker terminated");
    wait_until("there is another worker", || cluster.log().matches("orbit_deadlock: ready").count() == 2);
    next_deadlock_is_broken(&cluster, 2);
    let processes = orbit_processes(&cluster);
    cluster.stop(Stop::Fast);
    all_gone(&processes, "stopped after an upgrade");
}
