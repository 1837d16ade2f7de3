//! Hundreds of commands of all shapes, by clients with and without a name, over a unix socket and
//! TCP: each entry of `ORBIT.SLOWLOG` has the number, time, duration, arguments, address and name
//! of Redis' own, byte for byte; wrong counts give the same errors.

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use common::{Server, entries, list, number, redis_own, run, text};
use redis::{Connection, Value};

/// A client over TCP, on a port that was free.
fn by_tcp(server: &Server) -> Connection {
    for _ in 0..20 {
        let port = orbit_testing::free_port();
        let set = redis::cmd("CONFIG").arg(&["SET", "port", &port.to_string()]).query::<()>(&mut server.connect());
        if set.is_ok()
            && let Ok(client) = redis::Client::open(format!("redis://127.0.0.1:{port}"))
            && let Ok(connection) = client.get_connection()
        {
            return connection;
        }
    }
    panic!("no port for Redis:\n{}", server.log());
}

/// Every length near the limits of Redis' log: 128 bytes an argument, 32 arguments.
fn shapes() -> Vec<Vec<Vec<u8>>> {
    let mut shapes = Vec::new();
    for len in [0, 1, 2, 44, 45, 126, 127, 128, 129, 130, 160, 255, 256, 1000, 4095, 70_000] {
        shapes.push(vec![b"SET".to_vec(), format!("k{len}").into_bytes(), vec![b'x'; len]]);
        shapes.push(vec![b"SET".to_vec(), vec![0xfe; len + 1], b"\r\n\0\"'".to_vec()]);
        shapes.push(vec![b"ECHO".to_vec(), "\u{e4}".repeat(len).into_bytes()]);
    }
    for count in [1, 2, 14, 15, 16, 17, 20, 50, 500] {
        let pairs = (0..2 * count).map(|n| format!("{n}").into_bytes());
        shapes.push([b"MSET".to_vec()].into_iter().chain(pairs).collect());
        let keys = (0..count).map(|n| format!("key:{n:0200}").into_bytes());
        shapes.push([b"del".to_vec()].into_iter().chain(keys).collect());
    }
    let words = |line: &str| line.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
    for line in [
        "SET n 9223372036854775807",
        "SET n -17",
        "INCRBY n 5",
        "GeT n",
        "PING",
        "RPUSH list a b c",
        "BLPOP list 1",
        "BLPOP nolist 0.01",
        "ZADD z 1.5 a 2 b",
        "SORT list BY nosort",
        "OBJECT ENCODING n",
        "CONFIG GET maxmemory",
        "CLIENT ID",
        "EXPIRE n 100",
        "INCR list",
        "GETRANGE n 0 -1",
        "CONFIG SET requirepass secret-word",
        "AUTH secret-word",
    ] {
        shapes.push(words(line));
    }
    shapes
}

fn send(c: &mut Connection, words: &[Vec<u8>]) {
    let mut command = redis::cmd(std::str::from_utf8(&words[0]).expect("a name"));
    words[1..].iter().for_each(|word| {
        command.arg(&word[..]);
    });
    // Errors are answers too: the command was run and noted.
    let _ = command.query::<Value>(c);
}

#[test]
fn every_field_is_as_in_redis() {
    for mode in ["orbit", "inside"] {
        let Some(server) = Server::start(&format!("mode {mode} threshold 0 max-len 4096 ring-kb 4096")) else { return };
        let mut named = server.connect();
        run(&mut named, "CONFIG SET slowlog-max-len 4096");
        run(&mut named, "CLIENT SETNAME a-long-name-of-a-client-with-many-letters");
        let (mut nameless, mut far) = (server.connect(), by_tcp(&server));
        let shapes = shapes();
        for (at, shape) in shapes.iter().enumerate() {
            send(&mut named, shape);
            send(if at % 2 == 0 { &mut nameless } else { &mut far }, shape);
            if at == shapes.len() / 2 {
                run(&mut far, "CLIENT SETNAME far");
            }
        }
        let ours = entries(run(&mut named, "ORBIT.SLOWLOG GET -1"));
        let theirs = redis_own(&mut named);
        // Theirs begins with what came after the question to ours.
        let newer = theirs.iter().position(|entry| Some(entry) == ours.first()).expect("ours begins in theirs");
        assert!(newer <= 2, "mode {mode}: {newer} newer ones");
        assert!(ours.len() > 2 * shapes.len(), "mode {mode}: {} entries", ours.len());
        for (ours, theirs) in ours.iter().zip(&theirs[newer..]) {
            assert_eq!(ours, theirs, "mode {mode}");
        }
        let addresses: std::collections::BTreeSet<String> = ours.iter().map(|entry| text(&entry[4])).collect();
        assert!(addresses.iter().any(|a| a.starts_with("127.0.0.1:")), "{addresses:?}");
        assert!(!format!("{ours:?}").contains("secret-word"), "secrets are left out");
    }
}

#[test]
fn wrong_counts_give_the_same_errors() {
    let Some(server) = Server::start("threshold 1000000") else { return };
    let mut c = server.connect();
    for count in ["-2", "x", "", "1.5", "+1", "01", "-0", " 1", "9223372036854775807", "9223372036854775808", "-1", "0"]
    {
        let mut ask = |name: &str| {
            let answer = redis::cmd(name).arg("GET").arg(count).query::<Value>(&mut c);
            answer.map(|found| list(found).len()).map_err(|e| e.to_string())
        };
        assert_eq!(ask("ORBIT.SLOWLOG"), ask("SLOWLOG"), "count {count:?}");
    }
    assert_eq!(number(&run(&mut c, "ORBIT.SLOWLOG LEN")), 0);
}
