//! `orbit bench keep`: what `orbit keep` costs, and what it is worth, beside its rivals: a shadow
//! made by fork, a restart, a dump of all memory, CRIU.
//!
//! Each round is a keeper of its own, whose events have the figures. Cases take turns.

mod cost;
mod kept;
mod modules;
mod pins;
mod redis;
mod server;
mod subject;

use super::plot::{Chart, Series};
use super::reach::Reach;
use super::row::Measured;
use super::stats::{Samples, Summary, median};
use super::{Bench, Common, Progress};
use orbit_console::out::{self, Align, PLAIN, Table};
use serde::Serialize;

/// Measures `orbit keep`: pauses, rollback, memory, cost for gzip and Redis, and the RMK paper's
/// Tables 8 and 9.
///
/// gzip, redis-server with redis-benchmark, and apache2 with ab are measured where they are
/// installed. About two minutes with --quick.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Runs a subject of the bench: its name, MiB held, percent of it written, milliseconds to run.
    #[arg(long, hide = true, num_args = 4, value_names = ["NAME", "MIB", "PERCENT", "MS"])]
    subject: Option<Vec<String>>,
}

/// MiB held, percent written, and the bound in us.
const PAUSES: [(u64, u64, Option<f64>); 4] =
    [(256, 1, Some(600.0)), (256, 20, Some(6_000.0)), (64, 1, None), (64, 20, None)];

/// What a row has beside the shared fields; each row has some of it.
#[derive(Default, Serialize)]
struct Own {
    #[serde(skip_serializing_if = "Option::is_none")]
    resident_mib: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    written_percent: Option<u64>,
    /// Of a table of the paper: what the columns of ours and of the paper are.
    #[serde(skip_serializing_if = "Option::is_none")]
    columns: Option<serde_json::Value>,
}

/// Rows, their table, and their bounds.
struct Results {
    rows: Vec<Measured<Own>>,
    table: Table,
    reaches: Vec<Reach>,
}

impl Results {
    /// Adds a row; `rivals` by name, `limit` in `unit`.
    fn add(
        &mut self,
        name: &str,
        unit: &'static str,
        ours: Option<Summary>,
        rivals: &[(&'static str, Option<Summary>)],
        limit: Option<f64>,
        own: Own,
    ) {
        let beside: Vec<String> = rivals
            .iter()
            .filter_map(|(name, figure)| Some(format!("{name} {}", out::figures(figure.as_ref()?.p50))))
            .collect();
        let cells = [name.to_owned(), out::figures(median(ours)), unit.to_owned(), beside.join(", ")];
        self.table.row(cells.map(|cell| (cell, PLAIN)).into());
        // A figure that was not taken keeps no bound.
        let bound = limit.filter(|_| ours.is_some()).map(|limit| Reach::at_most(name, median(ours), limit, unit));
        let row = Measured::new(name, unit, own).ours(ours).reach(bound.as_slice());
        self.rows.push(rivals.iter().fold(row, |row, (name, figure)| row.rival(name, *figure)));
        self.reaches.extend(bound);
    }
}

pub fn run(args: &Args) -> out::Done {
    if let Some(subject) = &args.subject {
        return subject::run(subject);
    }
    let quick = args.common.quick;
    let mut bench = Bench::start("keep", &args.common)?;
    bench.note(criu());
    let (left, right) = (Align::Left, Align::Right);
    let table = Table::new(&[("KEEP", left), ("MEDIAN", right), ("UNIT", left), ("RIVALS", left)]);
    let mut results = Results { rows: Vec::new(), table, reaches: Vec::new() };
    let pauses = pauses(if quick { 2 } else { 9 }, &mut results)?;
    rollback(if quick { 2 } else { 9 }, &mut results)?;
    pins::pages(&mut results, &mut bench)?;
    // A figure of its own: without it the others still stand.
    if let Err(failure) = modules::rows(if quick { 2 } else { 9 }, &mut results, &mut bench) {
        bench.note(format!("through pins and by modules: not measured: {failure}"));
    }
    cost::gzip(if quick { 2 } else { 7 }, &mut results, &mut bench)?;
    redis::cost(if quick { 9 } else { 41 }, &mut results, &mut bench)?;
    server::apache(if quick { 2 } else { 7 }, &mut results, &mut bench)?;
    bench.reach(std::mem::take(&mut results.reaches));
    let points = |of: u64| {
        let cases = PAUSES.iter().zip(&pauses).filter(|((mib, ..), _)| *mib == of);
        cases.map(|((_, percent, _), pause)| (*percent as f64, median(*pause))).collect()
    };
    let chart = Chart {
        title: "Pause of a checkpoint".to_owned(),
        x: "percent written".to_owned(),
        y: "us".to_owned(),
        series: vec![Series::new("256 MiB", points(256)), Series::new("64 MiB", points(64))],
    };
    bench.finish(&args.common, &results.rows, &results.table, chart)
}

/// Pauses and the memory that is held, beside the pause of a fork of the same program.
fn pauses(rounds: usize, results: &mut Results) -> Result<Vec<Option<Summary>>, out::Failure> {
    let mut ours: Vec<Samples> = PAUSES.iter().map(|_| Samples::default()).collect();
    let (mut forks, mut dumps, mut held) = (ours.clone(), ours.clone(), ours.clone());
    let progress = Progress::new(rounds * PAUSES.len());
    for round in 0..rounds {
        for (nth, (mib, percent, _)) in PAUSES.iter().enumerate() {
            progress.at(round * PAUSES.len() + nth, &format!("pause, {mib} MiB, {percent} %"));
            let figures = kept::figures(&["--every", "100ms"], &subject::command("write", *mib, *percent, 2500)?)?;
            ours[nth].add_figure(figures.pause_p50);
            dumps[nth].add_figure(figures.pause_longest);
            held[nth].add_figure(figures.held_bytes / f64::from(1 << 20));
            forks[nth].extend(&subject::forks(*mib)?);
        }
    }
    progress.finish();
    let summaries: Vec<Option<Summary>> = ours.iter().map(Samples::summary).collect();
    for (nth, (mib, percent, limit)) in PAUSES.iter().enumerate() {
        let own = || Own { resident_mib: Some(*mib), written_percent: Some(*percent), ..Own::default() };
        let rivals = [("fork", forks[nth].summary()), ("all memory", dumps[nth].summary())];
        let name = format!("pause, {mib} MiB resident, {percent} % written");
        results.add(&name, "us", summaries[nth], &rivals, *limit, own());
    }
    // Four checkpoints beside the newest: each holds what the next one has replaced.
    let bound = |mib: u64, percent: u64| (mib + 4 * mib * percent / 100 + 8) as f64;
    for (nth, (mib, percent, _)) in PAUSES.iter().enumerate().take(2) {
        let own = Own { resident_mib: Some(*mib), written_percent: Some(*percent), ..Own::default() };
        let name = format!("memory held, {mib} MiB resident, {percent} % written");
        results.add(&name, "MiB", held[nth].summary(), &[], Some(bound(*mib, *percent)), own);
    }
    Ok(summaries)
}

fn rollback(rounds: usize, results: &mut Results) -> Result<(), out::Failure> {
    let mut stopped = Samples::default();
    let progress = Progress::new(rounds);
    for round in 0..rounds {
        progress.at(round, "rollback");
        let options = ["--every", "100ms", "--ladder", "newest", "--state", "best-effort", "--allow-repeats"];
        let events = kept::events(&options, &subject::command("crash", 64, 1, 2500)?)?;
        let figures: Vec<f64> = events
            .iter()
            .filter(|event| event["event"] == "recovered")
            .filter_map(|event| event["stopped_ms"].as_f64())
            .collect();
        stopped.extend(&figures);
    }
    progress.finish();
    let own = Own { resident_mib: Some(64), written_percent: Some(1), ..Own::default() };
    results.add("rollback, 64 MiB resident, 1 % written", "ms", stopped.summary(), &[], Some(1.0), own);
    Ok(())
}

/// Why CRIU is no rival here, or that it could be one.
fn criu() -> String {
    let checked = std::process::Command::new("criu").arg("check").output();
    match checked {
        Err(_) => "CRIU is not installed, so it is not measured (Debian: apt-get install criu)".to_owned(),
        Ok(done) => {
            let text = String::from_utf8_lossy(&done.stderr).into_owned() + &String::from_utf8_lossy(&done.stdout);
            let error = text.lines().find(|line| line.contains("Error") && !line.contains("exited"));
            let why = error.or(text.lines().last()).unwrap_or("").trim();
            match done.status.success() {
                true => "CRIU is installed and would run; its freeze is not measured by this bench".to_owned(),
                false => format!("CRIU does not run here, so it is not measured: {why}"),
            }
        }
    }
}
