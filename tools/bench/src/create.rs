//! `orbit bench create`: what making an orbit costs main, whatever its size (Table 3 of the paper),
//! against fork.

use super::machine;
use super::memory::Ballast;
use super::plot::{Chart, Series};
use super::reach::{Reach, ratio};
use super::rivals;
use super::row::Measured;
use super::stats::{Samples, Summary, median};
use super::worker;
use super::{Bench, Common, Progress};
use orbit::{Config, Orbit};
use orbit_console::out::{self, Align, Failure, PLAIN, Table};
use serde::Serialize;
use std::ffi::{c_long, c_void};
use std::time::{Duration, Instant};

/// Measures what making an orbit costs main, against fork, for programs of several sizes.
///
/// Memory is 4 KiB pages, all present. orbit_us: a spare process was there; orbit_no_spare_us: the
/// template clones one; first_call_us: with a spare, from the beginning until an answer is there.
/// Sizes beyond the free memory are left out. After each fork one orbit is made that does not
/// count: it pays for the pages of main that fork left write-protected.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Leaves out larger programs, MiB.
    #[arg(long, value_name = "MIB", default_value_t = 8192)]
    max: u64,
}

/// One row of the result.
#[derive(Serialize)]
struct Row {
    footprint_bytes: u64,
    orbit_us: Option<Summary>,
    orbit_no_spare_us: Option<Summary>,
    first_call_us: Option<Summary>,
    fork_us: Option<Summary>,
}

#[derive(Default)]
struct Times {
    orbit: Samples,
    no_spare: Samples,
    first_call: Samples,
    fork: Samples,
}

const MIB: u64 = 1 << 20;
const SIZES: [u64; 5] = [32 * MIB, 128 * MIB, 512 * MIB, 2048 * MIB, 8192 * MIB];
const SIZES_QUICK: [u64; 3] = [32 * MIB, 128 * MIB, 512 * MIB];
/// Left to others.
const MARGIN: u64 = 1024 * MIB;

unsafe extern "C" fn nothing(_: *mut c_void, _: *mut c_void) -> c_long {
    0
}

pub fn run(args: &Args) -> out::Done {
    let mut bench = Bench::start("create", &args.common)?;
    let quick = args.common.quick;
    let all: &[u64] = if quick { &SIZES_QUICK } else { &SIZES };
    let free = machine::memory_available().saturating_sub(MARGIN);
    let sizes: Vec<u64> = all.iter().copied().filter(|&size| size <= free && size <= args.max * MIB).collect();
    for &size in all.iter().filter(|&&size| size > free) {
        bench.note(format!("{} left out: {} are free", out::bytes(size), out::bytes(free + MARGIN)));
    }
    // A program has spares or it has none: two programs in turns, each with forks in between.
    let rounds = if quick { 2 } else { 4 };
    let progress = Progress::new(rounds);
    let mut times: Vec<Times> = sizes.iter().map(|_| Times::default()).collect();
    for round in 0..rounds {
        let spares = round % 2 == 0;
        progress.at(round, if spares { "with a spare" } else { "without spares" });
        let results = worker::run(|| measure(&sizes, spares, quick))?;
        for (times, figures) in times.iter_mut().zip(results) {
            let [orbit, first_call, fork] = figures;
            let target = if spares { &mut times.orbit } else { &mut times.no_spare };
            target.extend(&orbit);
            if spares {
                times.first_call.extend(&first_call);
            }
            times.fork.extend(&fork);
        }
    }
    progress.finish();
    let rows: Vec<Row> = sizes
        .iter()
        .zip(&times)
        .map(|(&footprint_bytes, times)| Row {
            footprint_bytes,
            orbit_us: times.orbit.summary(),
            orbit_no_spare_us: times.no_spare.summary(),
            first_call_us: times.first_call.summary(),
            fork_us: times.fork.summary(),
        })
        .collect();
    bench.reach(reaches(&rows));
    let (table, chart) = (table(&rows), chart(&rows));
    let rows: Vec<_> = rows.into_iter().map(measured).collect();
    bench.finish(&args.common, &rows, &table, chart)
}

/// In a program of its own: per size the times of making an orbit, of its first call, and of fork.
fn measure(sizes: &[u64], spares: bool, quick: bool) -> Result<Vec<[Vec<f64>; 3]>, Failure> {
    orbit::init_with(Config::new().spares(usize::from(spares)))?;
    let mut ballast = Ballast::none();
    let mut results = Vec::new();
    for &size in sizes {
        ballast.fill_up_to(size)?;
        let samples = match size {
            _ if quick => 8,
            size if size > 1024 * MIB => 25,
            _ => 40,
        };
        let (mut made, mut first_call, mut fork) = (Samples::default(), Samples::default(), Samples::default());
        // One of each that does not count.
        for sample in 0..=samples {
            Orbit::new("bench-after-fork", nothing)?.destroy()?;
            // The supervisor makes up for the spare that was taken.
            std::thread::sleep(Duration::from_millis(10));
            let began = Instant::now();
            let orbit = Orbit::new("bench-create", nothing)?;
            let took = began.elapsed();
            orbit.call(&[], &[])?;
            let called = began.elapsed();
            orbit.destroy()?;
            let forked = rivals::fork()?;
            if sample > 0 {
                made.add(took);
                first_call.add(called);
                fork.add(forked);
            }
        }
        results.push([made, first_call, fork].map(|samples| samples.figures().to_vec()));
    }
    Ok(results)
}

/// The row in the form that all benches share.
fn measured(row: Row) -> Measured<Row> {
    let what = format!("create an orbit, spare, program of {}", out::bytes(row.footprint_bytes));
    let (ours, no_spare, fork) = (row.orbit_us, row.orbit_no_spare_us, row.fork_us);
    Measured::new(what, "us", row).ours(ours).rival("no spare", no_spare).rival("fork", fork)
}

fn reaches(rows: &[Row]) -> Vec<Reach> {
    let mut reaches = Vec::new();
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return reaches };
    let size = out::bytes(last.footprint_bytes);
    if last.footprint_bytes == 8192 * MIB {
        let fork = median(last.fork_us);
        let no_spare = ratio(fork, median(last.orbit_no_spare_us));
        reaches.push(Reach::at_least(format!("fork to create, {size}, no spare"), no_spare, 300.0, "times"));
        let spare = ratio(fork, median(last.orbit_us));
        reaches.push(Reach::at_least(format!("fork to create, {size}, spare"), spare, 2000.0, "times"));
    }
    if last.footprint_bytes > first.footprint_bytes {
        let against = out::bytes(first.footprint_bytes);
        for (what, pick) in
            [("spare", (|row: &Row| row.orbit_us) as fn(&Row) -> _), ("no spare", |row| row.orbit_no_spare_us)]
        {
            let grows = ratio(median(pick(last)), median(pick(first)));
            reaches.push(Reach::at_most(format!("create at {size} to {against}, {what}"), grows, 1.5, "times"));
        }
    }
    reaches
}

fn table(rows: &[Row]) -> Table {
    use Align::Right;
    let mut table = Table::new(&[
        ("FOOTPRINT", Right),
        ("SPARE", Right),
        ("NO SPARE", Right),
        ("FIRST CALL", Right),
        ("FORK", Right),
        ("FORK/SPARE", Right),
        ("FORK/NO SPARE", Right),
    ]);
    for row in rows {
        let time = |summary: Option<Summary>| summary.map_or("-".to_owned(), |summary| out::time(summary.p50));
        let fork = median(row.fork_us);
        let cells = [
            out::bytes(row.footprint_bytes),
            time(row.orbit_us),
            time(row.orbit_no_spare_us),
            time(row.first_call_us),
            time(row.fork_us),
            out::figures(ratio(fork, median(row.orbit_us))),
            out::figures(ratio(fork, median(row.orbit_no_spare_us))),
        ];
        table.row(cells.into_iter().map(|cell| (cell, PLAIN)).collect());
    }
    table
}

fn chart(rows: &[Row]) -> Chart {
    let of = |name: &str, pick: fn(&Row) -> Option<Summary>| {
        Series::new(name, rows.iter().filter_map(|row| Some((row.footprint_bytes as f64, pick(row)?.p50))).collect())
    };
    Chart {
        title: "What making an orbit costs main".to_owned(),
        x: "program, bytes of memory".to_owned(),
        y: "microseconds, median".to_owned(),
        series: vec![
            of("orbit, spare", |row| row.orbit_us),
            of("orbit, no spare", |row| row.orbit_no_spare_us),
            of("until first answer", |row| row.first_call_us),
            of("fork", |row| row.fork_us),
        ],
    }
}
