//! Background saves are made by the orbit, and are what a fork would have saved.

use orbit_redis_rdb::{Server, wait_until};

/// All types that a file can hold, and some volume.
fn fill(server: &Server) {
    server.run("DEBUG POPULATE 20000 key 200");
    for command in [
        "SET number 12345",
        "SET text abcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabc",
        "RPUSH list a b c 1 2 3",
        "SADD set a b c",
        "SADD ints 1 2 3",
        "ZADD zset 1 a 2 b 3.5 c",
        "HSET hash a 1 b 2 c 3",
        "XADD stream 1-1 field value",
        "XGROUP CREATE stream group 0",
        "SETEX soon 10000 value",
        "PFADD hll a b c",
    ] {
        let said = server.run(command);
        assert!(!said.starts_with('-'), "{command}: {said}");
    }
    // Large objects, each an extent of its own.
    let large = "x".repeat(3_000_000);
    let mut connection = server.connect();
    for nth in 0..4 {
        assert_eq!(connection.run(&["SET", &format!("large{nth}"), &large]).expect("an answer"), "OK");
    }
    assert_eq!(server.run("SELECT 0"), "OK");
}

/// What a stock server has after it has loaded this file.
fn digest_of(server: &Server, file: &str) -> Option<String> {
    let stock = Server::start_stock(&[])?;
    std::fs::copy(server.directory().join(file), stock.directory().join("dump.rdb")).expect("a file was saved");
    assert_eq!(stock.run("DEBUG RELOAD NOSAVE NOFLUSH"), "OK", "{}", stock.log());
    Some(stock.run("DEBUG DIGEST"))
}

#[test]
fn a_stock_server_loads_what_was_there_at_the_call() {
    let Some(server) = Server::start(&[]) else { return };
    fill(&server);
    for round in 1..=3 {
        server.run(&format!("SET round {round}"));
        let before = server.run("DEBUG DIGEST");
        // One client: nothing comes between the save and what is written after it.
        let mut connection = server.connect();
        connection.send(&["BGSAVE"]).expect("sent");
        let after = format!("written after call {round}");
        for nth in 0..200 {
            connection.send(&["SET", &format!("key:{nth}"), &after]).expect("sent");
        }
        assert_eq!(connection.answer().expect("an answer"), "Background saving started");
        (0..200).for_each(|_| assert_eq!(connection.answer().expect("an answer"), "OK"));
        assert!(server.wait_for_save(), "{}", server.log());
        assert_ne!(server.run("DEBUG DIGEST"), before);
        let Some(saved) = digest_of(&server, "dump.rdb") else { return };
        assert_eq!(saved, before, "round {round}: the file is not what was there at the call");
    }
    assert_eq!(server.number("ORBIT.RDB INFO", "saves"), 3);
    assert_eq!(server.number("ORBIT.RDB INFO", "forks"), 0, "{}", server.log());
}

/// Save points, and a save to another file in another directory.
#[test]
fn save_points_and_changed_names() {
    let Some(server) = Server::start(&["--enable-protected-configs", "yes"]) else { return };
    fill(&server);
    let other = server.directory().join("other");
    std::fs::create_dir(&other).expect("a directory");
    assert_eq!(server.run("CONFIG SET dbfilename another.rdb"), "OK");
    assert_eq!(server.run(&format!("CONFIG SET dir {}", other.display())), "OK");
    let mut connection = server.connect();
    assert_eq!(connection.run(&["CONFIG", "SET", "save", "1 1"]).expect("an answer"), "OK");
    server.run("SET one more");
    wait_until("the save point saves", || server.number("INFO persistence", "rdb_saves") >= 1);
    assert_eq!(connection.run(&["CONFIG", "SET", "save", ""]).expect("an answer"), "OK");
    assert!(server.wait_for_save(), "{}", server.log());
    let live = server.run("DEBUG DIGEST");
    let Some(saved) = digest_of(&server, "other/another.rdb") else { return };
    assert_eq!(saved, live);
    assert!(server.number("ORBIT.RDB INFO", "saves") >= 1);
    assert_eq!(server.number("ORBIT.RDB INFO", "forks"), 0);
}

/// A replica's first synchronisation is served from the orbit's file.
#[test]
fn a_replica_synchronises() {
    let Some(server) = Server::start(&["--repl-diskless-sync-delay", "0"]) else { return };
    fill(&server);
    let port = orbit_apps::free_port();
    server.run(&format!("CONFIG SET port {port}"));
    let Some(replica) = Server::start_stock(&[]) else { return };
    replica.run(&format!("REPLICAOF 127.0.0.1 {port}"));
    wait_until("the replica is up", || replica.field("INFO replication", "master_link_status") == "up");
    let live = server.run("DEBUG DIGEST");
    wait_until("the replica has it all", || replica.run("DEBUG DIGEST") == live);
    assert_eq!(server.number("ORBIT.RDB INFO", "saves"), 1, "{}", server.log());
    assert_eq!(server.number("ORBIT.RDB INFO", "forks"), 0);
}

/// The heap grows past many regions between saves.
#[test]
fn regions_that_are_new() {
    let Some(server) = Server::start(&[]) else { return };
    for round in 1..=4 {
        server.run(&format!("DEBUG POPULATE {} more 1000", 40_000 * round));
        let live = server.run("DEBUG DIGEST");
        assert_eq!(server.run("BGSAVE"), "Background saving started");
        assert!(server.wait_for_save(), "{}", server.log());
        let Some(saved) = digest_of(&server, "dump.rdb") else { return };
        assert_eq!(saved, live, "round {round}");
    }
    assert!(server.number("ORBIT.RDB INFO", "areas") >= 5);
}

/// Clients of threads that read: what they allocate is in the regions too.
#[test]
fn threads_that_read_requests() {
    let Some(server) = Server::start(&["--io-threads", "3", "--io-threads-do-reads", "yes"]) else { return };
    let mut clients: Vec<_> = (0..16).map(|_| server.connect()).collect();
    for round in 0..50 {
        for (nth, client) in clients.iter_mut().enumerate() {
            let value = format!("{round}-{}", "v".repeat(500));
            client.send(&["SET", &format!("client{nth}-{round}"), &value]).expect("sent");
        }
        clients.iter_mut().for_each(|client| assert_eq!(client.answer().expect("an answer"), "OK"));
    }
    let live = server.run("DEBUG DIGEST");
    assert_eq!(server.run("BGSAVE"), "Background saving started");
    assert!(server.wait_for_save(), "{}", server.log());
    let Some(saved) = digest_of(&server, "dump.rdb") else { return };
    assert_eq!(saved, live);
}

/// Between saves, pages are sent ahead: the next save has less to send, and is as good.
#[test]
fn pages_are_sent_ahead() {
    let Some(server) = Server::start(&[]) else { return };
    server.run("DEBUG POPULATE 60000 key 1000");
    assert_eq!(server.run("BGSAVE"), "Background saving started");
    assert!(server.wait_for_save(), "{}", server.log());
    let write = |round: usize| {
        let mut client = server.connect();
        for nth in 0..6000 {
            let key = format!("key:{}", nth * 10);
            assert_eq!(client.run(&["SET", &key, &format!("{round:01000}")]).expect("an answer"), "OK");
        }
    };
    write(1);
    // Each area has its turn, and another in which nothing is left to send.
    let before = server.number("ORBIT.RDB INFO", "syncs");
    let areas = server.number("ORBIT.RDB INFO", "areas");
    wait_until("all was sent", || server.number("ORBIT.RDB INFO", "syncs") > before + 2 * areas);
    let live = server.run("DEBUG DIGEST");
    assert_eq!(server.run("BGSAVE"), "Background saving started");
    assert!(server.wait_for_save(), "{}", server.log());
    let sent = server.number("ORBIT.RDB INFO", "pages");
    assert!(sent < 2000, "6,000 values lie on 6,000 pages and more; {sent} were sent at the save");
    let Some(saved) = digest_of(&server, "dump.rdb") else { return };
    assert_eq!(saved, live);
}
