//! Faults at random: boots a machine, has it try faults until one breaks it, boots the next; counts
//! what came of them.
//!
//! Line `fault` one each; at last `faults`: how many had which outcome. What a machine cannot
//! report itself is seen here: a panic, and every CPU hung (no sign of life).

use super::{BOOT, Failed, Next, Parts, Said, Vm, every::SILENCE, say};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Silence that no busy host explains.
const DEAD: Duration = SILENCE.saturating_mul(15);

#[derive(Default)]
struct Sum {
    outcomes: BTreeMap<String, usize>,
    hangs: usize,
    found: usize,
    latencies: Vec<u64>,
    all_hung: usize,
    alarms_without_hang: usize,
    longest_ms: u64,
    boots: usize,
}

pub fn run(parts: &Parts, seed: u64, first: usize, count: usize) -> Result<bool, Failed> {
    let (mut sum, mut tried) = (Sum::default(), 0);
    while tried < count {
        sum.boots += 1;
        machine(parts, seed, first + tried, count - tried, &mut sum)?;
        let before = std::mem::replace(&mut tried, sum.outcomes.values().sum());
        if tried == before {
            return Err(format!("no fault was tried in a whole boot, at fault {}", first + tried));
        }
    }
    sum.latencies.sort_unstable();
    say(&json!({"faults": {
        "seed": seed, "first": first, "count": count, "boots": sum.boots, "outcomes": sum.outcomes,
        "hangs": sum.hangs, "found": sum.found,
        "p50_ms": sum.latencies.get(sum.latencies.len() / 2), "max_ms": sum.latencies.last(),
        "every_cpu_hung": sum.all_hung, "alarms_without_hang": sum.alarms_without_hang,
        "longest_such_stall_ms": sum.longest_ms,
    }}));
    Ok(sum.hangs == sum.found)
}

/// One boot: as many faults as it can take.
fn machine(parts: &Parts, seed: u64, first: usize, count: usize, sum: &mut Sum) -> Result<(), Failed> {
    let mut vm = Vm::boot(parts, "faults", &format!("faults {seed} {first} {count}"), "loglevel=4 nowatchdog", false)?;
    let (mut fault, mut alive, mut reported) = (Value::Null, Instant::now() + BOOT, 0);
    let mut panic = Value::Null;
    let end = loop {
        match vm.next(alive + DEAD) {
            Next::Said(at, said) => match said {
                Said::Beat => alive = alive.max(at),
                Said::Console(line) if line.contains("Kernel panic") && panic.is_null() => panic = line.into(),
                Said::Console(_) => {}
                Said::Line(line) => {
                    if line["at"].is_string() {
                        (fault, reported, alive) = (line, 0, at);
                    } else if line["event"] == "cpu-hung" {
                        reported += 1;
                    } else if line["outcome"].is_string() {
                        let hang = line["outcome"] == "hang";
                        count_one(sum, &fault, &line);
                        fault = Value::Null;
                        if hang {
                            break None;
                        }
                    } else if let Some(ms) = line["longest_stall_ms"].as_u64() {
                        sum.longest_ms = sum.longest_ms.max(ms);
                    } else if line["part"] == "ended" {
                        break None;
                    } else if line["error"].is_string() {
                        return Err(format!("{line}\n{}", vm.tail()));
                    }
                }
            },
            Next::Silence => break Some("every-cpu-hung"),
            Next::Gone => break Some(if panic.is_null() { "ended" } else { "panic" }),
        }
    };
    // It may have ended in the middle of one.
    if let (Some(how), true) = (end, fault.is_object()) {
        sum.all_hung += usize::from(how == "every-cpu-hung");
        count_one(sum, &fault, &json!({"outcome": how, "alarms": reported, "console": panic}));
    }
    Ok(())
}

fn count_one(sum: &mut Sum, fault: &Value, outcome: &Value) {
    let how = outcome["outcome"].as_str().unwrap_or("?");
    let name = match outcome["exception"].as_str() {
        Some(what) if how == "exception" => format!("{how}: {what}"),
        _ => how.to_owned(),
    };
    *sum.outcomes.entry(name).or_default() += 1;
    if how == "hang" {
        sum.hangs += 1;
        sum.found += usize::from(outcome["found"] == true);
        sum.latencies.extend(outcome["latency_ms"].as_u64());
    } else if how != "every-cpu-hung" && how != "panic" {
        sum.alarms_without_hang += outcome["alarms"].as_u64().unwrap_or(0) as usize;
    }
    let mut line = fault.clone();
    if let (Some(line), Some(outcome)) = (line.as_object_mut(), outcome.as_object()) {
        line.extend(outcome.iter().map(|(name, value)| (name.clone(), value.clone())));
    }
    say(&line);
}
