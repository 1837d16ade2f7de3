//! Runs a program under `orbit keep` and returns what its events say.

use orbit_console::out::Failure;
use orbit_linux::child::Exit;
use serde_json::Value;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// What the exit event of a keeper says.
pub struct Figures {
    pub checkpoints: f64,
    /// In us.
    pub pause_p50: f64,
    /// In us: the first checkpoint copies all memory, and with less than a hundred it is the 99th
    /// percentile.
    pub pause_longest: f64,
    pub pages: f64,
    pub held_bytes: f64,
}

/// All events of a run.
pub fn events(options: &[&str], program: &[OsString]) -> Result<Vec<Value>, Failure> {
    let mut keeper = Command::new(crate::orbit_command()?)
        .args(["keep", "--quiet", "--events", "-"])
        .args(options)
        .arg("--")
        .args(program)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let out = keeper.stdout.take().ok_or_else(|| failed("no output of the keeper"))?;
    let lines = BufReader::new(out).lines().map_while(Result::ok);
    let events = lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok()).collect();
    keeper.wait_for_exit()?;
    Ok(events)
}

/// The figures of a run with at least three checkpoints.
pub fn figures(options: &[&str], program: &[OsString]) -> Result<Figures, Failure> {
    let events = events(options, program)?;
    of(&events).ok_or_else(|| failed("fewer than three checkpoints were taken: try `orbit keep -- sleep 3`"))
}

/// The figures in these events.
pub fn of(events: &[Value]) -> Option<Figures> {
    of_exit(events.iter().rfind(|event| event["event"] == "exited")?)
}

/// The figures of one of a family.
pub fn of_process(events: &[Value], pid: i32) -> Option<Figures> {
    of_exit(events.iter().find(|event| event["event"] == "exited" && event["pid"] == pid)?)
}

fn of_exit(event: &Value) -> Option<Figures> {
    let exit = &event["figures"];
    let of = |name: &str| exit[name].as_f64();
    let figures = Figures {
        checkpoints: of("checkpoints")?,
        pause_p50: of("pause_p50_us")?,
        pause_longest: of("pause_p99_us")?,
        pages: of("pages")?,
        held_bytes: of("held_bytes")?,
    };
    (figures.checkpoints >= 3.0).then_some(figures)
}

pub fn failed(what: &str) -> Failure {
    Failure::text(format!("bench keep: {what}"))
}
