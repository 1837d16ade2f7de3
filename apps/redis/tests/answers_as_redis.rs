//! `ORBIT.SLOWLOG` answers what Redis' own `SLOWLOG` answers, wherever the task runs: entries, help
//! and errors, byte for byte; only that the module's own reads of Redis' log are not in it, and not
//! numbered.

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use common::{Server, entries, number, redis_own, run};
use redis::Value;

fn compare(mode: &str) {
    let Some(server) = Server::start(&format!("mode {mode} threshold 0")) else { return };
    let mut c = server.connect();
    run(&mut c, "CONFIG SET slowlog-max-len 100000");
    run(&mut c, "CLIENT SETNAME tester");
    run(&mut c, "SET key value");
    redis::cmd("SET").arg("long").arg("x".repeat(1000)).query::<()>(&mut c).expect("SET");
    redis::cmd("SET").arg("binary").arg(&[0u8, 255, 13, 10][..]).query::<()>(&mut c).expect("SET");
    let mut many = redis::cmd("MSET");
    for at in 0..50 {
        many.arg(format!("k{at}")).arg(at);
    }
    many.query::<()>(&mut c).expect("MSET");
    redis::cmd("EVAL")
        .arg("redis.call('incr','n') return redis.call('incr','n')")
        .arg(0)
        .query::<()>(&mut c)
        .expect("EVAL");
    redis::pipe().atomic().set("a", 1).incr("a", 1).query::<()>(&mut c).expect("MULTI");
    for n in 0..10 {
        run(&mut c, &format!("ECHO {n}"));
    }
    for count in ["", " 3", " 0", " -1"] {
        let ours = entries(run(&mut c, &format!("ORBIT.SLOWLOG GET{count}")));
        let theirs = redis_own(&mut c);
        match count {
            "" => assert_eq!(ours.len(), 10),
            " 3" => assert_eq!(ours.len(), 3),
            " 0" => assert!(ours.is_empty()),
            _ => assert!(ours.len() > 25, "{ours:?}"),
        }
        // Redis has noted the question to ours as well.
        let theirs: Vec<_> = theirs.into_iter().skip(1).take(ours.len()).collect();
        assert_eq!(ours, theirs, "mode {mode}, GET{count}");
    }
    let len = number(&run(&mut c, "ORBIT.SLOWLOG LEN"));
    assert_eq!(len + 1, redis_own(&mut c).len() as i64, "and the LEN itself");
    let len = number(&run(&mut c, "ORBIT.SLOWLOG LEN"));
    assert_eq!(number(&run(&mut c, "ORBIT.SLOWLOG LEN")), len + 1, "the first LEN was a command too");
    assert_eq!(run(&mut c, "ORBIT.SLOWLOG RESET"), Value::Okay);
    assert!(number(&run(&mut c, "ORBIT.SLOWLOG LEN")) <= 2);
}

#[test]
fn help_and_errors() {
    let Some(server) = Server::start("threshold 1000000") else { return };
    let mut c = server.connect();
    let long = "x".repeat(300);
    let lines: &[&[&[u8]]] = &[
        &[],
        &[b"GET", b"1", b"2"],
        &[b"GET", b"-2"],
        &[b"GET", b"x"],
        &[b"GET", b""],
        &[b"get", b"x", b"y", b"z"],
        &[b"LEN", b"x"],
        &[b"RESET", b"x"],
        &[b"reset", b"x", b"y"],
        &[b"BOGUS"],
        &[b"bogus", b"1"],
        &[b""],
        &[b"a\r\nb\x01"],
        &[long.as_bytes()],
        &[b"HELP", b"x"],
        &[b"HELP"],
        &[b"help"],
        &[b"LEN"],
        &[b"GET"],
        &[b"RESET"],
    ];
    for line in lines {
        let mut ask = |name: &str| redis::cmd(name).arg(*line).query::<Value>(&mut c).map_err(|e| e.to_string());
        let (ours, theirs) = (ask("ORBIT.SLOWLOG"), ask("SLOWLOG"));
        assert_eq!(ours, theirs, "{:?}", line.iter().map(|word| word.escape_ascii().to_string()).collect::<Vec<_>>());
    }
}

#[test]
fn slow_commands_alone() {
    let Some(server) = Server::start("threshold 50000") else { return };
    let mut c = server.connect();
    let busy = "local function now() local t = redis.call('TIME') return t[1] * 1000000 + t[2] end \
                local until_then = now() + 60000 repeat until now() >= until_then";
    for _ in 0..5 {
        redis::cmd("EVAL").arg(busy).arg(0).query::<()>(&mut c).expect("EVAL");
    }
    let ours = entries(run(&mut c, "ORBIT.SLOWLOG GET -1"));
    assert!(ours.len() >= 5, "{ours:?}");
    let theirs = redis_own(&mut c);
    // Newer ones only where the machine stood still.
    assert_eq!(ours, theirs[theirs.len() - ours.len()..]);
}

#[test]
fn in_an_orbit() {
    compare("orbit");
}

#[test]
fn inside_redis() {
    compare("inside");
}
