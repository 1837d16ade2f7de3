//! However the server ends, no process of the module is left.

#[allow(dead_code, reason = "each test uses its part")]
mod common;

use std::time::{Duration, Instant};

use common::{PATIENCE, Server, count, run};

/// The processes below this one.
fn below(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()) {
            found.push(child);
            found.extend(below(child));
        }
    }
    found
}

/// The process that this one is below.
fn parent(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let behind_name = stat.rsplit(") ").next().expect("what follows the name");
    behind_name.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
}

fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

fn all_gone(pids: &[i32], how: &str) {
    let until = Instant::now() + PATIENCE;
    while pids.iter().any(|pid| lives(*pid)) {
        assert!(Instant::now() < until, "{how}: of {pids:?} some live on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn after_shutdown_and_after_kill() {
    for how in ["shutdown", "kill"] {
        let Some(mut server) = Server::start("threshold 0 faults yes") else { return };
        let mut c = server.connect();
        run(&mut c, "ORBIT.FAULT segv");
        run(&mut c, "ORBIT.SLOWLOG LEN");
        let orbit = count(&mut c, "orbit_pid") as i32;
        let template = parent(orbit);
        let mut pids = below(template);
        assert!(pids.contains(&orbit) && pids.iter().all(|pid| lives(*pid)), "{pids:?}");
        pids.push(template);
        if how == "shutdown" {
            let _ = redis::cmd("SHUTDOWN").arg("NOSAVE").query::<()>(&mut c);
            server.wait();
        } else {
            server.kill();
        }
        all_gone(&pids, how);
    }
}
