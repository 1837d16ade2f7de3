//! The command itself, `orbit watch --system=ACTION`, and a CPU hung under it. What it did is for
//! the host to see.

use super::{
    Failed, line,
    lives::Lives,
    machine::{hang, pin, sleep_ms},
};
use orbit_linux::child::Exit;
use orbit_linux::signals;
use serde_json::json;
use std::{fs, process::Command};

const EVENTS: &str = "/tmp/events";

/// Threads of the detection that process `pid`, or one of its descendants, has.
fn watchers() -> usize {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let tasks = all.filter_map(|one| fs::read_dir(one.path().join("task")).ok()).flatten().flatten();
    tasks.filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("shd/"))).count()
}

pub fn run(action: &str, kind: &str) -> Result<bool, Failed> {
    // The host shall see that the machine continues, if it does.
    Lives::start(2, u64::MAX, |_, _| {});
    let mut guard = Command::new("/bin/orbit")
        .args(["watch", &format!("--system={action}"), "--events", EVENTS])
        .spawn()
        .map_err(|e| format!("starting orbit watch: {e}"))?;
    for _ in 0..3000 {
        if watchers() == 2 {
            break;
        }
        sleep_ms(20);
    }
    let watchers = watchers();
    // It knows the machine by then.
    sleep_ms(2000);
    line::say(&json!({"guard": action, "kind": kind, "watchers": watchers}));
    pin(0);
    hang(kind, 1, 5000)?;
    sleep_ms(6000);
    // With `crash` and `reboot` nobody comes here.
    // An own child, not waited for yet.
    signals::send(guard.id() as i32, libc::SIGTERM).map_err(|e| e.to_string())?;
    let ended = guard.wait_for_exit().map_err(|e| e.to_string())?;
    let events = fs::read_to_string(EVENTS).unwrap_or_default();
    line::say(&json!({"guard_ended": ended.code(), "events": events.lines().collect::<Vec<_>>()}));
    Ok(ended.success() && events.contains("cpu-hung"))
}
