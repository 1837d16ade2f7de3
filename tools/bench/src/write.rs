//! `orbit bench write`: what a page costs main that it writes to and ships, faults included,
//! against fork's copy-on-write.

use super::memory::{Field, PAGE, Twin, settle};
use super::plot::{Chart, Series};
use super::reach::{Reach, ratio};
use super::rivals::Child;
use super::row::Measured;
use super::stats::{Samples, Shuffle, Summary, median};
use super::{Bench, Common, Progress};
use orbit::{Engine, Orbit};
use orbit_console::out::{self, Align, Failure, PLAIN, Table};
use serde::Serialize;
use std::ffi::{c_long, c_void};
use std::time::{Duration, Instant};

/// Measures what a page costs main that it writes to between two snapshots.
///
/// Nanoseconds a page. orbit_ns: the writes, with the faults that note them, and the call that
/// ships the pages. copy_on_write_ns: the same writes after a fork whose child lives on; the fork
/// itself is not in it (with_fork_ns has it). plain_ns: the writes alone.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

/// One row of the result; nanoseconds a page.
#[derive(Serialize)]
struct Row {
    area_bytes: usize,
    pages: usize,
    /// `sparse`: spread over the area, out of order. `dense`: side by side.
    pattern: &'static str,
    engine: String,
    orbit_ns: Option<Summary>,
    /// Part of it: the writes.
    orbit_write_ns: Option<Summary>,
    /// Part of it: the call.
    orbit_call_ns: Option<Summary>,
    copy_on_write_ns: Option<Summary>,
    with_fork_ns: Option<Summary>,
    plain_ns: Option<Summary>,
}

const MIB: usize = 1 << 20;
const AREA: usize = 64 * MIB;

unsafe extern "C" fn nothing(_: *mut c_void, _: *mut c_void) -> c_long {
    0
}

pub fn run(args: &Args) -> out::Done {
    let mut bench = Bench::start("write", &args.common)?;
    orbit::init()?;
    let quick = args.common.quick;
    let counts: &[usize] = if quick { &[64, 512] } else { &[16, 64, 256, 512, 1024, 4096] };
    let cases: Vec<_> = ["sparse", "dense"].into_iter().flat_map(|p| counts.iter().map(move |&c| (p, c))).collect();
    let progress = Progress::new(cases.len());
    let mut rows = Vec::new();
    for (nth, &(pattern, pages)) in cases.iter().enumerate() {
        progress.at(nth, &format!("{pages} pages, {pattern}"));
        rows.push(measure(pattern, pages, if quick { 15 } else { 60 })?);
    }
    progress.finish();
    for row in &rows {
        bench.reach(reaches(row));
    }
    let (table, chart) = (table(&rows), chart(&rows));
    let rows: Vec<_> = rows.into_iter().map(measured).collect();
    bench.finish(&args.common, &rows, &table, chart)
}

/// What this row has to reach.
fn reaches(row: &Row) -> Option<Reach> {
    let what = format!("a page written and shipped to fork's copy-on-write, {} of {} pages", row.pages, AREA / PAGE);
    let times = ratio(median(row.orbit_ns), median(row.copy_on_write_ns));
    (row.pattern == "sparse").then(|| Reach::at_most(what, times, 0.55, "times"))
}

/// The row in the form that all benches share.
fn measured(row: Row) -> Measured<Row> {
    let what = format!("a page written and shipped, {} of {} pages, {}", row.pages, AREA / PAGE, row.pattern);
    let bounds = reaches(&row);
    let (ours, cow, with_fork) = (row.orbit_ns, row.copy_on_write_ns, row.with_fork_ns);
    Measured::new(what, "ns", row)
        .ours(ours)
        .rival("copy-on-write", cow)
        .rival("copy-on-write and fork", with_fork)
        .reach(bounds.as_slice())
}

fn measure(pattern: &'static str, count: usize, samples: usize) -> Result<Row, Failure> {
    let orbit = Orbit::new("bench-write", nothing)?;
    orbit.wait_ready(Duration::from_secs(20))?;
    let mut field = Field::new("bench-write", AREA, Engine::Track)?;
    // Fork's turn is on memory of its own: what it leaves write-protected there is not the orbit's.
    let mut twin = Twin::new(AREA)?;
    let mut shuffle = Shuffle::new(3);
    settle(&orbit, &field.area)?;
    let per_page = |time: Duration| time.as_nanos() as f64 / count as f64;
    let [mut whole, mut writes, mut calls, mut cow, mut with_fork, mut plain] =
        std::array::from_fn(|_| Samples::default());
    for _ in 0..samples {
        let mut pages = if pattern == "sparse" {
            let shift = shuffle.below(AREA / PAGE / count);
            field.spread(count).iter().map(|page| page + shift).collect()
        } else {
            let first = shuffle.below(AREA / PAGE - count);
            (first..first + count).collect::<Vec<_>>()
        };
        if pattern == "sparse" {
            shuffle.shuffle(&mut pages);
        }
        let began = Instant::now();
        field.write(&pages);
        let wrote = began.elapsed();
        let began = Instant::now();
        let call = orbit.call_async(&[&field.area], &[])?;
        let called = began.elapsed();
        call.wait()?;
        whole.add_figure(per_page(wrote + called));
        writes.add_figure(per_page(wrote));
        calls.add_figure(per_page(called));
        let child = field.kept_from(Child::start)?;
        let began = Instant::now();
        twin.write(&pages);
        let copied = began.elapsed();
        cow.add_figure(per_page(copied));
        with_fork.add_figure(per_page(copied + child.took));
        drop(child);
        // Now nothing is between main and these pages: the writes alone.
        let began = Instant::now();
        twin.write(&pages);
        plain.add_figure(per_page(began.elapsed()));
    }
    let row = Row {
        area_bytes: AREA,
        pages: count,
        pattern,
        engine: field.area.engine().to_string(),
        orbit_ns: whole.summary(),
        orbit_write_ns: writes.summary(),
        orbit_call_ns: calls.summary(),
        copy_on_write_ns: cow.summary(),
        with_fork_ns: with_fork.summary(),
        plain_ns: plain.summary(),
    };
    orbit.destroy()?;
    Ok(row)
}

fn table(rows: &[Row]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("PAGES", Right),
        ("PATTERN", Left),
        ("ENGINE", Left),
        ("ORBIT", Right),
        ("WRITES", Right),
        ("CALL", Right),
        ("FORK: COPY-ON-WRITE", Right),
        ("WITH FORK", Right),
        ("PLAIN", Right),
        ("ORBIT/COW", Right),
    ]);
    for row in rows {
        let ns = |summary: Option<Summary>| summary.map_or("-".to_owned(), |s| format!("{} ns", out::figures(s.p50)));
        let cells = [
            row.pages.to_string(),
            row.pattern.to_owned(),
            row.engine.clone(),
            ns(row.orbit_ns),
            ns(row.orbit_write_ns),
            ns(row.orbit_call_ns),
            ns(row.copy_on_write_ns),
            ns(row.with_fork_ns),
            ns(row.plain_ns),
            out::figures(ratio(median(row.orbit_ns), median(row.copy_on_write_ns))),
        ];
        table.row(cells.into_iter().map(|cell| (cell, PLAIN)).collect());
    }
    table
}

fn chart(rows: &[Row]) -> Chart {
    let of = |name: &str, pattern: &str, pick: fn(&Row) -> Option<Summary>| {
        let rows = rows.iter().filter(|row| row.pattern == pattern);
        Series::new(name, rows.filter_map(|row| Some((row.pages as f64, pick(row)?.p50))).collect())
    };
    Chart {
        title: "What a written page costs main".to_owned(),
        x: "pages written between two snapshots".to_owned(),
        y: "nanoseconds a page, median".to_owned(),
        series: vec![
            of("orbit, sparse", "sparse", |row| row.orbit_ns),
            of("orbit, dense", "dense", |row| row.orbit_ns),
            of("copy-on-write, sparse", "sparse", |row| row.copy_on_write_ns),
            of("copy-on-write, dense", "dense", |row| row.copy_on_write_ns),
        ],
    }
}
