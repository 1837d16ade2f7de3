//! The command `orbit watch --system` with each of its actions, seen from outside: an alarm in its
//! file, a panic on the console, a second boot.
//!
//! Line `action`: seconds from the hang's announcement; null: not seen.

use super::{BOOT, Failed, Next, Parts, Said, Vm, say};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Longer than the hang inside lasts.
const LIMIT: Duration = Duration::from_secs(60);

pub fn run(parts: &Parts, action: &str) -> Result<bool, Failed> {
    // With interrupts on and with interrupts off.
    let kind = if action == "crash" { "irq" } else { "lock" };
    let mut vm = Vm::boot(parts, "guard", &format!("guard {action} {kind}"), "loglevel=6", action == "reboot")?;
    let mut until = Instant::now() + BOOT;
    let mut begun: Option<Instant> = None;
    let (mut alarm, mut panic, mut again, mut ended) = (None, None, None, Value::Null);
    loop {
        match vm.next(until) {
            Next::Said(at, Said::Line(line)) if line["guard"].is_string() => {
                if line["watchers"] != 2 {
                    return Err(format!("orbit watch --system did not begin: {line}\n{}", vm.tail()));
                }
                (begun, until) = (Some(at), at + LIMIT);
            }
            Next::Said(_, Said::Line(line)) if !line["guard_ended"].is_null() || !line["events"].is_null() => {
                ended = line;
                break;
            }
            Next::Said(_, Said::Line(line)) if line["error"].is_string() => {
                return Err(format!("{line}\n{}", vm.tail()));
            }
            Next::Said(at, Said::Console(line)) => {
                let since = begun.map(|begun| at - begun);
                if line.contains("cpu-hung") && alarm.is_none() {
                    alarm = since;
                } else if line.contains("Kernel panic") && line.contains("sysrq") {
                    panic = since;
                } else if line.contains("Linux version") && begun.is_some() {
                    again = since;
                    break;
                }
            }
            Next::Said(..) => {}
            Next::Silence => break,
            Next::Gone => break,
        }
    }
    if begun.is_none() {
        return Err(format!("orbit watch --system did not begin\n{}", vm.tail()));
    }
    let seconds = |time: Option<Duration>| time.map(|time| (time.as_secs_f64() * 10.0).round() / 10.0);
    let reported = ended["events"].as_array().map_or(0, Vec::len);
    let done = match action {
        "report" => ended["guard_ended"] == 0 && reported > 0,
        "crash" => panic.is_some(),
        _ => again.is_some(),
    };
    say(&json!({
        "action": action, "kind": kind, "done": done, "alarm_s": seconds(alarm), "panic_s": seconds(panic),
        "second_boot_s": seconds(again), "events": reported, "exit": ended["guard_ended"],
    }));
    Ok(done)
}
