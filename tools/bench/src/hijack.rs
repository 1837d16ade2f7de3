//! `orbit bench hijack`: what an interposed system call costs, against the other ways to see one,
//! and what programs pay.
//!
//! Each figure of a call comes from a process of its own, which makes batches of getppid on one CPU
//! and reports the median batch. The ways take turns round by round. Cycles are those of the time
//! stamp counter.

mod between;
mod guest;
mod nginx;
mod redis;
mod servers;
mod shares;
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
const CALLS: [(Way, &str); 9] = [
    (Way::Native, "native"),
    (Way::Rewritten, "rewritten site"),
    (Way::Saved, "saved registers, through C"),
    (Way::Trapped, "site not rewritten"),
    (Way::Traced, "traced, both records read"),
    (Way::Dispatch, "Syscall User Dispatch alone"),
    (Way::Notify, "seccomp notification"),
    (Way::Ptrace, "ptrace"),
    (Way::PageZero, "call into page 0, as zpoline"),
];

/// A call that only guests have, or a rival of the one before it.
struct GuestCall {
    /// The word of `guest.rs`.
    word: &'static str,
    name: &'static str,
    /// Cycles at most; `None`: a rival, which runs natively.
    limit: Option<f64>,
}

const GUEST_CALLS: [GuestCall; 8] = [
    GuestCall { word: "rpc", name: "call of the executive and back", limit: Some(50.0) },
    GuestCall { word: "awake", name: "call of another guest and back, awake", limit: Some(1000.0) },
    GuestCall { word: "bare-lines", name: "two cache lines, spinning", limit: None },
    GuestCall { word: "asleep", name: "call of another guest and back, asleep", limit: Some(11_000.0) },
    GuestCall { word: "bare-futexes", name: "two futexes of two processes", limit: None },
    GuestCall { word: "pipes", name: "two pipes", limit: None },
    GuestCall { word: "switch", name: "change of guest contexts", limit: Some(500.0) },
    GuestCall { word: "handover", name: "change of threads by a futex", limit: None },
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
    let has_page_zero = ways::has_page_zero();
    let mut servers = Servers::default();
    let mut cycles: Vec<Samples> = CALLS.iter().map(|_| Samples::default()).collect();
    let mut times: Vec<[Samples; 3]> = programs.iter().map(|_| Default::default()).collect();
    for round in 0..rounds {
        let done = round * (CALLS.len() + programs.len());
        for (nth, (way, name)) in CALLS.iter().enumerate() {
            progress.at(done + nth, name);
            if *way == Way::PageZero && !has_page_zero {
                continue;
            }
            cycles[nth].add_figure(ways::call(*way)?);
        }
        for (call, samples) in GUEST_CALLS.iter().zip(&mut guest_calls) {
            samples.add_figure(ways::between(call.word, call.limit.is_some())?);
        }
        for (samples, way) in starts.iter_mut().zip([Way::Native, Way::Rewritten]) {
            samples.add_figure(ways::start(way)?);
        }
        // Throughput varies more than the rest: three times as many samples.
        for nth in 0..3 {
            servers.measure((round + nth) % 2 == 1, quick)?;
        }
        if round < 3 {
            servers.measure_shares()?;
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
    if !has_page_zero {
        bench.note("page 0 cannot be mapped here (vm.mmap_min_addr): no figure of a call into it".to_owned());
    }
    rows.extend(servers.rows());
    for missing in servers.missing() {
        bench.note(format!("{missing} is not installed: no figures of it"));
    }
    rows.extend(programs.iter().zip(&times).map(|(program, times)| program_row(program, times)));
    bench.reach(rows.iter().flat_map(|row| row.bound.iter().map(Row::copy)));
    let mut table = table(&cycles, &starts, &programs, &times);
    for (call, figure) in GUEST_CALLS.iter().zip(&guest_calls) {
        let cells = [call.name.to_owned(), format!("{:.0} cycles", median(*figure)), String::new()];
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

    fn rival(self, name: &'static str, figure: Option<Summary>) -> Row {
        Row { measured: self.measured.rival(name, figure), bound: self.bound }
    }

    fn copy(bound: &Reach) -> Reach {
        Reach { what: bound.what.clone(), ..*bound }
    }
}

fn call_rows(cycles: &[Option<Summary>]) -> Vec<Row> {
    let native = median(cycles[0]);
    let rivals = |row: Measured<Own>| {
        let row = row.rival("native", cycles[0]).rival("dispatch alone", cycles[5]).rival("page 0", cycles[8]);
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

fn guest_rows(cycles: &[Option<Summary>]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (call, figure) in GUEST_CALLS.iter().zip(cycles) {
        match (call.limit, rows.pop()) {
            (None, Some(row)) => rows.push(row.rival(call.name, *figure)),
            (limit, before) => {
                rows.extend(before);
                let bound = limit.map(|limit| Reach::at_most(call.name, median(*figure), limit, "cycles"));
                let measured = Measured::new(call.name, "cycles", Own { group: "guest" }).ours(*figure);
                rows.push(Row::new(measured, bound));
            }
        }
    }
    rows
}

fn start_row(starts: &[Option<Summary>; 2]) -> Row {
    let name = "start of /bin/true";
    let measured = Measured::new(name, "us", Own { group: "program" }).ours(starts[1]).rival("native", starts[0]);
    let times = ratio(median(starts[1]), median(starts[0]));
    Row::new(measured, Some(Reach::at_most(name, times, 1.6, "times native")))
}

/// Throughput and calls by signal of servers and programs; natively, then under the executive.
#[derive(Default)]
struct Servers {
    get: [Samples; 2],
    set: [Samples; 2],
    pages: [Samples; 2],
    by_signal: [Samples; 4],
}

const SHARES: [&str; 4] = ["Redis", "nginx", "Python", "Go"];

impl Servers {
    /// A run of each server in both ways; `guest_first`: in which order.
    fn measure(&mut self, guest_first: bool, quick: bool) -> Result<(), Failure> {
        let requests = if quick { 40_000 } else { 100_000 };
        for is_guest in [guest_first, !guest_first] {
            let nth = usize::from(is_guest);
            if redis::is_there() {
                let run = redis::run(is_guest, requests)?;
                self.get[nth].add_figure(run.rates[0]);
                self.set[nth].add_figure(run.rates[1]);
                self.add_share(0, is_guest, run.by_signal);
            }
            if nginx::is_there() {
                let run = nginx::run(is_guest, requests as usize)?;
                self.pages[nth].add_figure(run.rates[0]);
                self.add_share(1, is_guest, run.by_signal);
            }
        }
        Ok(())
    }

    /// The shares of programs that are no servers.
    fn measure_shares(&mut self) -> Result<(), Failure> {
        for (nth, share) in [(2, shares::python()?), (3, shares::go()?)] {
            if let Some(share) = share {
                self.add_share(nth, true, share);
            }
        }
        Ok(())
    }

    fn add_share(&mut self, nth: usize, is_guest: bool, share: f64) {
        if is_guest {
            self.by_signal[nth].add_figure(share);
        }
    }

    fn missing(&self) -> Vec<&'static str> {
        let all = SHARES.iter().zip(&self.by_signal);
        all.filter(|(_, samples)| samples.summary().is_none()).map(|(name, _)| *name).collect()
    }

    fn rows(&self) -> Vec<Row> {
        let throughput = [("Redis GET", &self.get), ("Redis SET", &self.set), ("nginx, 1 KB", &self.pages)];
        let throughput = throughput.into_iter().filter_map(|(name, [native, ours])| {
            let (native, ours) = (native.summary()?, ours.summary()?);
            let own = Own { group: "server" };
            let measured = Measured::new(name, "requests/s", own).ours(Some(ours)).rival("native", Some(native));
            let times = ratio(ours.p50, native.p50);
            Some(Row::new(measured, Some(Reach::at_least(name, times, 0.97, "times native"))))
        });
        let shares = SHARES.iter().zip(&self.by_signal).filter_map(|(name, samples)| {
            let share = samples.summary()?;
            let name = format!("{name}: calls by signal after a second");
            let measured = Measured::new(name.clone(), "%", Own { group: "share" }).ours(Some(share));
            Some(Row::new(measured, Some(Reach::at_most(name, share.p50, 1.0, "%"))))
        });
        throughput.chain(shares).collect()
    }
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
