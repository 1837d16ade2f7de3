//! nginx under keep with a log: a reload (SIGHUP) and new log files (SIGUSR1) work as ever, the
//! worker that comes with a reload is kept, and a crash after each of them is recovered from, also
//! one right after.

mod common;

use common::campaign::{Client, Server};
use common::nginx::{Nginx, module};
use common::{count, events, lacks_tracking, until};
use std::fs;

fn crashes(nginx: &Nginx) -> usize {
    count(nginx.events(), "recovered")
}

/// A poison request, and answers of another client before and after.
fn crash(nginx: &Nginx, client: &mut Box<dyn Client + '_>) {
    let before = crashes(nginx);
    client.ask().expect("an answer");
    let poison = nginx.poison();
    until("it is put back", || (crashes(nginx) > before).then_some(()));
    client.ask().expect("another client sees nothing");
    drop(poison);
}

#[test]
fn reload_and_new_logs() {
    let Some(module) = module().filter(|_| !lacks_tracking()) else { return };
    let mut nginx = Nginx::start("nginx-signals", &module, &["--every", "500ms"]);
    let connect = |nginx: &Nginx| until("it accepts", || nginx.client("client".into()));
    let mut first: Box<dyn Client + '_> = Box::new(connect(&nginx));
    first.ask().expect("an answer");
    // New log files: the master opens them again, and has its worker do so.
    for round in 0..3 {
        let (log, moved) = (nginx.log(), nginx.log().with_extension(format!("{round}")));
        fs::rename(&log, &moved).expect("moved");
        nginx.signal(libc::SIGUSR1);
        until("there is a new log", || log.exists().then_some(()));
        crash(&nginx, &mut first);
    }
    drop(first);
    // Reloads: another worker each time; the one before ends when its connections have.
    for round in 0..3 {
        let old = nginx.worker;
        nginx.signal(libc::SIGHUP);
        let is_new = |e: &serde_json::Value| e["event"] == "kept" && !nginx.knows(e["pid"].as_i64().unwrap_or(0));
        let kept = until("the new worker is kept", || events(nginx.events()).into_iter().find(is_new));
        let new = kept["pid"].as_i64().expect("a number") as i32;
        assert_ne!(new, old, "round {round}");
        nginx.becomes(new);
        until("the old worker has exited", || {
            let ended = |e: &serde_json::Value| e["event"] == "exited" && e["pid"] == old;
            events(nginx.events()).iter().any(ended).then_some(())
        });
        let mut client: Box<dyn Client + '_> = Box::new(connect(&nginx));
        crash(&nginx, &mut client);
    }
    assert!(nginx.has_kept_its_worker());
    assert!(!events(nginx.events()).iter().any(|e| e["event"] == "gave-up"), "no crash is given up");
    assert_eq!(nginx.stop(), Some(0), "its own status");
}
