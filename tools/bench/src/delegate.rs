//! `orbit bench delegate`: the effect of delegate objects (section 4.6 and Table 5 of the paper):
//! large structs of which the task reads a few fields, whole in the area, or with those fields
//! alone in it.

use super::memory::PAGE;
use super::plot::{Chart, Series};
use super::reach::ratio;
use super::row::Measured;
use super::stats::{Samples, Shuffle, Summary, median};
use super::{Bench, Common, Progress};
use orbit::{Area, Orbit};
use orbit_console::out::{self, Align, Failure, PLAIN, Table};
use orbit_linux::process::minor_faults as faults;
use serde::Serialize;
use std::ffi::{c_long, c_void};
use std::time::{Duration, Instant};

/// Measures what delegate objects save: whole structs in the area against the fields the task
/// needs.
///
/// Transactions of 912 bytes of which the task reads 104, as in MySQL's lock table. Between two
/// calls main works on some transactions: it writes to fields that the task does not need in many,
/// and to those it needs in a few.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

/// One row of the result.
#[derive(Serialize)]
struct Row {
    /// `whole` or `delegate`.
    layout: &'static str,
    transactions: usize,
    area_bytes: usize,
    pages_per_call: f64,
    faults_per_query: f64,
    /// The call, until it is queued.
    async_us: Option<Summary>,
    /// Main's work between two calls.
    work_us: Option<Summary>,
    /// Both: what a query takes main.
    query_us: Option<Summary>,
}

/// Bytes of a transaction, and of what the task needs of it: those of the paper's Table 5, of
/// MySQL's lock table.
const WHOLE: usize = 912;
const NEEDED: usize = 104;
/// Transactions that a query touches, and those of them whose needed fields change.
const TOUCHED: usize = 64;
const CHANGED: usize = 8;

unsafe extern "C" fn nothing(_: *mut c_void, _: *mut c_void) -> c_long {
    0
}

/// Transactions in one of both layouts: where the fields are that the task needs, and where the
/// others.
struct Transactions {
    orbit: Orbit,
    area: Area,
    needed: Vec<*mut u64>,
    others: Vec<*mut u64>,
    /// Memory beside the area; only its owner.
    _heap: Vec<u64>,
    row: Row,
    times: [Samples; 3],
    faults: u64,
    pages: u64,
}

impl Transactions {
    fn make(layout: &'static str, count: usize) -> Result<Transactions, Failure> {
        let whole = layout == "whole";
        let orbit = Orbit::new("bench-delegate", nothing)?;
        orbit.wait_ready(Duration::from_secs(20))?;
        let size = if whole { WHOLE } else { NEEDED };
        let area = Area::builder(layout).size(2 * count * size).build()?;
        let mut heap = vec![1_u64; if whole { 0 } else { count * WHOLE / 8 }];
        let (mut needed, mut others) = (Vec::new(), Vec::new());
        for nth in 0..count {
            let object = area.alloc_zeroed(size, 16)?.as_ptr().cast::<u64>();
            needed.push(object);
            // The other fields stand behind the needed ones, or in the struct on the heap.
            others.push(if whole { object.wrapping_add(NEEDED / 8) } else { &raw mut heap[nth * WHOLE / 8] });
        }
        let row = Row {
            layout,
            transactions: count,
            area_bytes: area.high_water(),
            pages_per_call: 0.0,
            faults_per_query: 0.0,
            async_us: None,
            work_us: None,
            query_us: None,
        };
        let (faults, pages) = (0, 0);
        Ok(Transactions { orbit, area, needed, others, _heap: heap, row, times: Default::default(), faults, pages })
    }

    /// Main's work on these transactions, and a call.
    fn query(&mut self, touched: &[usize], counts: bool) -> Result<(), Failure> {
        let (faults_before, pages) = (faults(), self.orbit.stats().pages);
        let began = Instant::now();
        for (nth, &transaction) in touched.iter().enumerate() {
            // SAFETY: fields of objects that live as long as this value, and that only this thread
            // uses.
            unsafe {
                let other = self.others[transaction];
                other.write_volatile(other.read_volatile() + 1);
                if nth < CHANGED {
                    let needed = self.needed[transaction];
                    needed.write_volatile(needed.read_volatile() + 1);
                }
            }
        }
        let worked = began.elapsed();
        let call = self.orbit.call_async(&[&self.area], &[])?;
        let queried = began.elapsed();
        call.wait()?;
        if counts {
            self.times[0].add(queried - worked);
            self.times[1].add(worked);
            self.times[2].add(queried);
            self.faults += faults() - faults_before;
            self.pages += self.orbit.stats().pages - pages;
        }
        Ok(())
    }

    fn row(mut self) -> Result<Row, Failure> {
        let [call, work, query] = &self.times;
        let queries = query.figures().len().max(1) as f64;
        self.row.pages_per_call = self.pages as f64 / queries;
        self.row.faults_per_query = self.faults as f64 / queries;
        (self.row.async_us, self.row.work_us, self.row.query_us) = (call.summary(), work.summary(), query.summary());
        self.orbit.destroy()?;
        Ok(self.row)
    }
}

pub fn run(args: &Args) -> out::Done {
    let mut bench = Bench::start("delegate", &args.common)?;
    orbit::init()?;
    let quick = args.common.quick;
    let counts: &[usize] = if quick { &[1000, 10_000] } else { &[100, 1000, 10_000, 100_000] };
    let progress = Progress::new(counts.len());
    let mut rows = Vec::new();
    for (nth, &count) in counts.iter().enumerate() {
        progress.at(nth, &format!("{count} transactions"));
        let mut layouts = [Transactions::make("whole", count)?, Transactions::make("delegate", count)?];
        let mut shuffle = Shuffle::new(5);
        for round in 0..if quick { 60 } else { 400 } {
            let touched: Vec<_> = (0..TOUCHED).map(|_| shuffle.below(count)).collect();
            // The first calls send everything.
            let counts = round >= 20;
            let first = shuffle.below(2);
            layouts[first].query(&touched, counts)?;
            layouts[1 - first].query(&touched, counts)?;
        }
        for layout in layouts {
            rows.push(layout.row()?);
        }
    }
    progress.finish();
    for pair in rows.chunks(2) {
        let [whole, delegate] = pair else { continue };
        bench.note(format!(
            "{} transactions with delegates: area {:.1} times smaller, {:.1} times fewer pages a call, call {:.1} \
             times \
             shorter, query {:.1} times shorter",
            whole.transactions,
            ratio(whole.area_bytes as f64, delegate.area_bytes as f64),
            ratio(whole.pages_per_call, delegate.pages_per_call),
            ratio(median(whole.async_us), median(delegate.async_us)),
            ratio(median(whole.query_us), median(delegate.query_us)),
        ));
    }
    bench.note(
        "the paper's Table 5: area 25.7 times smaller, call 8.7 times shorter (340.5 to 39.3 us), faults a query 1.7 \
         times fewer".to_owned(),
    );
    let (table, chart) = (table(&rows), chart(&rows));
    let whole: Vec<_> = rows.iter().map(|row| (row.layout == "whole").then_some(row.query_us).flatten()).collect();
    // A delegate's row has the whole structs of the row before it as its rival.
    let rivals = std::iter::once(None).chain(whole);
    let rows: Vec<_> = rows.into_iter().zip(rivals).map(|(row, rival)| measured(row, rival)).collect();
    bench.finish(&args.common, &rows, &table, chart)
}

/// The row in the form that all benches share.
fn measured(row: Row, whole: Option<Summary>) -> Measured<Row> {
    let what = format!("query, {} transactions, {} in the area", row.transactions, row.layout);
    let ours = row.query_us;
    Measured::new(what, "us", row).ours(ours).rival("whole structs", whole)
}

fn table(rows: &[Row]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("TRANSACTIONS", Right),
        ("IN THE AREA", Left),
        ("AREA", Right),
        ("PAGES/CALL", Right),
        ("BYTES/CALL", Right),
        ("FAULTS/QUERY", Right),
        ("CALL", Right),
        ("WORK", Right),
        ("QUERY", Right),
    ]);
    for row in rows {
        let time = |summary: Option<Summary>| summary.map_or("-".to_owned(), |summary| out::time(summary.p50));
        let cells = [
            row.transactions.to_string(),
            row.layout.to_owned(),
            out::bytes(row.area_bytes as u64),
            out::figures(row.pages_per_call),
            out::bytes((row.pages_per_call * PAGE as f64) as u64),
            out::figures(row.faults_per_query),
            time(row.async_us),
            time(row.work_us),
            time(row.query_us),
        ];
        table.row(cells.into_iter().map(|cell| (cell, PLAIN)).collect());
    }
    table
}

fn chart(rows: &[Row]) -> Chart {
    let of = |name: &str, layout: &str, pick: fn(&Row) -> Option<Summary>| {
        let rows = rows.iter().filter(|row| row.layout == layout);
        Series::new(name, rows.filter_map(|row| Some((row.transactions as f64, pick(row)?.p50))).collect())
    };
    Chart {
        title: "Whole structs in the area against delegates".to_owned(),
        x: "transactions".to_owned(),
        y: "microseconds, median".to_owned(),
        series: vec![
            of("call, whole", "whole", |row| row.async_us),
            of("call, delegates", "delegate", |row| row.async_us),
            of("query, whole", "whole", |row| row.query_us),
            of("query, delegates", "delegate", |row| row.query_us),
        ],
    }
}
