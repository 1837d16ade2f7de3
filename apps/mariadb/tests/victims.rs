//! What a victim has left is what it has left with InnoDB's own detector, wherever in the server
//! its statement was: the same statements on a stock server beside, and the results compared.

use orbit_mariadb::{Detector, Server, wait_until};

/// What the session that becomes the victim does: before, the statements that deadlock, and after.
struct Scenario {
    name: &'static str,
    before: &'static [&'static str],
    /// Locks row 2, which the other session has.
    deadlocks: &'static str,
    after: &'static [&'static str],
}

const BEGIN: &[&str] =
    &["BEGIN", "UPDATE test.ring SET v = v - 100 WHERE id = 70", "UPDATE test.ring SET v = v + 1 WHERE id = 1"];
const XA: &[&str] =
    &["XA START 'a'", "UPDATE test.ring SET v = v - 100 WHERE id = 70", "UPDATE test.ring SET v = v + 1 WHERE id = 1"];
const SAVEPOINT: &[&str] = &[
    "BEGIN",
    "UPDATE test.ring SET v = v - 100 WHERE id = 70",
    "SAVEPOINT a",
    "UPDATE test.ring SET v = v + 1 WHERE id = 1",
];
const PREPARED: &[&str] = &[
    "PREPARE q FROM 'UPDATE test.ring SET v = v + 1 WHERE id = 2'",
    "BEGIN",
    "UPDATE test.ring SET v = v - 100 WHERE id = 70",
    "UPDATE test.ring SET v = v + 1 WHERE id = 1",
];
const COMMIT: &[&str] = &["SELECT @@in_transaction", "COMMIT"];

const SCENARIOS: &[Scenario] = &[
    Scenario { name: "statement", before: BEGIN, deadlocks: "UPDATE test.ring SET v = 5 WHERE id = 2", after: COMMIT },
    Scenario { name: "trigger", before: BEGIN, deadlocks: "INSERT INTO test.triggers VALUES (1)", after: COMMIT },
    Scenario { name: "function", before: BEGIN, deadlocks: "SELECT test.changes()", after: COMMIT },
    Scenario { name: "function in SET", before: BEGIN, deadlocks: "SET @a = test.changes()", after: COMMIT },
    Scenario { name: "function in DO", before: BEGIN, deadlocks: "DO test.changes()", after: COMMIT },
    Scenario { name: "procedure", before: BEGIN, deadlocks: "CALL test.plain()", after: COMMIT },
    Scenario { name: "procedure with a handler", before: BEGIN, deadlocks: "CALL test.handles()", after: COMMIT },
    Scenario { name: "a cursor", before: BEGIN, deadlocks: "CALL test.cursor_waits()", after: COMMIT },
    Scenario { name: "prepared", before: PREPARED, deadlocks: "EXECUTE q", after: COMMIT },
    Scenario {
        name: "IGNORE",
        before: BEGIN,
        deadlocks: "UPDATE IGNORE test.ring SET v = 7 WHERE id = 2",
        after: COMMIT,
    },
    Scenario {
        name: "savepoint",
        before: SAVEPOINT,
        deadlocks: "UPDATE test.ring SET v = 5 WHERE id = 2",
        after: &["ROLLBACK TO a", "SELECT @@in_transaction", "COMMIT"],
    },
    Scenario {
        name: "XA, committed",
        before: XA,
        deadlocks: "UPDATE test.ring SET v = 5 WHERE id = 2",
        after: &["XA END 'a'", "XA COMMIT 'a' ONE PHASE", "XA ROLLBACK 'a'"],
    },
    Scenario {
        name: "XA, function",
        before: XA,
        deadlocks: "SELECT test.changes()",
        after: &["XA END 'a'", "XA PREPARE 'a'", "XA ROLLBACK 'a'"],
    },
    Scenario {
        name: "begun anew, as manuals say",
        before: BEGIN,
        deadlocks: "INSERT INTO test.triggers VALUES (1)",
        after: &[
            "BEGIN",
            "UPDATE test.ring SET v = v - 100 WHERE id = 70",
            "UPDATE test.ring SET v = v + 1 WHERE id = 1",
            "INSERT INTO test.triggers VALUES (1)",
            "COMMIT",
        ],
    },
];

fn make_routines(server: &Server) {
    let sql = "
        CREATE TABLE test.triggers (id INT PRIMARY KEY) ENGINE=InnoDB//
        CREATE TABLE test.handled (id INT AUTO_INCREMENT PRIMARY KEY) ENGINE=InnoDB//
        CREATE TRIGGER test.after_insert AFTER INSERT ON test.triggers
            FOR EACH ROW UPDATE test.ring SET v = v + 1 WHERE id = 2//
        CREATE FUNCTION test.changes() RETURNS INT
            BEGIN UPDATE test.ring SET v = v + 1 WHERE id = 2; RETURN 1; END//
        CREATE PROCEDURE test.plain()
            BEGIN UPDATE test.ring SET v = v + 1 WHERE id = 2; INSERT INTO test.handled VALUES (); END//
        CREATE PROCEDURE test.handles()
            BEGIN
                DECLARE CONTINUE HANDLER FOR 1213 INSERT INTO test.handled VALUES ();
                UPDATE test.ring SET v = v + 1 WHERE id = 2;
                UPDATE test.ring SET v = v + 1 WHERE id = 71;
            END//
        CREATE PROCEDURE test.cursor_waits()
            BEGIN
                DECLARE x INT;
                DECLARE c CURSOR FOR SELECT v FROM test.ring WHERE id = 2 FOR UPDATE;
                OPEN c; FETCH c INTO x; CLOSE c;
            END//";
    let made = server.client("mariadb").args(["--delimiter=//", "-e", sql]).status().expect("mariadb runs");
    assert!(made.success());
}

/// Everything that clients see of a scenario: the victim's answers, and the tables afterwards.
fn play(server: &Server, scenario: &Scenario) -> Vec<String> {
    server.query("UPDATE test.ring SET v = 0 WHERE v <> 0; DELETE FROM test.triggers; DELETE FROM test.handled");
    let mut seen = Vec::new();
    let mut other = server.session();
    let mut victim = server.session();
    other.run("BEGIN");
    other.run("UPDATE test.ring SET v = v + 1 WHERE id BETWEEN 2 AND 60");
    for sql in scenario.before {
        seen.push(format!("{sql}: {}", errors(&victim.run(sql).text())));
    }
    victim.send(scenario.deadlocks);
    wait_until("the victim waits", || server.is_waiting(victim.thread()));
    assert_eq!(other.run("UPDATE test.ring SET v = v + 1 WHERE id = 1").error(), None, "{}", scenario.name);
    seen.push(format!("{}: {}", scenario.deadlocks, errors(&victim.reply().text())));
    other.run("COMMIT");
    let mut note = |sql: &str| seen.push(format!("{sql}: {}", errors(&victim.run(sql).text())));
    scenario.after.iter().for_each(|sql| note(sql));
    seen.push(server.query("SELECT id, v FROM test.ring WHERE v <> 0 AND (id < 4 OR id > 60)"));
    seen.push(server.query("SELECT COUNT(*) FROM test.triggers"));
    seen.push(server.query("SELECT COUNT(*) FROM test.handled"));
    seen
}

/// An error's line without the position in the client's input.
fn errors(text: &str) -> String {
    let lines = text.lines().map(|line| match line.split_once(" at line") {
        Some((before, after)) if line.starts_with("ERROR ") => {
            format!("{before}{}", after.trim_start_matches(|c: char| c != ':'))
        }
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("; ")
}

#[test]
fn what_a_victim_has_left() {
    let Some(ours) = Server::start(Detector::Orbit, &[]) else { return };
    let Some(stock) = Server::start(Detector::Own, &[]) else { return };
    make_routines(&ours);
    make_routines(&stock);
    for scenario in SCENARIOS {
        let expected = play(&stock, scenario);
        assert_eq!(play(&ours, scenario), expected, "{}", scenario.name);
        // Nothing is left of the victim: its locks are free, and others' kills keep their meaning.
        let mut next = ours.session();
        next.run("SET innodb_lock_wait_timeout = 1");
        assert_eq!(next.run("UPDATE test.ring SET v = 0 WHERE id IN (1, 2, 70)").error(), None, "{}", scenario.name);
    }
    assert_eq!(ours.state("broken"), SCENARIOS.len() as i64);
}
