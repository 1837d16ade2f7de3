//! `ORBIT.SLOWLOG` answers what Redis' own `SLOWLOG` answers, wherever the task runs.

#[allow(dead_code, reason = "each test uses its part")]
mod common;

use common::{Server, list, number, run, text};
use redis::Value;

fn without_id(entry: Value) -> Vec<Value> {
    let mut entry = list(entry);
    assert_eq!(entry.len(), 6, "{entry:?}");
    entry.remove(0);
    entry
}

fn is_own_look(entry: &[Value]) -> bool {
    text(&entry[3]) == "?:0" && text(&list(entry[2].clone())[0]) == "SLOWLOG"
}

fn compare(mode: &str) {
    let Some(server) = Server::start(&format!("mode {mode} threshold 0")) else { return };
    let mut c = server.connect();
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
        let ours = list(run(&mut c, &format!("ORBIT.SLOWLOG GET{count}")));
        let theirs = list(run(&mut c, "SLOWLOG GET -1"));
        match count {
            "" => assert_eq!(ours.len(), 10),
            " 3" => assert_eq!(ours.len(), 3),
            " 0" => assert!(ours.is_empty()),
            _ => assert!(ours.len() > 25, "{ours:?}"),
        }
        let ids: Vec<i64> = ours.iter().map(|entry| number(&list(entry.clone())[0])).collect();
        assert!(ids.windows(2).all(|pair| pair[0] == pair[1] + 1), "{ids:?}");
        let ours: Vec<Vec<Value>> = ours.into_iter().map(without_id).collect();
        // Redis has newer commands, and the module's looks at the log.
        let theirs = theirs.into_iter().map(without_id).filter(|entry| !is_own_look(entry));
        let theirs: Vec<Vec<Value>> =
            theirs.skip_while(|entry| ours.first().is_some_and(|newest| entry != newest)).take(ours.len()).collect();
        assert_eq!(ours, theirs, "mode {mode}, GET{count}");
    }
    let len = number(&run(&mut c, "ORBIT.SLOWLOG LEN"));
    assert_eq!(number(&run(&mut c, "ORBIT.SLOWLOG LEN")), len + 1, "the first LEN was a command too");
    assert_eq!(run(&mut c, "ORBIT.SLOWLOG RESET"), Value::Okay);
    assert!(number(&run(&mut c, "ORBIT.SLOWLOG LEN")) <= 2);
    for (wrong, part) in
        [("GET -2", "greater than or equal to -1"), ("GET x", "greater than or equal to -1"), ("WHAT", "GET")]
    {
        let mut command = redis::cmd("ORBIT.SLOWLOG");
        wrong.split_whitespace().for_each(|word| {
            command.arg(word);
        });
        let error = command.query::<Value>(&mut c).expect_err("wrong").to_string();
        assert!(error.contains(part), "{wrong}: {error}");
    }
}

#[test]
fn in_an_orbit() {
    compare("orbit");
}

#[test]
fn inside_redis() {
    compare("inside");
}
