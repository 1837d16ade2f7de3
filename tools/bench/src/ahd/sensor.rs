//! What the guard itself uses beside many threads: all asleep for a job, and a tenth of them at
//! work ten times a second.

use super::Lines;
use super::guarded::Guarded;
use super::scratch::{self, Scratch};
use crate::reach::Reach;
use orbit_console::out::Failure;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Threads, and what the guard may use beside them, percent of a CPU.
const SIZES: [(usize, f64); 2] = [(100, 1.0), (1000, 3.0)];
/// Before it is measured, the guard meets them all.
const MET: Duration = Duration::from_secs(4);

/// One program.
#[derive(Debug, Serialize)]
pub struct Row {
    pub what: String,
    pub threads: usize,
    pub cpu_percent: f64,
}

/// Measures each for so long.
pub fn run(span: Duration, scratch: &Scratch, lines: &mut Lines) -> Result<(), Failure> {
    let program = scratch.compile("threads", include_str!("c/threads.c"), &["-pthread"])?;
    for (threads, most) in SIZES {
        for (restless, how) in [(0, "all asleep"), (threads / 10, "a tenth at work ten times a second")] {
            let numbers = [threads, restless].map(|n| n.to_string());
            let command = [program.as_os_str(), numbers[0].as_ref(), numbers[1].as_ref()];
            let mut guard = Guarded::start(&command, &[], None)?;
            let mut reported = guard.watch(MET)?;
            let (begun, before) = (Instant::now(), guard.cpu_ns());
            while begun.elapsed() < span {
                scratch::go_on()?;
                reported.extend(guard.watch(Duration::from_millis(200))?);
            }
            let used = guard.cpu_ns().saturating_sub(before) as f64;
            let cpu_percent = (used * 1e4 / begun.elapsed().as_nanos() as f64).round() / 100.0;
            if let Some(reported) = reported.first() {
                return Err(Failure::text(format!("a false alarm beside {threads} threads: {}", reported.report())));
            }
            let what = format!("{threads} threads, {how}");
            lines.reach([Reach::at_most(format!("the guard's CPU, {what}"), cpu_percent, most, "%")]);
            lines.sensor(Row { what, threads, cpu_percent });
        }
    }
    Ok(())
}
