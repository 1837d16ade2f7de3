//! Every kind of fault, twenty times, under load and with background saves: no client sees an
//! error.

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use common::{PATIENCE, Server, count, number, run, run_in_orbit, text};
use redis::Value;

#[test]
fn clients_see_no_error() {
    let arguments = "threshold 1000 every 20 faults yes deadline-ms 300 memory-mb 32";
    let Some(server) = Server::start(arguments) else { return };
    let (stop, served, wrong) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for client in 0..2 {
            let (server, stop, served, wrong) = (&server, &stop, &served, &wrong);
            scope.spawn(move || {
                let mut c = server.connect();
                for n in 0u64.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let key = format!("{client}:{}", n % 100);
                    let set = redis::cmd("SET").arg(&key).arg(n).query::<()>(&mut c);
                    let got = redis::cmd("GET").arg(&key).query::<u64>(&mut c);
                    if set.is_err() || got.ok() != Some(n) {
                        wrong.fetch_add(1, Ordering::Relaxed);
                    }
                    served.fetch_add(2, Ordering::Relaxed);
                }
            });
        }
        let result = std::panic::catch_unwind(|| {
            let mut c = server.connect();
            for round in 0..20 {
                for (fault, said) in [
                    ("segv", "SIGSEGV"),
                    ("abort", "SIGABRT"),
                    ("hang", "deadline"),
                    ("oom", "memory"),
                    ("leak", "leaking"),
                    ("recursion", "SIGSEGV"),
                    ("kill", "signal 9"),
                ] {
                    let crashes = count(&mut c, "orbit_crashes");
                    let answer = text(&run_in_orbit(&mut c, &format!("ORBIT.FAULT {fault}")));
                    assert!(answer.contains(said), "round {round}, {fault}: {answer}");
                    let until = Instant::now() + PATIENCE;
                    while count(&mut c, "orbit_crashes") == crashes {
                        // A leak ends the orbit some calls later; the answer comes from the next
                        // process. A hang that waited for a new process for all its time never ran.
                        number(&run_in_orbit(&mut c, "ORBIT.SLOWLOG LEN"));
                        if fault == "hang" && count(&mut c, "orbit_crashes") == crashes {
                            run(&mut c, "ORBIT.FAULT hang");
                        }
                        assert!(Instant::now() < until, "{fault} ended nothing");
                    }
                }
                if round % 5 == 0 {
                    run(&mut c, "BGSAVE SCHEDULE");
                }
            }
            assert!(number(&run_in_orbit(&mut c, "ORBIT.SLOWLOG LEN")) > 0, "the log works again");
            assert!(count(&mut c, "orbit_crashes") >= 100);
            let until = Instant::now() + PATIENCE;
            let saved =
                |c: &mut redis::Connection| text(&run(c, "INFO persistence")).contains("rdb_bgsave_in_progress:0");
            while !saved(&mut c) {
                assert!(Instant::now() < until, "the background save did not end");
            }
            let persistence = text(&run(&mut c, "INFO persistence"));
            assert!(persistence.contains("rdb_last_bgsave_status:ok"), "{persistence}");
            assert!(matches!(run(&mut c, "PING"), Value::SimpleString(_)));
        });
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    println!("{} requests served", served.load(Ordering::Relaxed));
    assert_eq!(wrong.load(Ordering::Relaxed), 0, "errors that clients saw");
    assert!(served.load(Ordering::Relaxed) > 1000);
    // Redis says so when it reaps a child it does not know.
    assert!(!server.log().contains("unmatched child") && !server.log().contains("BUG REPORT"), "{}", server.log());
}
