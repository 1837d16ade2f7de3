//! `orbit bench service`: the paper's experiment with a CPU service manager (section 4.3, Figures 6
//! to 8), in seven deployments that take turns, each against the same disturbance; Figure 5; and
//! the single costs.

mod child;
mod experiment;
mod load;
mod measures;
mod pingpong;

use super::plot::{Chart, Drawing, Series, Timeline};
use super::reach::Reach;
use super::stats::{Samples, Summary};
use super::{Bench, Common, Progress};
use experiment::{Deployment, Plan, Seen};
use orbit_console::out::{self, Align, BAD, Done, Failure, GOOD, PLAIN, Table};
use orbit_linux::sched;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Keeps shares of a CPU for three processes while a fourth disturbs them, by a service manager
/// deployed in seven ways; and measures what services cost.
///
/// Counts the deadlines that are missed. Then: upcalls, opening of the sandbox, aborts, dispatch,
/// calls with a growing working set, wasm, joining. Needs root and two CPUs: the programs keep the
/// last one at real-time priorities meanwhile. Times are the paper's divided by four: six minutes;
/// two with --quick; half an hour with --unscaled.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// The paper's own times: periods of 200 to 500 ms, a tick of 10 ms.
    #[arg(long)]
    unscaled: bool,
    /// Times each deployment runs [default: 5; quick: 2].
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Seconds of one run [default: 8; quick: 3; unscaled: 32].
    #[arg(long, value_name = "S")]
    seconds: Option<u64>,
    /// Of the disturbance.
    #[arg(long, default_value_t = 32)]
    seed: u64,
    /// Ten times as many samples of each cost.
    #[arg(long)]
    long: bool,
    /// Measures the costs only.
    #[arg(long, conflicts_with = "experiment_only")]
    costs_only: bool,
    /// Runs the experiment only.
    #[arg(long)]
    experiment_only: bool,
    /// Draws the paper's Figures 5 to 8 into this folder.
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
}

/// A row of either kind.
#[derive(Serialize)]
#[serde(untagged)]
enum AnyRow {
    Cost(measures::Row),
    Experiment(Row),
}

/// A measurement of ours beside the others.
#[derive(Serialize)]
struct Row {
    measure: String,
    unit: &'static str,
    ours: Option<Summary>,
    rivals: BTreeMap<&'static str, Option<Summary>>,
    reach: Option<f64>,
    met: Option<bool>,
    /// Each run: what was seen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    runs: Vec<Seen>,
}

pub fn run(args: &Args) -> Done {
    if orbit_linux::host::user() != 0 {
        return Err(Failure::text("orbit bench service sets real-time priorities and traces the kernel's ticks: run it \
            as root"));
    }
    let cpus = sched::affinity(0)?;
    let [first, .., last] = cpus[..] else {
        return Err(Failure::text("orbit bench service needs two CPUs: one for the programs, one to watch them from"));
    };
    let quick = args.common.quick;
    let scale = if args.unscaled { 1 } else { 4 };
    let rounds = args.rounds.unwrap_or(if quick { 2 } else { 5 }).max(1);
    let seconds = args.seconds.unwrap_or(if args.unscaled { 32 } else if quick { 3 } else { 8 }).max(1);
    if let Some(folder) = &args.figures {
        std::fs::create_dir_all(folder).map_err(|error| Failure::text(format!("cannot make {}: \
            {error}", folder.display())))?;
    }
    let mut bench = Bench::start("service", &args.common)?;
    sched::set_affinity(0, &[first])?;
    let counts = measures::Counts::new(quick, args.long);
    let mut found = measures::Found::default();
    if !args.experiment_only {
        let figures = costs(&mut bench, &mut found, last, counts);
        if let (Some(folder), Some([data, instructions])) = (&args.figures, figures) {
            std::fs::write(folder.join("calls-data.svg"), data.svg())?;
            std::fs::write(folder.join("calls-instructions.svg"), instructions.svg())?;
        }
    }
    load::set_priority(0, 90);
    let deployments: &[Deployment] = if args.costs_only { &[] } else { &Deployment::ALL };
    let progress = Progress::new(rounds * deployments.len());
    let mut runs: Vec<(Deployment, Vec<Seen>)> = deployments.iter().map(|of| (*of, Vec::new())).collect();
    for round in 0..rounds {
        for (nth, (deployment, seen)) in runs.iter_mut().enumerate() {
            progress.at(round * deployments.len() + nth, deployment.name());
            let plan = Plan { scale, length: Duration::from_secs(seconds), seed: args.seed + round as u64, cpu: last };
            seen.push(experiment::run(*deployment, &plan)?);
        }
    }
    progress.finish();
    load::set_priority(0, 0);
    sched::set_affinity(0, &cpus)?;
    if !args.costs_only {
        judge(&mut bench, &runs, (scale, rounds, seconds));
    }
    bench.reach(found.reaches);
    let violations = violations(&runs, scale);
    if let Some(folder) = &args.figures {
        for (deployment, seen) in &runs {
            let name = format!("shares-{}.svg", deployment.name().replace(' ', "-"));
            std::fs::write(folder.join(name), shares(*deployment, seen, scale).svg())?;
        }
        std::fs::write(folder.join("violations.svg"), violations.svg())?;
    }
    let table = table(&runs);
    let none = rate(&runs, Deployment::None).summary().map_or(0.0, |summary| summary.p50);
    let rows: Vec<AnyRow> = rows(runs, scale, none)
        .into_iter()
        .map(AnyRow::Experiment)
        .chain(found.rows.into_iter().map(AnyRow::Cost))
        .collect();
    bench.finish(&args.common, &rows, &table, violations)
}

/// Measures the costs. What could not be measured is a note.
fn costs(bench: &mut Bench, found: &mut measures::Found, cpu: usize, counts: measures::Counts) -> Option<[Chart; 2]> {
    type Cost = fn(&mut measures::Found, usize, measures::Counts) -> Result<(), Failure>;
    let all: [(&str, Cost); 7] = [
        ("upcalls", measures::upcalls),
        ("opening", measures::opening),
        ("aborts", measures::aborts),
        ("dispatch", measures::dispatch),
        ("wasm", measures::wasm),
        ("joining", measures::joining),
        ("EINTR", measures::interrupted),
    ];
    let progress = Progress::new(all.len() + 1);
    for (nth, (name, cost)) in all.into_iter().enumerate() {
        progress.at(nth, name);
        if let Err(error) = cost(found, cpu, counts) {
            bench.note(format!("{name} could not be measured: {error}"));
        }
    }
    progress.at(all.len(), "calls");
    let figures = pingpong::run(found, cpu, counts.upcalls / 10);
    progress.finish();
    figures.map_err(|error| bench.note(format!("calls with a growing working set could not be measured: {error}"))).ok()
}

/// Notes and bounds of the experiment.
fn judge(bench: &mut Bench, runs: &[(Deployment, Vec<Seen>)], (scale, rounds, seconds): (u32, usize, u64)) {
    let late = runs.iter().flat_map(|(_, seen)| seen).map(|seen| seen.observer_late_us).fold(0.0, f64::max);
    bench.note(format!("times are the paper's divided by {scale}; {rounds} rounds of {seconds} s; the observer was at \
        most {} late", out::time(late)));
    bench.note("all deployments of a round have the same disturbance; a plain process at FIFO 99 is what a kernel of \
        today offers without services".to_owned());
    let none = rate(runs, Deployment::None).summary().map_or(0.0, |summary| summary.p50);
    for deployment in [Deployment::Upcall, Deployment::Agent, Deployment::Kernel] {
        let ours = rate(runs, deployment).summary().map_or(f64::INFINITY, |summary| summary.p50);
        let share = if none > 0.0 { 100.0 * ours / none } else { f64::INFINITY };
        bench.reach([Reach::at_most(format!("deadlines missed, {} against none", deployment.name()), share, 2.0, "%")]);
    }
}

/// Deadlines missed a second, by run.
fn rate(runs: &[(Deployment, Vec<Seen>)], wanted: Deployment) -> Samples {
    let mut samples = Samples::default();
    for seen in runs.iter().filter(|(deployment, _)| *deployment == wanted).flat_map(|(_, seen)| seen) {
        samples.add_figure(seen.missed_a_second());
    }
    samples
}

/// Delays of the service, all runs.
fn delays(seen: &[Seen]) -> Samples {
    let mut samples = Samples::default();
    for service in seen.iter().filter_map(|seen| seen.service.as_ref()) {
        samples.extend(&service.delays_us);
    }
    samples
}

fn rows(runs: Vec<(Deployment, Vec<Seen>)>, scale: u32, none: f64) -> Vec<Row> {
    let rates: BTreeMap<&'static str, Option<Summary>> =
        Deployment::ALL.into_iter().map(|deployment| (deployment.name(), rate(&runs, deployment).summary())).collect();
    let mut rows = Vec::new();
    for (deployment, seen) in runs {
        let name = deployment.name();
        let is_ours = deployment.is_service();
        let ours = rates[name];
        // The paper's threads miss as many as its processes: no bound.
        let reach = (is_ours && deployment != Deployment::Thread).then_some(none * 0.02);
        let delay = delays(&seen).summary();
        rows.push(Row {
            measure: format!("missed deadlines, {name}, scale 1/{scale}"),
            unit: "a second",
            ours,
            rivals: rates.iter().filter(|(other, _)| **other != name).map(|(name, rate)| (*name, *rate)).collect(),
            met: reach.zip(ours).map(|(reach, ours)| ours.p50 <= reach),
            reach,
            runs: seen,
        });
        if is_ours {
            rows.push(Row {
                measure: format!("tick due to handler, {name}, scale 1/{scale}"),
                unit: "us",
                ours: delay,
                rivals: BTreeMap::new(),
                reach: None,
                met: None,
                runs: Vec::new(),
            });
        }
    }
    rows
}

fn table(runs: &[(Deployment, Vec<Seen>)]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("DEPLOYMENT", Left),
        ("MISSED/S", Right),
        ("WORST", Right),
        ("BY > 5 %", Right),
        ("P1", Right),
        ("P2", Right),
        ("P3", Right),
        ("DISTURB.", Right),
        ("UPCALLS", Right),
        ("CPU/RUN", Right),
    ]);
    let none = rate(runs, Deployment::None).summary().map_or(0.0, |summary| summary.p50);
    for (deployment, seen) in runs {
        let rates = rate(runs, *deployment);
        let median = rates.summary().map_or(0.0, |summary| summary.p50);
        let worst = rates.figures().iter().copied().fold(0.0, f64::max);
        let seconds: f64 = seen.iter().map(|seen| seen.seconds).sum();
        let much: u64 = seen.iter().flat_map(|seen| seen.missed_by_much).sum();
        let share = |nth: usize| {
            let shares = seen.iter().flat_map(|seen| &seen.shares);
            let (sum, n) = shares.fold((0.0, 0), |(sum, n), part| (sum + part[nth], n + 1));
            (format!("{:.1} %", 100.0 * sum / f64::from(n.max(1))), PLAIN)
        };
        let services: Vec<_> = seen.iter().filter_map(|seen| seen.service.as_ref()).collect();
        let (upcalls, runs_of) = services.iter().fold((0, 0), |(u, r), of| (u + of.upcalls, r + of.runs));
        let cost = services.iter().map(|service| service.cpu_us_a_run).fold(0.0, f64::max);
        let colour = match median <= none * 0.02 {
            true => GOOD,
            false if services.is_empty() => PLAIN,
            false => BAD,
        };
        let of = |text: String| if services.is_empty() { (String::new(), PLAIN) } else { (text, PLAIN) };
        table.row(vec![
            (deployment.name().to_owned(), PLAIN),
            (out::figures(median), colour),
            (out::figures(worst), PLAIN),
            (out::figures(much as f64 / seconds.max(1e-9)), PLAIN),
            share(0),
            share(1),
            share(2),
            share(3),
            of(format!("{upcalls} of {runs_of}")),
            of(out::time(cost)),
        ]);
    }
    table
}

/// Figure 8: deadlines missed a second over time, all rounds together.
fn violations(runs: &[(Deployment, Vec<Seen>)], scale: u32) -> Timeline {
    let series = runs.iter().map(|(deployment, seen)| {
        let length = seen.iter().map(|seen| seen.missed_over_time.len()).min().unwrap_or(0);
        let points = (0..length).map(|nth| {
            let interval = seen[0].interval_s;
            let missed: u64 = seen.iter().map(|seen| seen.missed_over_time[nth]).sum();
            ((nth + 1) as f64 * interval, missed as f64 / seen.len() as f64 / interval)
        });
        Series::over_time(deployment.name(), points.collect())
    });
    Timeline {
        title: format!("Deadlines missed (the paper's Figure 8), times divided by {scale}"),
        x: "seconds".to_owned(),
        y: "missed a second, mean of all rounds".to_owned(),
        series: series.collect(),
        top: 1.0,
    }
}

/// Figures 6 and 7: shares over time in the first round.
fn shares(deployment: Deployment, seen: &[Seen], scale: u32) -> Timeline {
    let names = ["P1: 10 %", "P2: 20 %", "P3: 30 %", "disturbance"];
    let series = names.iter().enumerate().map(|(nth, name)| {
        let points = seen.first().map(|seen| {
            let parts = seen.shares.iter().enumerate();
            parts.map(|(at, part)| ((at + 1) as f64 * seen.interval_s, 100.0 * part[nth])).collect()
        });
        Series::over_time(name, points.unwrap_or_default())
    });
    Timeline {
        title: format!("Shares of the CPU, {} (the paper's Figures 6 and 7), times divided by \
            {scale}", deployment.name()),
        x: "seconds".to_owned(),
        y: "% of the CPU".to_owned(),
        series: series.collect(),
        top: 100.0,
    }
}
