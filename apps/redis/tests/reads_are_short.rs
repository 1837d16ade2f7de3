//! The module reads of Redis' own log what is new, however long that log is; none of it is left
//! out.

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use common::{Server, by_module, count, entries, list, number, run, text};

/// Commands at a time: more than a first read asks for.
const BATCH: usize = 100;

#[test]
fn a_long_log_is_not_read_again_and_again() {
    let Some(server) = Server::start("threshold 0 max-len 100000 memory-mb 256 ring-kb 1024") else { return };
    let mut c = server.connect();
    run(&mut c, "CONFIG SET slowlog-max-len 100000");
    for _ in 0..30 {
        let mut batch = redis::pipe();
        (0..BATCH).for_each(|_| {
            batch.cmd("PING").ignore();
        });
        batch.query::<()>(&mut c).expect("PING");
    }
    run(&mut c, "CONFIG SET slowlog-log-slower-than -1");
    assert!(number(&run(&mut c, "ORBIT.SLOWLOG LEN")) as usize >= 30 * BATCH);
    assert_eq!(count(&mut c, "entries_missed") + count(&mut c, "entries_lost"), 0);
    let mut reads = 0;
    for entry in entries(run(&mut c, "SLOWLOG GET -1")) {
        let words = list(entry[3].clone());
        if by_module(&entry) && text(&words[0]) == "SLOWLOG" {
            let asked: i64 = text(&words[2]).parse().expect("a count");
            assert!((1..=2 * BATCH as i64).contains(&asked), "the module asked for {asked} entries");
            reads += 1;
        }
    }
    assert!(reads > 0);
}
