//! Deadlocks are broken, and victims freed, as by InnoDB's own detector.

use orbit_mariadb::{Detector, Ring, Server};

const DEADLOCK: &str = "1213 (40001)";

/// What came of a ring: the victims, and what the table has then.
fn of(server: &Server, weights: &[usize], first: usize) -> (Vec<(usize, String)>, String) {
    let failed = Ring::new(server, weights, first).resolve(server);
    (failed, server.query("SELECT COUNT(*), SUM(v) FROM test.ring"))
}

#[test]
fn the_same_victims_as_innodb() {
    let Some(ours) = Server::start(Detector::Orbit, &[]) else { return };
    let Some(stock) = Server::start(Detector::Own, &[]) else { return };
    assert_eq!(ours.query("SELECT @@innodb_deadlock_detect"), "0");
    // The lightest transaction is rolled back, wherever it stands in the ring.
    for (nth, weights) in [&[1, 5][..], &[5, 1], &[7, 3, 9], &[2, 8, 4, 6], &[9, 8, 7, 6, 5, 1]].into_iter().enumerate()
    {
        let (victims, left) = of(&ours, weights, 1000 * nth);
        let (stock_victims, stock_left) = of(&stock, weights, 1000 * nth);
        assert_eq!(victims, stock_victims, "{weights:?}");
        assert_eq!(left, stock_left, "{weights:?}: what the transactions have left");
        let lightest = (0..weights.len()).min_by_key(|nth| weights[*nth]).expect("some");
        assert_eq!(victims, [(lightest, DEADLOCK.to_owned())]);
    }
    assert_eq!(ours.state("broken"), 5);
    assert_eq!(ours.state("failed"), 0, "{}", ours.log());
}

/// Deadlocks are broken as they come, although InnoDB has just shown its waits to another reader:
/// it renews them 100 ms later of itself.
#[test]
fn broken_as_they_come() {
    let Some(server) = Server::start(Detector::Orbit, &[]) else { return };
    let fastest = (0..10).map(|nth| {
        let mut ring = Ring::new(&server, &[1, 2], 200 * nth);
        let closed = ring.close(&server);
        ring.wait_for_victim();
        let took = closed.elapsed();
        ring.finish();
        took
    });
    let fastest = fastest.min().unwrap_or_default();
    assert!(fastest.as_millis() < 60, "the fastest of ten took {fastest:?}");
    assert_eq!(server.state("broken"), 10);
}

/// The victim keeps its connection, its transaction is gone with its locks, and it may begin anew.
#[test]
fn a_victim_goes_on() {
    let Some(server) = Server::start(Detector::Orbit, &[]) else { return };
    let mut ring = Ring::new(&server, &[1, 3], 0);
    assert_eq!(ring.resolve(&server), [(0, DEADLOCK.to_owned())]);
    let victim = &mut ring.sessions()[0];
    assert_eq!(victim.run("SELECT @@in_transaction").text(), "0");
    assert_eq!(victim.run("SELECT connection_id()").text(), victim.thread().to_string());
    assert_eq!(victim.run("UPDATE test.ring SET v = -1 WHERE id IN (0, 100)").error(), None);
    assert_eq!(server.query("SELECT v FROM test.ring WHERE id = 0"), "-1");
}

/// In a procedure: the whole call ends, and all of it is rolled back.
#[test]
fn a_victim_in_a_procedure() {
    let Some(server) = Server::start(Detector::Orbit, &[]) else { return };
    let procedure = "CREATE PROCEDURE test.two(a INT, b INT) BEGIN UPDATE test.ring SET v = v + 1 WHERE id = a; \
                     DO SLEEP(1); UPDATE test.ring SET v = v + 1 WHERE id = b; END";
    let made = server.client("mariadb").args(["--delimiter=//", "-e", procedure]).status().expect("mariadb runs");
    assert!(made.success());
    let mut sessions = [server.session(), server.session()];
    sessions[0].run("SET autocommit = 0");
    sessions[1].run("SET autocommit = 0");
    sessions[1].run("UPDATE test.ring SET v = v + 1 WHERE id BETWEEN 50 AND 60");
    sessions[0].send("CALL test.two(1, 2)");
    sessions[1].send("CALL test.two(2, 1)");
    let replies = sessions.each_mut().map(|session| session.reply());
    assert_eq!((replies[0].error(), replies[1].error()), (Some(DEADLOCK), None), "{replies:?}");
    sessions.iter_mut().for_each(|session| {
        session.run("COMMIT");
    });
    assert_eq!(server.query("SELECT v FROM test.ring WHERE id IN (1, 2)"), "1\n1");
}

/// Whoever only waits is left alone.
#[test]
fn waits_that_are_no_deadlock() {
    let Some(server) = Server::start(Detector::Orbit, &[]) else { return };
    let mut holder = server.session();
    holder.run("BEGIN");
    holder.run("UPDATE test.ring SET v = 1 WHERE id IN (1, 2)");
    let mut waiters = [server.session(), server.session(), server.session()];
    for (nth, waiter) in waiters.iter_mut().enumerate() {
        waiter.send(&format!("UPDATE test.ring SET v = 2 WHERE id = {}", 1 + nth % 2));
    }
    orbit_mariadb::wait_until("the waits are searched", || server.state("calls") > 0);
    std::thread::sleep(std::time::Duration::from_millis(500));
    let calls = server.state("calls");
    assert!(calls <= 3, "waits that stay the same are searched once, and again as one is added: {calls}");
    holder.run("COMMIT");
    for waiter in &mut waiters {
        assert_eq!(waiter.reply().error(), None);
    }
    assert_eq!(server.state("broken"), 0);
}

/// KILL QUERY by an administrator keeps its meaning.
#[test]
fn a_query_that_is_killed() {
    let Some(server) = Server::start(Detector::Orbit, &[]) else { return };
    let mut session = server.session();
    session.run("BEGIN");
    session.run("UPDATE test.ring SET v = 7 WHERE id = 1");
    session.send("SELECT SLEEP(50) FROM test.ring");
    std::thread::sleep(std::time::Duration::from_millis(300));
    server.query(&format!("KILL QUERY {}", session.thread()));
    assert_eq!(session.reply().error(), Some("1317 (70100)"));
    assert_eq!(session.run("SELECT @@in_transaction").text(), "1");
}
