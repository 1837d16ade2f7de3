//! While the orbit is down commands are served; afterwards the log and the count of what it lost
//! make up what was seen.

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use std::time::Instant;

use common::{PATIENCE, Server, count, number, run, text};
use redis::Value;

#[test]
fn what_the_log_lacks_is_counted() {
    let Some(server) = Server::start("threshold 0 max-len 100000 ring-kb 16 faults yes deadline-ms 300") else {
        return;
    };
    let mut c = server.connect();
    run(&mut c, "CONFIG SET slowlog-max-len 100000");
    for round in 0..5 {
        for _ in 0..400 {
            run(&mut c, "SET key value");
        }
        let fault = if round % 2 == 0 { "hang" } else { "segv" };
        let mut other = server.connect();
        std::thread::scope(|scope| {
            let faulty = scope.spawn(|| text(&run(&mut other, &format!("ORBIT.FAULT {fault}"))));
            for _ in 0..400 {
                assert_eq!(run(&mut c, "SET key value"), Value::Okay);
            }
            println!("{}", faulty.join().expect("the fault's answer").lines().next().unwrap_or_default());
        });
        // Nothing is noted from here on, so that the numbers come to rest.
        run(&mut c, "CONFIG SET slowlog-log-slower-than -1");
        assert_eq!(count(&mut c, "entries_missed"), 0);
        let until = Instant::now() + PATIENCE;
        loop {
            let held = number(&run(&mut c, "ORBIT.SLOWLOG LEN")) as u64;
            let (seen, lost) = (count(&mut c, "entries_seen"), count(&mut c, "entries_lost"));
            if lost > 0 && held + lost == seen {
                break;
            }
            assert!(Instant::now() < until, "round {round}: {seen} seen, {held} held, {lost} lost");
        }
        run(&mut c, "CONFIG SET slowlog-log-slower-than 0");
    }
}

#[test]
fn each_third_command_is_noted_and_secrets_are_not() {
    let Some(server) = Server::start("mode orbit every 3 threshold 1000000") else { return };
    let mut c = server.connect();
    let before = count(&mut c, "entries_seen");
    for _ in 0..300 {
        run(&mut c, "SET key value");
    }
    let noted = count(&mut c, "entries_seen") - before;
    assert!((98..=102).contains(&noted), "{noted} of 300");
    for _ in 0..6 {
        let _ = redis::cmd("AUTH").arg("secret-word").query::<()>(&mut c);
    }
    let answer = format!("{:?}", run(&mut c, "ORBIT.SLOWLOG GET -1"));
    assert!(!answer.contains("secret-word"), "{answer}");
}
