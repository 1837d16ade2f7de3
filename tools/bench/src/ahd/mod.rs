//! `orbit bench ahd`: how well and how soon hangs of programs are found, which reports are false,
//! and what the watching costs.
//!
//! All of it with the guard as a user runs it, against unmodified servers. Owns: the parts, their
//! order, and what is shown.

mod alarms;
mod cost;
mod guarded;
mod hangs;
mod marked;
mod order;
mod places;
mod recorded;
pub mod scratch;
mod sensor;
mod servers;
mod talk;
mod victim;
mod watchdog;

use super::plot::{Chart, Series};
use super::reach::Reach;
use super::row::Measured;
use super::stats::Summary;
use super::{Bench, Common};
use orbit_console::out::{self, Align, BAD, Failure, GOOD, PLAIN, Table};
use scratch::Scratch;
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Measures the detection of application hangs: found, false alarms, latencies, costs.
///
/// hangs: threads of Redis, nginx and --program are made to hang, in eight ways at some thirty
/// places; beside a heartbeat watchdog as systemd has it. spins: endless loops, with limits of 0.2,
/// 0.5, 1 and 5 s. alarms: healthy servers under changing
/// load, and stress-ng. cost: CPU a request with and without the guard. sensor: the guard's own CPU
/// beside 100 and 1,000 threads. recorded: all recordings of this source tree, with several limits.
/// rings: scans of a healthy program that contends for its locks. stops: how long a hung program is
/// stopped for its stacks. sections: a mark in source, and functions of a saturated Redis by name.
/// Needs cc; and redis-server, nginx, stress-ng, gdb for what is done with them. Without --quick:
/// hangs 50 to 70 minutes, alarms 40, cost 12, the others 3.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Only this part; may be given several times.
    #[arg(long, value_name = "PART")]
    part: Vec<Part>,
    /// Hangs to inject [default: 240, with --quick 24].
    #[arg(long, value_name = "N")]
    runs: Option<usize>,
    /// The guard's limit where hangs are injected [default: 1s].
    #[arg(long, value_name = "SECONDS", value_parser = orbit_watch::replay::limit)]
    limit: Option<f64>,
    /// Rounds of requests to healthy servers [default: 2000, with --quick 40].
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Minutes of stress-ng; 0 for none [default: 30, with --quick 0.1].
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,
    /// Rounds of the cost, 1.6 s each for each server [default: 200, with --quick 16].
    #[arg(long, value_name = "N")]
    cost_rounds: Option<usize>,
    /// A further program to hang, with its arguments in the same word; may be given several times.
    #[arg(long, value_name = "COMMAND")]
    program: Vec<String>,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Recorded,
    Rings,
    Stops,
    Sections,
    Hangs,
    Spins,
    Cost,
    Sensor,
    Alarms,
}

/// One row of the result.
#[derive(Serialize)]
#[serde(tag = "part", rename_all = "snake_case")]
enum Row {
    /// Hangs of one kind.
    Hangs(hangs::Row),
    /// Hangs at one place.
    Places(hangs::Row),
    /// What a heartbeat saw.
    Watchdog(hangs::RivalRow),
    Alarms(alarms::Row),
    Cost(cost::Row),
    Sensor(sensor::Row),
    Recorded(recorded::Row),
    Rings(victim::RingRow),
    Stops(victim::StopRow),
    Sections(victim::SectionRow),
    /// A function that is a section by name.
    Marked(marked::Row),
}

/// What the parts found.
pub struct Lines {
    bench: Bench,
    rows: Vec<Row>,
    series: Vec<Series>,
}

impl Lines {
    fn note(&mut self, note: String) {
        self.bench.note(note);
    }

    /// A note that is printed at once as well: a long run may be ended before its result.
    fn note_at_once(&mut self, note: String) {
        // With stderr closed there is no reader.
        let _ = writeln!(anstream::stderr(), "\r{note}");
        self.note(note);
    }

    fn reach(&mut self, all: impl IntoIterator<Item = Reach>) {
        self.bench.reach(all);
    }

    fn series(&mut self, series: Series) {
        self.series.push(series);
    }

    fn hangs(&mut self, row: hangs::Row) {
        self.rows.push(Row::Hangs(row));
    }

    fn place(&mut self, row: hangs::Row) {
        self.rows.push(Row::Places(row));
    }

    fn rival(&mut self, row: hangs::RivalRow) {
        self.rows.push(Row::Watchdog(row));
    }

    fn alarms(&mut self, row: alarms::Row) {
        self.rows.push(Row::Alarms(row));
    }

    fn cost(&mut self, row: cost::Row) {
        self.rows.push(Row::Cost(row));
    }

    fn sensor(&mut self, row: sensor::Row) {
        self.rows.push(Row::Sensor(row));
    }

    fn recorded(&mut self, row: recorded::Row) {
        self.rows.push(Row::Recorded(row));
    }

    fn rings(&mut self, row: victim::RingRow) {
        self.rows.push(Row::Rings(row));
    }

    fn stops(&mut self, row: victim::StopRow) {
        self.rows.push(Row::Stops(row));
    }

    fn sections(&mut self, row: victim::SectionRow) {
        self.rows.push(Row::Sections(row));
    }

    fn marked(&mut self, row: marked::Row) {
        self.rows.push(Row::Marked(row));
    }

    fn hang_rows(&self) -> Vec<&hangs::Row> {
        self.rows.iter().filter_map(|row| if let Row::Hangs(row) = row { Some(row) } else { None }).collect()
    }
}

pub fn run(args: &Args) -> out::Done {
    let mut lines = Lines { bench: Bench::start("ahd", &args.common)?, rows: Vec::new(), series: Vec::new() };
    scratch::catch_signals();
    // What was found before a part failed is shown all the same.
    let ended = parts(args, &Scratch::new()?, &mut lines);
    if let Err(e) = &ended
        && !lines.rows.is_empty()
    {
        lines.note(format!("ended early: {e}"));
    }
    let chart = Chart {
        title: "From the hang to its report".to_owned(),
        x: "runs, percent".to_owned(),
        y: "milliseconds".to_owned(),
        series: std::mem::take(&mut lines.series),
    };
    if lines.rows.is_empty() {
        ended?;
        return Ok(ExitCode::SUCCESS);
    }
    let table = table(&lines.rows);
    let rows: Vec<_> = std::mem::take(&mut lines.rows).into_iter().map(measured).collect();
    let shown = lines.bench.finish(&args.common, &rows, &table, chart);
    ended.and(shown)
}

/// The parts that are wanted, in turn.
fn parts(args: &Args, scratch: &Scratch, lines: &mut Lines) -> Result<(), Failure> {
    let quick = args.common.quick;
    let wanted = |part| args.part.is_empty() || args.part.contains(&part);
    if wanted(Part::Recorded) {
        recorded::run(lines)?;
    }
    if wanted(Part::Rings) {
        victim::rings(if quick { 2_000 } else { 100_000 }, scratch, lines)?;
    }
    if wanted(Part::Stops) {
        victim::stops(if quick { 11 } else { 101 }, scratch, lines)?;
    }
    if wanted(Part::Sections) {
        victim::sections(if quick { 200_000 } else { 5_000_000 }, lines)?;
        marked::run(Duration::from_secs(if quick { 2 } else { 20 }), scratch, lines)?;
    }
    if wanted(Part::Hangs) {
        let wanted = hangs::Wanted {
            runs: args.runs.unwrap_or(if quick { 24 } else { 240 }),
            rival_every: if quick { 8 } else { 20 },
            rival_allows: Duration::from_secs(if quick { 2 } else { 10 }),
            programs: &args.program,
            limit_ms: (args.limit.unwrap_or(1.0) * 1e3) as u64,
        };
        hangs::run(&wanted, scratch, lines)?;
    }
    if wanted(Part::Spins) {
        hangs::spins(if quick { 3 } else { 20 }, scratch, lines)?;
    }
    if wanted(Part::Cost) {
        cost::run(args.cost_rounds.unwrap_or(if quick { 16 } else { 200 }), scratch, lines)?;
    }
    if wanted(Part::Sensor) {
        sensor::run(Duration::from_secs(if quick { 5 } else { 30 }), scratch, lines)?;
    }
    if wanted(Part::Alarms) {
        alarms::rounds(args.rounds.unwrap_or(if quick { 40 } else { 2000 }), scratch, lines)?;
        let minutes = args.minutes.unwrap_or(if quick { 0.1 } else { 30.0 });
        if minutes > 0.0 {
            alarms::stress(Duration::from_secs_f64(minutes * 60.0), scratch, lines)?;
        }
    }
    Ok(())
}

/// The row in the form that all benches share.
fn measured(row: Row) -> Measured<Row> {
    let cells = cells(&row);
    let what = format!("{}: {}", cells.part, cells.what);
    let latency = |of: Option<hangs::Latency>| of.map(|l| Summary { p50: l.p50, p99: l.p99, n: l.n });
    let once = |figure: f64, n: usize| Some(Summary { p50: figure, p99: figure, n });
    let (unit, ours, rival) = match &row {
        Row::Hangs(row) | Row::Places(row) => ("ms", latency(row.latency_ms), None),
        Row::Watchdog(row) => ("ms", latency(row.guard_latency_ms), latency(row.latency_ms)),
        Row::Alarms(row) => ("reports", once(row.false_alarms as f64, row.rounds), None),
        Row::Cost(row) => ("times", once(row.server_ratio[1], row.n), once(row.null_ratio[1], row.n)),
        Row::Sensor(row) => ("% of a CPU", once(row.cpu_percent, row.threads), None),
        Row::Recorded(row) => ("s", row.delay_s, None),
        Row::Rings(row) => ("rings", once(row.reported as f64, row.scans), None),
        Row::Stops(row) => ("ms", latency(row.stopped_ms), None),
        Row::Sections(row) => ("ns", once(row.pair_ns[0], row.pairs), None),
        Row::Marked(row) => ("ns", once(row.ns_per_hit, cells.n), None),
    };
    let name = if matches!(row, Row::Cost(_)) { "no detector, twice" } else { "heartbeat" };
    Measured::new(what, unit, row).ours(ours).rival(name, rival)
}

fn table(rows: &[Row]) -> Table {
    use Align::{Left, Right};
    let mut table =
        Table::new(&[("PART", Left), ("WHAT", Left), ("N", Right), ("RESULT", Left), ("P50/P99/MAX", Right)]);
    for row in rows {
        let cells = cells(row);
        let style = if cells.good { GOOD } else { BAD };
        let plain = [cells.part.to_owned(), cells.what, cells.n.to_string()].map(|cell| (cell, PLAIN));
        table.row(plain.into_iter().chain([(cells.result, style), (cells.times, PLAIN)]).collect());
    }
    table
}

/// A line of the table.
struct Cells {
    part: &'static str,
    what: String,
    n: usize,
    result: String,
    good: bool,
    times: String,
}

fn cells(row: &Row) -> Cells {
    let good = true;
    match row {
        Row::Hangs(row) => hang_cells("hangs", row),
        Row::Places(row) => hang_cells("place", row),
        Row::Watchdog(row) => {
            let guard = row.guard_latency_ms.map_or("-".to_owned(), |l| out::figures(l.p50));
            let result = format!("{} seen, {} s allowed; guard {guard} ms", row.seen, row.watchdog_s);
            Cells { part: "rival", what: row.what.clone(), n: row.runs, result, good, times: times(row.latency_ms) }
        }
        Row::Alarms(row) => {
            let result = format!(
                "{} false alarms; {} requests, {}, {} s",
                row.false_alarms,
                row.requests,
                out::bytes(row.bytes),
                row.seconds
            );
            let good = row.false_alarms == 0;
            Cells { part: "alarms", what: row.what.clone(), n: row.rounds, result, good, times: "-".to_owned() }
        }
        Row::Cost(row) => {
            let percent = |ratio: [f64; 3]| ratio.map(|r| format!("{:+.2}", (r - 1.0) * 100.0)).join(" ");
            let result = format!(
                "{} ns a request; server {} %, with the guard's own {} %, null {} %; guard {:.2} % of a CPU",
                row.off_ns,
                percent(row.server_ratio),
                percent(row.with_guard_ratio),
                percent(row.null_ratio),
                row.guard_cpu_percent
            );
            Cells { part: "cost", what: row.server.to_owned(), n: row.n, result, good, times: "-".to_owned() }
        }
        Row::Sensor(row) => {
            let result = format!("{:.2} % of a CPU", row.cpu_percent);
            Cells { part: "sensor", what: row.what.clone(), n: row.threads, result, good, times: "-".to_owned() }
        }
        Row::Recorded(row) => {
            let result = format!(
                "{} of {} hangs found, {} above a guess; of {} healthy {} guesses, {} above",
                row.found, row.hangs, row.sure, row.healthy, row.guesses, row.alarms
            );
            let times = row.delay_s.map_or("-".to_owned(), |d| format!("{:.1} / {:.1} s", d.p50, d.p99));
            let what = format!("limit {} s", row.limit_s);
            Cells { part: "recorded", what, n: row.hangs + row.healthy, result, good: row.alarms == 0, times }
        }
        Row::Rings(row) => {
            let result = format!("{} false rings; {} seen in one sample only", row.reported, row.seen_once);
            let what = "scans of a healthy program".to_owned();
            Cells { part: "rings", what, n: row.scans, result, good: row.reported == 0, times: "-".to_owned() }
        }
        Row::Stops(row) => {
            let what = format!("{}: stacks of {} threads", row.by, row.threads);
            let n = row.stopped_ms.map_or(0, |l| l.n);
            Cells { part: "stops", what, n, result: "time stopped".to_owned(), good, times: times(row.stopped_ms) }
        }
        Row::Sections(row) => {
            let [median, least, most] = row.pair_ns;
            let result = format!("{median} ns a pair ({least} to {most})");
            Cells { part: "sections", what: row.mark.to_owned(), n: row.pairs, result, good, times: "-".to_owned() }
        }
        Row::Marked(row) => {
            let result = format!(
                "{:.0} ns a hit, {:.2} % of its program's CPU time, {} windows",
                row.ns_per_hit, row.share_percent, row.windows
            );
            let n = usize::try_from(row.hits).unwrap_or(usize::MAX);
            Cells { part: "marked", what: row.function.clone(), n, result, good, times: "-".to_owned() }
        }
    }
}

fn hang_cells(part: &'static str, row: &hangs::Row) -> Cells {
    let mut result = format!("{} found", row.found);
    for (what, right) in [
        ("kind", row.right_kind),
        ("thread", row.right_thread),
        ("ring", row.right_ring),
        ("function", row.right_function),
    ] {
        if right != row.found {
            result += &format!(", {right} right {what}");
        }
    }
    if row.false_alarms > 0 {
        result += &format!(", {} FALSE", row.false_alarms);
    }
    if row.not_reached > 0 {
        result += &format!(", {} not reached", row.not_reached);
    }
    let good = row.found == row.runs && row.false_alarms == 0;
    Cells { part, what: row.what.clone(), n: row.runs, result, good, times: times(row.latency_ms) }
}

fn times(latency: Option<hangs::Latency>) -> String {
    let three = |l: hangs::Latency| [l.p50, l.p99, l.max].map(out::figures).join(" / ") + " ms";
    latency.map_or("-".to_owned(), three)
}
