//! Parts that inspect a program of the bench's own: false rings, stops, and the price of a mark in
//! source.

use super::Lines;
use super::hangs::Latency;
use super::scratch::{self, Scratch};
use crate::Progress;
use crate::reach::Reach;
use orbit_console::out::Failure;
use orbit_inspect::rings::RingWatch;
use orbit_inspect::stacks::Unwinder;
use orbit_linux::child::Exit;
use serde::Serialize;
use orbit_linux::stat::Stat;
use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Threads of the hung program.
const HUNG: usize = 20;
/// Threads of the healthy one.
const HEALTHY: usize = 8;

/// Scans of a healthy program.
#[derive(Debug, Serialize)]
pub struct RingRow {
    pub scans: usize,
    /// Rings reported.
    pub reported: usize,
    /// Rings seen in one sample and not confirmed by the second.
    pub seen_once: u64,
}

/// How long a hung program stands still for its stacks.
#[derive(Debug, Serialize)]
pub struct StopRow {
    pub by: &'static str,
    pub threads: usize,
    /// All threads' stops added up (of the rival: the time in which a thread was seen stopped),
    /// milliseconds.
    pub stopped_ms: Option<Latency>,
}

/// The price of entering and leaving a section.
#[derive(Debug, Serialize)]
pub struct SectionRow {
    pub mark: &'static str,
    pub pairs: usize,
    /// Median, least and most of several runs.
    pub pair_ns: [f64; 3],
}

/// A program of `c/victim.c`, killed at the end.
struct Victim(Child);

impl Victim {
    fn start(program: &Path, how: &str, threads: usize) -> Result<Victim, Failure> {
        let mut child = Command::new(program)
            .args([how, &threads.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take();
        let victim = Victim(child);
        let mut line = String::new();
        if let Some(stdout) = stdout {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line == "ready\n" { Ok(victim) } else { Err(Failure::text("the program to inspect did not begin")) }
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait_for_exit();
    }
}

fn compile(scratch: &Scratch) -> Result<std::path::PathBuf, Failure> {
    scratch.compile("victim", include_str!("c/victim.c"), &[])
}

/// Scans a healthy program so many times.
pub fn rings(scans: usize, scratch: &Scratch, lines: &mut Lines) -> Result<(), Failure> {
    let victim = Victim::start(&compile(scratch)?, "healthy", HEALTHY)?;
    let mut watch = RingWatch::new(&[victim.pid()]).map_err(|error| Failure::text(error.to_string()))?;
    let progress = Progress::new(scans);
    let mut reported = 0;
    for nth in 0..scans {
        if nth.is_multiple_of(1000) {
            scratch::go_on()?;
            progress.at(nth, "rings: scans at a healthy program");
        }
        for ring in watch.scan() {
            reported += 1;
            lines.note(format!("FALSE RING: scan {nth}: {ring}"));
        }
    }
    progress.finish();
    lines.reach([Reach::at_most(format!("false rings in {scans} scans"), reported as f64, 0.0, "rings")]);
    lines.rings(RingRow { scans, reported, seen_once: watch.suspected() });
    Ok(())
}

/// Takes the stacks of a hung program so many times.
pub fn stops(times: usize, scratch: &Scratch, lines: &mut Lines) -> Result<(), Failure> {
    let text = |error: orbit_inspect::Error| Failure::text(error.to_string());
    let victim = Victim::start(&compile(scratch)?, "hung", HUNG)?;
    let mut unwinder = Unwinder::new(victim.pid()).map_err(text)?;
    unwinder.prepare().map_err(text)?;
    let mut samples = Vec::new();
    for _ in 0..times {
        scratch::go_on()?;
        let stacks = unwinder.capture(&[]);
        if stacks.len() == HUNG {
            samples.push(to_ms(unwinder.stopped()));
        }
    }
    let stopped = Latency::of(&mut samples);
    if let Some(stopped) = stopped {
        let what = format!("stop for the stacks of {HUNG} threads, p50, n={}", stopped.n);
        lines.reach([Reach::at_most(what, stopped.p50, 10.0, "ms")]);
    }
    lines.stops(StopRow { by: "orbit", threads: HUNG, stopped_ms: stopped });
    if !scratch::has("gdb") {
        lines.note("stops: gdb is not installed, so there is no rival".to_owned());
        return Ok(());
    }
    let mut samples = Vec::new();
    for _ in 0..times.div_ceil(10) {
        scratch::go_on()?;
        samples.extend(gdb(victim.pid())?);
    }
    if samples.is_empty() {
        lines.note("stops: gdb was never seen to stop the program".to_owned());
    }
    lines.stops(StopRow { by: "gdb", threads: HUNG, stopped_ms: Latency::of(&mut samples) });
    Ok(())
}

fn to_ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// From the first to the last time that the program was seen stopped while gdb took its stacks.
fn gdb(pid: i32) -> Result<Option<f64>, Failure> {
    let mut gdb = Command::new("gdb")
        .args(["-nx", "-batch", "-ex", "thread apply all bt", "-p", &pid.to_string()])
        .env("DEBUGINFOD_URLS", "")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let (mut first, mut last) = (None, None);
    while gdb.exited()?.is_none() {
        if Stat::of(pid)?.state == 't' {
            last = Some(Instant::now());
            first = first.or(last);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(first.zip(last).map(|(first, last)| to_ms(last - first)))
}

/// Times a mark in source.
pub fn sections(pairs: usize, lines: &mut Lines) -> Result<(), Failure> {
    static SECTION: orbit_section::Section = orbit_section::section!("bench");
    let mut samples: Vec<f64> = (0..11)
        .map(|_| {
            let begun = Instant::now();
            for _ in 0..pairs {
                drop(black_box(orbit_section::enter(black_box(&SECTION))));
            }
            begun.elapsed().as_nanos() as f64 / pairs as f64
        })
        .collect();
    scratch::go_on()?;
    samples.sort_by(f64::total_cmp);
    let [median, least, most] = [samples[5], samples[0], samples[10]].map(|ns| (ns * 100.0).round() / 100.0);
    lines.reach([Reach::at_most("a section in source, entered and left, median of 11", median, 10.0, "ns")]);
    lines.sections(SectionRow { mark: "in source", pairs, pair_ns: [median, least, most] });
    Ok(())
}
