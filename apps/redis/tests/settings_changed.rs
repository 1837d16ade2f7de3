//! What was slow under the old settings is in the log after they were changed; that Redis keeps
//! nothing is said.

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use common::{Server, entries, list, number, run, text};

/// Notes these commands, sent at once.
fn send(connection: &mut redis::Connection, lines: &[&str]) {
    let mut pipe = redis::pipe();
    for line in lines {
        let mut words = line.split_whitespace();
        pipe.cmd(words.next().expect("a command"));
        words.for_each(|word| {
            pipe.arg(word);
        });
        pipe.ignore();
    }
    pipe.query::<()>(connection).expect("answers");
}

fn noted(connection: &mut redis::Connection) -> Vec<String> {
    let entries = entries(run(connection, "ORBIT.SLOWLOG GET -1"));
    entries.into_iter().map(|entry| list(entry[3].clone()).iter().map(text).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn what_came_before_the_change_is_seen() {
    let Some(server) = Server::start("threshold 1000000000") else { return };
    let mut c = server.connect();
    for change in ["slowlog-log-slower-than -1", "slowlog-max-len 0"] {
        run(&mut c, "CONFIG SET slowlog-max-len 128");
        run(&mut c, "CONFIG SET slowlog-log-slower-than 0");
        run(&mut c, "ORBIT.SLOWLOG RESET");
        let change = format!("CONFIG SET {change}");
        send(&mut c, &["ECHO before", &change, "CONFIG SET slowlog-log-slower-than -1"]);
        let noted = noted(&mut c);
        assert!(noted.contains(&"ECHO before".to_owned()), "{change}: {noted:?}");
    }
    assert_eq!(number(&run(&mut c, "ORBIT.SLOWLOG LEN")), noted(&mut c).len() as i64);
}

#[test]
fn a_log_of_no_length_is_reported() {
    let reports = |server: &Server| server.log().matches("slowlog-max-len is 0").count();
    let Some(server) = Server::start("threshold 0 --slowlog-max-len 0") else { return };
    let mut c = server.connect();
    assert_eq!(reports(&server), 1);
    run(&mut c, "CONFIG SET slowlog-log-slower-than 1");
    assert_eq!(reports(&server), 1, "once, until it changes");
    run(&mut c, "CONFIG SET slowlog-max-len 10");
    run(&mut c, "CONFIG SET slowlog-max-len 0");
    assert_eq!(reports(&server), 2);
}
