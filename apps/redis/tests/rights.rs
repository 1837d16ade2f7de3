//! Whoever may not run Redis' own command may not run the module's that is like it: the answer is
//! Redis' own, from a script and a transaction too, and nothing is shown, reset or harmed.

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use common::{Server, count, entries, number, run, text};
use redis::{Connection, Value};

fn ask(connection: &mut Connection, words: &[&str]) -> Result<Value, String> {
    redis::cmd(words[0]).arg(&words[1..]).query::<Value>(connection).map_err(|e| e.to_string())
}

/// A user that may run the module's commands, but not what administrators may, but for `more`.
fn set_user(connection: &mut Connection, name: &str, more: &str) {
    let own = "+orbit.slowlog +orbit.info +orbit.fault";
    run(connection, &format!("ACL SETUSER {name} on nopass ~* +@all -@dangerous -@admin {own} {more}"));
}

fn denied(answer: &Result<Value, String>) -> bool {
    // In a transaction the rejection is one of the answers.
    format!("{answer:?}").to_ascii_uppercase().contains("NOPERM")
}

#[test]
fn rights_are_those_of_redis_own_commands() {
    let Some(server) = Server::start("threshold 0 faults yes") else { return };
    let mut c = server.connect();
    run(&mut c, "CONFIG SET slowlog-log-slower-than 0");
    run(&mut c, "SET key topsecret");
    run(&mut c, "CONFIG SET slowlog-log-slower-than -1");
    let held = number(&run(&mut c, "ORBIT.SLOWLOG LEN"));
    assert!(held > 0);
    for (user, more) in [("eve", ""), ("carol", "+slowlog|get +info")] {
        set_user(&mut c, user, more);
    }
    let mut eve = server.connect();
    run(&mut eve, "AUTH eve x");
    for words in [
        &["GET"][..],
        &["get", "1"],
        &["GET", "x"],
        &["GET", "1", "2"],
        &["LEN"],
        &["LEN", "x"],
        &["RESET"],
        &["RESET", "x"],
        &["HELP"],
        &["BOGUS"],
        &[],
    ] {
        let mut as_eve = |name: &str| ask(&mut eve, &[&[name], words].concat());
        assert_eq!(as_eve("ORBIT.SLOWLOG"), as_eve("SLOWLOG"), "{words:?}");
    }
    assert!(denied(&ask(&mut eve, &["ORBIT.SLOWLOG", "GET"])));
    assert_eq!(ask(&mut eve, &["ORBIT.INFO"]), ask(&mut eve, &["INFO"]));
    assert!(denied(&ask(&mut eve, &["ORBIT.FAULT", "abort"])));
    assert!(denied(&ask(&mut eve, &["EVAL", "return redis.call('orbit.slowlog', 'reset')", "0"])));
    run(&mut eve, "MULTI");
    run(&mut eve, "ORBIT.SLOWLOG RESET");
    assert!(denied(&ask(&mut eve, &["EXEC"])));
    assert!(format!("{:?}", run(&mut c, "ACL LOG")).contains("slowlog|get"));

    let mut carol = server.connect();
    run(&mut carol, "AUTH carol x");
    assert_eq!(entries(run(&mut carol, "ORBIT.SLOWLOG GET -1")).len() as i64, held);
    assert!(text(&run(&mut carol, "ORBIT.INFO")).contains("mode:orbit"));
    assert!(denied(&ask(&mut carol, &["ORBIT.SLOWLOG", "LEN"])));
    assert!(denied(&ask(&mut carol, &["ORBIT.FAULT", "abort"])));

    assert_eq!(count(&mut c, "orbit_crashes"), 0);
    assert_eq!(number(&run(&mut c, "ORBIT.SLOWLOG LEN")), held);
    assert_eq!(ask(&mut c, &["EVAL", "return redis.call('orbit.slowlog', 'reset')", "0"]), Ok(Value::Okay));
    assert!(text(&run(&mut c, "ORBIT.FAULT abort")).contains("SIGABRT"));
}

#[test]
fn what_redis_lacks_denies_the_default_user_nothing() {
    let Some(server) = Server::start("faults yes --rename-command DEBUG D --rename-command INFO I") else { return };
    let mut c = server.connect();
    set_user(&mut c, "eve", "");
    let mut eve = server.connect();
    run(&mut eve, "AUTH eve x");
    assert!(denied(&ask(&mut eve, &["ORBIT.INFO"])));
    assert!(denied(&ask(&mut eve, &["ORBIT.FAULT", "abort"])));
    assert_eq!(count(&mut c, "orbit_crashes"), 0);
    assert!(text(&run(&mut c, "ORBIT.FAULT abort")).contains("SIGABRT"));
}
