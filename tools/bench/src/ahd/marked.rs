//! What a section by name costs: functions on the request path of a saturated, unmodified Redis,
//! all marked at once, with the bound that the guard keeps by itself.

use super::cost::load::Clients;
use super::guarded::Guarded;
use super::scratch::{self, Scratch};
use super::{Lines, servers};
use crate::Progress;
use crate::reach::Reach;
use orbit_console::out::Failure;
use orbit_linux::pidfd;
use serde::Serialize;
use serde_json::Value;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// On the path of each request, or beside it now and then; Redis exports them all.
const FUNCTIONS: [&str; 14] = [
    "readQueryFromClient",
    "processInputBuffer",
    "processCommand",
    "call",
    "getCommand",
    "setCommand",
    "setGenericCommand",
    "lookupKey",
    "dictFind",
    "addReply",
    "dbAdd",
    "beforeSleep",
    "activeExpireCycle",
    "serverCron",
];
/// Before the load: the guard finds the functions.
const FOUND: Duration = Duration::from_secs(2);
/// A slice of load, after which the guard's reports are read.
const SLICE: Duration = Duration::from_millis(500);
/// How long a server may take to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// What all sections together may cost the program, as a guard has it by itself, percent.
const BOUND: f64 = 2.0;
/// What each of them may cost beside that, before the program has used any CPU time, ns.
const FIRST_CREDIT_NS: f64 = 1e6;

/// A shorter load says nothing about the bound: one window of each function is a large part of it.
const JUDGED: Duration = Duration::from_secs(10);

/// One function.
#[derive(Debug, Serialize)]
pub struct Row {
    pub function: String,
    /// Hits of its probes, by entries and exits.
    pub hits: u64,
    /// What a hit costs the program, nanoseconds of CPU.
    pub ns_per_hit: f64,
    /// Of the program's CPU time, percent.
    pub share_percent: f64,
    /// Times its probes were put in place.
    pub windows: u64,
    /// How they are attached here: `many at a time`, or `one by one` where the kernel has no other
    /// way.
    pub attached: &'static str,
}

/// Loads a Redis for so long.
pub fn run(span: Duration, scratch: &Scratch, lines: &mut Lines) -> Result<(), Failure> {
    if !scratch::has("redis-server") {
        lines.note("sections: redis-server is needed for those by name".to_owned());
        return Ok(());
    }
    let dir = scratch.path("marked");
    std::fs::create_dir_all(&dir)?;
    let config = dir.join("guard.toml");
    let sections: Vec<String> = FUNCTIONS.iter().map(|f| format!("\"{f}={f}\"")).collect();
    std::fs::write(&config, format!("section = [{}]\n", sections.join(", ")))?;
    let mut guard = Guarded::start(&servers::redis(&dir, &["--appendonly", "no"]), &[], Some(&config))?;
    let socket = servers::redis_socket(&dir);
    servers::wait_ready(&socket)?;
    let mut load = Clients::of_redis(&socket)?;
    let mut hangs = guard.watch(FOUND)?;
    let slices = (span.as_secs_f64() / SLICE.as_secs_f64()).ceil() as usize;
    let progress = Progress::new(slices);
    for slice in 0..slices {
        scratch::go_on()?;
        progress.at(slice, "sections by name: redis");
        load.ask(SLICE)?;
        hangs.extend(guard.watch(Duration::ZERO)?);
    }
    progress.finish();
    if let Some(reported) = hangs.first() {
        return Err(Failure::text(format!("a false alarm at a marked Redis: {}", reported.report())));
    }
    let pid = guard.pid();
    pidfd::send_signal(pidfd::open(pid)?.as_fd(), libc::SIGTERM)?;
    let cost = cost_of(&mut guard, pid)?;
    drop(guard);
    std::fs::remove_dir_all(&dir)?;
    show(&cost, span, lines);
    Ok(())
}

/// What the guard reports at the end of what the sections of a process cost.
fn cost_of(guard: &mut Guarded, pid: i32) -> Result<Vec<Value>, Failure> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let Some(reported) = guard.next(Duration::from_millis(100))? else { continue };
        if reported.event["event"] == "sections" && reported.event["pid"] == pid {
            return Ok(reported.event["sections"].as_array().cloned().unwrap_or_default());
        }
    }
    let said: Vec<&str> = guard.troubles().iter().filter_map(|t| t["text"].as_str()).collect();
    Err(Failure::text(format!("the guard did not report what sections cost; it said: {}", said.join("; "))))
}

fn show(cost: &[Value], span: Duration, lines: &mut Lines) {
    let rows: Vec<Row> = cost.iter().map(row).collect();
    let hits: u64 = rows.iter().map(|r| r.hits).sum();
    if hits == 0 {
        lines.note("sections: none by name is probed here; see orbit doctor, uprobes".to_owned());
        return;
    }
    let spent: f64 = rows.iter().map(|r| r.hits as f64 * r.ns_per_hit).sum();
    let n = rows.len();
    // All are of one process.
    let cpu_ms = cost.first().and_then(|section| section["cpu_ms"].as_f64()).unwrap_or(0.0);
    let share = (spent - FIRST_CREDIT_NS * n as f64).max(0.0) / (cpu_ms * 1e6).max(1.0) * 100.0;
    let rounded = |value: f64| (value * 100.0).round() / 100.0;
    lines.reach([Reach::at_most(
        format!("a section by uprobe, a hit, mean of {hits} at {n} functions of a saturated Redis"),
        rounded(spent / hits as f64),
        3000.0,
        "ns",
    )]);
    if span < JUDGED {
        lines.note(format!(
            "sections: what they cost beyond 1 ms each in advance is {share:.1} % of the program's CPU time so far; \
             whether that is kept below {BOUND} % shows \
             once it has run for {JUDGED:?}, without --quick"
        ));
    } else {
        lines.reach([Reach::at_most(
            "these sections' cost beyond 1 ms each in advance, of the program's CPU time".to_owned(),
            rounded(share),
            BOUND,
            "%",
        )]);
    }
    rows.into_iter().for_each(|row| lines.marked(row));
}

fn row(section: &Value) -> Row {
    let number = |field: &str| section[field].as_f64().unwrap_or(0.0);
    Row {
        function: section["function"].as_str().unwrap_or("?").to_owned(),
        hits: section["hits"].as_u64().unwrap_or(0),
        ns_per_hit: number("ns_per_hit"),
        share_percent: number("share_percent"),
        windows: section["windows"].as_u64().unwrap_or(0),
        attached: if orbit_linux::uprobes::probe().is_yes() { "many at a time" } else { "one by one" },
    }
}
