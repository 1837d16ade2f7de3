//! `orbit bench hijack`: what an interposed system call costs, against the other ways to see one,
//! and what programs pay.
//!
//! Each figure of a call comes from a process of its own, which makes batches of getppid on one CPU
//! and reports the median batch. The ways take turns round by round. Cycles are those of the time
//! stamp counter.

mod guest;
mod redis;
mod ways;

use super::plot::{Chart, Series};
use super::reach::{Reach, ratio};
use super::row::Measured;
use super::stats::{Samples, Summary, median};
use super::{Bench, Common, Progress};
use orbit_console::out::{self, Align, Failure, PLAIN, Table};
use serde::Serialize;
use ways::{Program, Way};

/// Measures what an interposed call costs in cycles, against native, dispatch alone, seccomp
/// notification and ptrace; and what programs pay, against native and strace.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Runs one part of the bench: what the bench starts itself.
    #[arg(long, hide = true, num_args = 2, value_names = ["WAY", "FD"])]
    guest: Option<Vec<String>>,
}

/// What a row has beside the shared fields: nothing yet but which rows belong together.
#[derive(Serialize)]
struct Own {
    group: &'static str,
}

/// Ways of one call, ours first.
const CALLS: [(Way, &str); 8] = [
    (Way::Native, "native"),
    (Way::Rewritten, "rewritten site"),
    (Way::Saved, "saved registers, through C"),
    (Way::Trapped, "site not rewritten"),
    (Way::Traced, "traced, both records read"),
    (Way::Dispatch, "Syscall User Dispatch alone"),
    (Way::Notify, "seccomp notification"),
    (Way::Ptrace, "ptrace"),
];

/// Calls that only guests have: the word of `guest.rs`, whether it is a guest's, its name, what it
/// may cost.
const GUEST_CALLS: [(&str, bool, &str, f64); 5] = [
    ("rpc", true, "call of the executive and back", 50.0),
    ("awake", true, "call of another guest and back, awake", 1000.0),
    ("asleep", true, "call of another guest and back, asleep", 11_000.0),
    ("switch", true, "change of guest contexts", 500.0),
    ("handover", false, "change of threads by a futex", 0.0),
];

pub fn run(args: &Args) -> out::Done {
    if let Some(guest) = &args.guest {
        return guest::run(guest);
    }
    let quick = args.common.quick;
    let mut bench = Bench::start("hijack", &args.common)?;
    let rounds = if quick { 3 } else { 15 };
    let programs = ways::programs(quick);
    let progress = Progress::new(rounds * (CALLS.len() + programs.len()));
    let mut starts: [Samples; 2] = Default::default();
    let mut guest_calls: Vec<Samples> = GUEST_CALLS.iter().map(|_| Samples::default()).collect();
    let has_redis = redis::is_there();
    let mut redis: [[Samples; 3]; 2] = Default::default();
    let mut cycles: Vec<Samples> = CALLS.iter().map(|_| Samples::default()).collect();
    let mut times: Vec<[Samples; 3]> = programs.iter().map(|_| Default::default()).collect();
    for round in 0..rounds {
        let done = round * (CALLS.len() + programs.len());
        for (nth, (way, name)) in CALLS.iter().enumerate() {
            progress.at(done + nth, name);
            cycles[nth].add_figure(ways::call(*way)?);
        }
        for ((word, is_guest, _, _), samples) in GUEST_CALLS.iter().zip(&mut guest_calls) {
            samples.add_figure(ways::between(word, *is_guest)?);
        }
        for (samples, way) in starts.iter_mut().zip([Way::Native, Way::Rewritten]) {
            samples.add_figure(ways::start(way)?);
        }
        if has_redis {
            for (samples, is_guest) in redis.iter_mut().zip([false, true]) {
                let run = redis::run(is_guest, if quick { 20_000 } else { 100_000 })?;
                for (samples, figure) in samples.iter_mut().zip([run.get, run.set, run.by_signal]) {
                    samples.add_figure(figure);
                }
            }
        }
        for (nth, program) in programs.iter().enumerate() {
            progress.at(done + CALLS.len() + nth, program.name);
            for (way, samples) in times[nth].iter_mut().enumerate() {
                if let Some(time) = ways::program(program, way)? {
                    samples.add(time);
                }
            }
        }
    }
    progress.finish();
    if !ways::has_strace() {
        bench.note("strace is not installed: no figures of it".to_owned());
    }
    let cycles: Vec<Option<Summary>> = cycles.iter().map(Samples::summary).collect();
    let times: Vec<[Option<Summary>; 3]> = times.iter().map(|each| each.each_ref().map(Samples::summary)).collect();
    let starts = starts.each_ref().map(Samples::summary);
    let mut rows = call_rows(&cycles);
    let guest_calls: Vec<Option<Summary>> = guest_calls.iter().map(Samples::summary).collect();
    rows.extend(guest_rows(&guest_calls));
    rows.push(start_row(&starts));
    let redis = redis.each_ref().map(|each| each.each_ref().map(Samples::summary));
    if has_redis {
        rows.extend(redis_rows(&redis));
    } else {
        bench.note("redis-server or redis-benchmark is not installed: no figures of Redis".to_owned());
    }
    rows.extend(programs.iter().zip(&times).map(|(program, times)| program_row(program, times)));
    bench.reach(rows.iter().flat_map(|row| row.bound.iter().map(Row::copy)));
    let mut table = table(&cycles, &starts, &programs, &times);
    for ((.., name, _), figure) in GUEST_CALLS.iter().zip(&guest_calls) {
        let cells = [(*name).to_owned(), format!("{:.0} cycles", median(*figure)), String::new()];
        table.row(cells.map(|cell| (cell, PLAIN)).into());
    }
    let chart = chart(&cycles);
    let rows: Vec<Measured<Own>> = rows.into_iter().map(|row| row.measured).collect();
    bench.finish(&args.common, &rows, &table, chart)
}

/// A row with its bound, which is shown apart as well.
struct Row {
    measured: Measured<Own>,
    bound: Option<Reach>,
}

impl Row {
    fn new(measured: Measured<Own>, bound: Option<Reach>) -> Row {
        let measured = measured.reach(bound.as_slice());
        Row { measured, bound }
    }

    fn copy(bound: &Reach) -> Reach {
        Reach { what: bound.what.clone(), ..*bound }
    }
}

fn call_rows(cycles: &[Option<Summary>]) -> Vec<Row> {
    let native = median(cycles[0]);
    let rivals = |row: Measured<Own>| {
        let row = row.rival("native", cycles[0]).rival("dispatch alone", cycles[5]);
        row.rival("seccomp notification", cycles[6]).rival("ptrace", cycles[7])
    };
    let row = |nth: usize, bound: Option<Reach>| {
        let measured = Measured::new(format!("getppid, {}", CALLS[nth].1), "cycles", Own { group: "call" });
        Row::new(rivals(measured.ours(cycles[nth])), bound)
    };
    let over = |nth: usize, limit| {
        let what = format!("getppid, {}: more than native", CALLS[nth].1);
        Some(Reach::at_most(what, median(cycles[nth]) - native, limit, "cycles"))
    };
    let trapped = Reach::at_most("getppid, site not rewritten", median(cycles[3]), 6500.0, "cycles");
    vec![row(1, over(1, 100.0)), row(2, over(2, 130.0)), row(3, Some(trapped)), row(4, None)]
}

/// The last figure is the rival of the one before it.
fn guest_rows(cycles: &[Option<Summary>]) -> Vec<Row> {
    let rows = GUEST_CALLS.iter().zip(cycles).filter(|((_, is_guest, ..), _)| *is_guest);
    rows.map(|((word, _, name, limit), figure)| {
        let measured = Measured::new(*name, "cycles", Own { group: "guest" }).ours(*figure);
        let measured = if *word == "switch" { measured.rival("futex hand-over", cycles[4]) } else { measured };
        Row::new(measured, Some(Reach::at_most(*name, median(*figure), *limit, "cycles")))
    })
    .collect()
}

fn start_row(starts: &[Option<Summary>; 2]) -> Row {
    let name = "start of /bin/true";
    let measured = Measured::new(name, "us", Own { group: "program" }).ours(starts[1]).rival("native", starts[0]);
    let times = ratio(median(starts[1]), median(starts[0]));
    Row::new(measured, Some(Reach::at_most(name, times, 1.6, "times native")))
}

/// `redis`: natively, under the executive; of each GET, SET, calls by signal.
fn redis_rows(redis: &[[Option<Summary>; 3]; 2]) -> Vec<Row> {
    let [native, ours] = redis;
    let throughput = |nth: usize, name: &'static str| {
        let own = Own { group: "server" };
        let measured = Measured::new(name, "requests/s", own).ours(ours[nth]).rival("native", native[nth]);
        let times = ratio(median(ours[nth]), median(native[nth]));
        Row::new(measured, Some(Reach::at_least(name, times, 0.97, "times native")))
    };
    let share = "Redis: calls that came by signal";
    let measured = Measured::new(share, "%", Own { group: "server" }).ours(ours[2]);
    let by_signal = Row::new(measured, Some(Reach::at_most(share, median(ours[2]), 1.0, "%")));
    vec![throughput(0, "Redis GET"), throughput(1, "Redis SET"), by_signal]
}

fn program_row(program: &Program, times: &[Option<Summary>; 3]) -> Row {
    let measured = Measured::new(program.name, "us", Own { group: "program" });
    let measured = measured.ours(times[1]).rival("native", times[0]).rival("strace", times[2]);
    let bound = program.limit.map(|limit| {
        Reach::at_most(program.name, ratio(median(times[1]), median(times[0])), limit, "times native")
    });
    Row::new(measured, bound)
}

fn table(
    cycles: &[Option<Summary>],
    starts: &[Option<Summary>; 2],
    programs: &[Program],
    times: &[[Option<Summary>; 3]],
) -> Table {
    let mut table = Table::new(&[("WHAT", Align::Left), ("HERE", Align::Right), ("TIMES NATIVE", Align::Right)]);
    let mut row = |name: String, here: String, value: f64, native: f64| {
        table.row([name, here, times_native(value, native)].map(|cell| (cell, PLAIN)).into());
    };
    let native = median(cycles[0]);
    for ((_, name), cycles) in CALLS.iter().zip(cycles) {
        let value = median(*cycles);
        row(format!("getppid, {name}"), format!("{value:.0} cycles"), value, native);
    }
    let ways = ["native", "under the executive", "strace -f -c"];
    let all = programs.iter().map(|program| program.name).zip(times.iter().map(|times| &times[..]));
    for (name, times) in std::iter::once(("start of /bin/true", &starts[..])).chain(all) {
        for (way, time) in ways.iter().zip(times) {
            let Some(time) = time else { continue };
            row(format!("{name}, {way}"), out::time(time.p50), time.p50, median(times[0]));
        }
    }
    table
}

fn times_native(value: f64, native: f64) -> String {
    format!("{:.2}", ratio(value, native))
}

fn chart(cycles: &[Option<Summary>]) -> Chart {
    let points = |nth: usize| vec![(nth as f64 + 1.0, median(cycles[nth]))];
    Chart {
        title: "One getppid, seen in different ways".to_owned(),
        x: "way".to_owned(),
        y: "cycles".to_owned(),
        series: CALLS.iter().enumerate().map(|(nth, (_, name))| Series::new(name, points(nth))).collect(),
    }
}

/// What failed, as a sentence.
fn failure(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::text(format!("bench hijack: {what}: {error}"))
}
