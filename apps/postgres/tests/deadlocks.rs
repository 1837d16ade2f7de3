//! Deadlocks of real sessions are broken: one of them fails with PostgreSQL's own error, the others
//! commit.

use orbit_postgres::deadlock::{Ring, is_waiting, prepare, victims};
use orbit_postgres::{Cluster, signal, wait_until};

#[test]
fn of_two_and_of_three_sessions() {
    let Some(cluster) = Cluster::start("") else { return };
    prepare(&cluster);
    for size in [2, 3] {
        let mut ring = Ring::new(&cluster, size, 10 * size);
        ring.close(&cluster);
        let replies = ring.finish();
        assert_eq!(victims(&replies).len(), 1, "{replies:?}");
        let victim = &replies[victims(&replies)[0]].text();
        assert!(victim.contains("deadlock detected"), "{victim}");
        let lines = victim.lines().filter(|line| line.contains("waits for ShareLock on transaction")).count();
        assert_eq!(lines, size, "the client learns of each wait: {victim}");
        // The victim's own update is gone, the others' two each are there.
        let sum = format!("SELECT sum(v) FROM ring WHERE id BETWEEN {0} AND {0} + 9", 10 * size);
        assert_eq!(cluster.query(&sum), (2 * (size - 1)).to_string());
    }
    assert_eq!(cluster.state("deadlocks_broken"), 2);
    assert_eq!(cluster.state("cycles_refuted"), 0);
    wait_until("the server counts them as its own", || {
        cluster.query("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'") == "2"
    });
    assert!(cluster.log().contains("broke a deadlock of 3 processes"), "{}", cluster.log());
}

#[test]
fn several_at_a_time() {
    let Some(cluster) = Cluster::start("orbit_deadlock.interval = 500ms") else { return };
    prepare(&cluster);
    let mut rings: Vec<Ring> = (0..4).map(|nth| Ring::new(&cluster, 2, 2 * nth)).collect();
    for ring in &mut rings {
        ring.close(&cluster);
    }
    for ring in rings {
        assert_eq!(victims(&ring.finish()).len(), 1);
    }
    assert_eq!(cluster.state("deadlocks_broken"), 4);
}

/// The victim is the one that the server's own detector would have taken, with a deadlock_timeout
/// of a second.
#[test]
fn the_victim_is_the_servers() {
    let Some(cluster) = Cluster::start("") else { return };
    let Some(stock) = Cluster::start_stock("deadlock_timeout = 1s") else { return };
    for pause in [0, 1500] {
        let mut taken = Vec::new();
        for cluster in [&cluster, &stock] {
            if pause == 0 {
                prepare(cluster);
            }
            let mut a = cluster.session();
            let mut b = cluster.session();
            for (session, row) in [(&mut a, 1), (&mut b, 2)] {
                session.run("BEGIN");
                session.run(&format!("UPDATE ring SET v = v + 1 WHERE id = {row}"));
            }
            a.send("UPDATE ring SET v = v + 1 WHERE id = 2");
            wait_until("the first waits", || is_waiting(cluster, a.pid()));
            std::thread::sleep(std::time::Duration::from_millis(pause));
            b.send("UPDATE ring SET v = v + 1 WHERE id = 1");
            let (mut first, mut second) = (None, None);
            wait_until("one of them fails", || {
                first = first.take().or_else(|| a.reply_within(std::time::Duration::from_millis(5)));
                second = second.take().or_else(|| b.reply_within(std::time::Duration::from_millis(5)));
                first.iter().chain(&second).any(|reply| reply.error() == Some("40P01"))
            });
            taken.push(first.is_some_and(|reply| reply.error().is_some()));
        }
        assert_eq!(taken[0], taken[1], "first waiter is the victim: ours, the server's; pause {pause} ms");
        // Else this would compare nothing.
        assert_eq!(taken[1], pause == 0);
    }
}

/// Locks of tables and advisory locks; and a wait for one that itself only waits, before it in the
/// queue.
#[test]
fn of_every_kind_of_lock_and_by_the_queue() {
    let Some(cluster) = Cluster::start("") else { return };
    cluster.query("CREATE TABLE t1 (); CREATE TABLE t2 ()");
    let locks: [[&str; 2]; 2] = [
        ["LOCK TABLE t1 IN SHARE ROW EXCLUSIVE MODE", "LOCK TABLE t2 IN SHARE ROW EXCLUSIVE MODE"],
        ["SELECT pg_advisory_xact_lock(1)", "SELECT pg_advisory_xact_lock(2)"],
    ];
    for [one, two] in locks {
        let (mut a, mut b) = (cluster.session(), cluster.session());
        a.run("BEGIN");
        b.run("BEGIN");
        a.run(one);
        b.run(two);
        a.send(two);
        wait_until("the first waits", || is_waiting(&cluster, a.pid()));
        b.send(one);
        let replies = [
            a.reply(),
            b.reply_within(std::time::Duration::from_millis(200)).unwrap_or_else(|| {
                a.run("ROLLBACK");
                b.reply()
            }),
        ];
        assert_eq!(victims(&replies).len(), 1, "{replies:?}");
    }
    // c waits for a in t1's queue, b before it: b holds nothing, so the cycle a, c, b has an edge
    // of the queue alone.
    let (mut a, mut b, mut c) = (cluster.session(), cluster.session(), cluster.session());
    for session in [&mut a, &mut b, &mut c] {
        session.run("BEGIN");
    }
    a.run("LOCK TABLE t1 IN ACCESS SHARE MODE");
    c.run("LOCK TABLE t2 IN ACCESS EXCLUSIVE MODE");
    b.send("LOCK TABLE t1 IN ACCESS EXCLUSIVE MODE");
    wait_until("b waits", || is_waiting(&cluster, b.pid()));
    c.send("LOCK TABLE t1 IN ACCESS SHARE MODE");
    wait_until("c waits", || is_waiting(&cluster, c.pid()));
    a.send("LOCK TABLE t2 IN ACCESS SHARE MODE");
    // The server's own detector puts c before b, at no victim.
    for session in [&mut c, &mut a, &mut b] {
        assert_eq!(session.reply().error(), None);
        session.run("COMMIT");
    }
    assert_eq!(cluster.state("deadlocks_broken"), 2, "the cycle by the queue costs no victim");
}

/// Where no worker can be started, and where it stands still: the server's own detector breaks the
/// deadlock, as without the library.
#[test]
fn without_a_worker_the_server_does_it() {
    let Some(cluster) = Cluster::start("max_worker_processes = 0") else { return };
    prepare(&cluster);
    let mut ring = Ring::new(&cluster, 2, 10);
    ring.close(&cluster);
    assert_eq!(victims(&ring.finish()).len(), 1);
    assert_eq!(cluster.query("SHOW deadlock_timeout"), "1s");

    let Some(cluster) = Cluster::start("") else { return };
    prepare(&cluster);
    let worker = cluster.state("worker_pid") as i32;
    signal(worker, libc::SIGSTOP);
    let mut ring = Ring::new(&cluster, 2, 10);
    ring.close(&cluster);
    let replies = ring.finish();
    signal(worker, libc::SIGCONT);
    assert_eq!(victims(&replies).len(), 1);
    assert_eq!(cluster.state("deadlocks_broken"), 0);
}

/// An application that catches deadlock_detected, as PL/pgSQL does, catches this one.
#[test]
fn is_caught_by_its_name() {
    let Some(cluster) = Cluster::start("") else { return };
    prepare(&cluster);
    let (mut a, mut b) = (cluster.session(), cluster.session());
    a.run("BEGIN");
    a.run("UPDATE ring SET v = 1 WHERE id = 1");
    b.run("BEGIN");
    b.run("UPDATE ring SET v = 1 WHERE id = 2");
    a.send(
        "DO $$ BEGIN UPDATE ring SET v = 1 WHERE id = 2; EXCEPTION WHEN deadlock_detected THEN RAISE WARNING \
        'caught'; END $$",
    );
    wait_until("a waits", || is_waiting(&cluster, a.pid()));
    b.send("UPDATE ring SET v = 1 WHERE id = 1");
    let caught = a.reply();
    assert!(caught.text().contains("caught") && caught.error().is_none(), "{caught:?}");
    assert_eq!(a.run("COMMIT").error(), None);
    assert_eq!(b.reply().error(), None);
}

/// Sessions that wait and are in no deadlock are left alone, whatever the task says, also under
/// contention.
#[test]
fn nobody_else_is_a_victim() {
    let Some(cluster) = Cluster::start("orbit_deadlock.interval = 1ms") else { return };
    prepare(&cluster);
    // One row, always locked in one order: much waiting, no deadlock.
    let script = "\\set r random(1, 3)\nBEGIN;\nUPDATE ring SET v = v + 1 WHERE id = :r;\n\\sleep 2 ms\nCOMMIT;\n";
    std::fs::write(cluster.directory().join("hot.sql"), script).expect("a script");
    let load = cluster.client("pgbench").args(["-n", "-c", "8", "-T", "4", "-f", "hot.sql", "postgres"]).output();
    let load = load.expect("pgbench runs");
    let said = String::from_utf8_lossy(&load.stdout);
    assert!(said.contains("number of failed transactions: 0 (0.000%)"), "{said}");
    assert!(cluster.state("calls") > 100, "there was something to search");
    assert_eq!(cluster.state("deadlocks_broken"), 0);

    let mut holder = cluster.session();
    holder.run("BEGIN");
    holder.run("UPDATE ring SET v = 0 WHERE id IN (1, 2)");
    let mut waiters = [cluster.session(), cluster.session()];
    for (nth, waiter) in waiters.iter_mut().enumerate() {
        waiter.send(&format!("UPDATE ring SET v = 0 WHERE id = {}", nth + 1));
        wait_until("it waits", || is_waiting(&cluster, waiter.pid()));
    }
    let refuted = cluster.state("cycles_refuted");
    cluster.fault("lie");
    assert_eq!(cluster.state("cycles_refuted") - refuted, 10, "each lie is refuted");
    assert_eq!(cluster.state("deadlocks_broken"), 0);
    holder.run("COMMIT");
    for waiter in &mut waiters {
        assert_eq!(waiter.reply().error(), None);
    }
}
