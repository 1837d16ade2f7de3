//! `ORBIT.SLOWLOG GET -1` of a log that is longer than one update of the library may be (64 MiB)
//! gives every entry, and what Redis serves meanwhile it serves.

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{Server, count, entries, list, number, run, text};
use redis::Value;

/// Bytes of arguments that an entry keeps at least.
const KEPT: usize = 30 * 128;
/// Entries that are more than 64 MiB.
const ENTRIES: usize = (66 << 20) / KEPT;
/// Commands at a time: no more than Redis' own log keeps for the module to take.
const BATCH: usize = 500;

#[test]
fn every_entry_comes_and_redis_serves_on() {
    let arguments = "threshold 0 max-len 100000 memory-mb 2048 deadline-ms 60000 ring-kb 16384";
    let Some(server) = Server::start(arguments) else { return };
    let mut c = server.connect();
    run(&mut c, "CONFIG SET slowlog-max-len 2000");
    let key = "x".repeat(200);
    let shape = |number: usize| {
        let mut command = redis::cmd("DEL");
        command.arg(number).arg(vec![key.as_str(); 30]);
        command
    };
    for from in (0..ENTRIES).step_by(BATCH) {
        let mut batch = redis::pipe();
        (from..from + BATCH).for_each(|number| {
            batch.add_command(shape(number)).ignore();
        });
        batch.query::<()>(&mut c).expect("DEL");
        // However slow the orbit is, the ring never fills up: this is answered when the orbit has
        // taken in all there is.
        run(&mut c, "ORBIT.SLOWLOG LEN");
    }
    run(&mut c, "CONFIG SET slowlog-log-slower-than -1");
    let len = number(&run(&mut c, "ORBIT.SLOWLOG LEN")) as usize;
    assert!(len > ENTRIES, "{len}");
    assert_eq!(count(&mut c, "entries_missed") + count(&mut c, "entries_lost"), 0);

    let (done, served) = (AtomicBool::new(false), AtomicU64::new(0));
    let all = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = server.connect();
            while !done.load(Ordering::Relaxed) {
                assert_eq!(run(&mut other, "ECHO on"), Value::BulkString(b"on".to_vec()));
                served.fetch_add(1, Ordering::Relaxed);
            }
        });
        let answer = redis::cmd("ORBIT.SLOWLOG").arg("GET").arg(-1).query::<Value>(&mut c);
        done.store(true, Ordering::Relaxed);
        entries(answer.expect("every entry"))
    });
    assert!(served.load(Ordering::Relaxed) > 0);
    assert_eq!(all.len(), len);
    for pair in all.windows(2) {
        assert_eq!(number(&pair[0][0]), number(&pair[1][0]) + 1, "the newest first, none left out");
    }
    // In the order they were sent in, whichever update they came in.
    let sent = all.iter().rev().map(|entry| list(entry[3].clone())).filter(|words| text(&words[0]) == "DEL");
    let mut expected = 0;
    for words in sent {
        assert_eq!((words.len(), text(&words[1])), (32, expected.to_string()));
        assert_eq!(text(&words[31]), format!("{}... (72 more bytes)", &key[..128]));
        expected += 1;
    }
    assert!(expected >= ENTRIES, "{expected}");

    assert_eq!(entries(run(&mut c, "ORBIT.SLOWLOG GET 10000")), all[..10_000]);
    assert_eq!(number(&run(&mut c, "ORBIT.SLOWLOG LEN")) as usize, len);
    assert_eq!(count(&mut c, "orbit_crashes"), 0);
    assert_eq!(run(&mut c, "ORBIT.SLOWLOG RESET"), Value::Okay);
    assert!(entries(run(&mut c, "ORBIT.SLOWLOG GET -1")).is_empty());
}
