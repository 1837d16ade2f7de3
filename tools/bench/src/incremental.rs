//! `orbit bench incremental`: a call on a large area of which little is new (Figure 15 of the
//! paper), against copying all of the area, and fork.

use super::memory::{Field, PAGE, settle};
use super::plot::{Chart, Series};
use super::reach::{Reach, ratio};
use super::rivals;
use super::row::Measured;
use super::stats::{Samples, Summary, median};
use super::{Bench, Common, Progress};
use orbit::{Area, Engine, Orbit};
use orbit_console::out::{self, Align, Failure, PLAIN, Table};
use orbit_linux::map::{self, Mapping};
use orbit_linux::memfd;
use serde::Serialize;
use std::ffi::{c_long, c_void};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Measures calls on areas of several sizes of which 2 MiB were written since the last call.
///
/// incremental_us: the call, until it is queued. write_faults_us: what the writes before it cost
/// more than on memory that nobody tracks. full_us: copying every page of the area into memory that
/// is all present, which is what a call without tracking has to do. fork_us: fork of the same
/// program.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

/// One row of the result.
#[derive(Serialize)]
struct Row {
    area_bytes: usize,
    new_bytes: usize,
    engine: String,
    incremental_us: Option<Summary>,
    write_faults_us: Option<Summary>,
    /// The same writes after `Area::will_write`, that call included.
    announced_writes_us: Option<Summary>,
    full_us: Option<Summary>,
    fork_us: Option<Summary>,
}

const MIB: usize = 1 << 20;
const NEW: usize = 2 * MIB;
const SIZES: [usize; 8] = [2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB, 64 * MIB, 128 * MIB, 256 * MIB];
const SIZES_QUICK: [usize; 3] = [4 * MIB, 32 * MIB, 256 * MIB];

unsafe extern "C" fn nothing(_: *mut c_void, _: *mut c_void) -> c_long {
    0
}

pub fn run(args: &Args) -> out::Done {
    let mut bench = Bench::start("incremental", &args.common)?;
    orbit::init()?;
    let quick = args.common.quick;
    let sizes: &[usize] = if quick { &SIZES_QUICK } else { &SIZES };
    let progress = Progress::new(sizes.len());
    let mut rows = Vec::new();
    for (nth, &size) in sizes.iter().enumerate() {
        progress.at(nth, &out::bytes(size as u64));
        rows.push(measure(size, if quick { 8 } else { 40 })?);
    }
    progress.finish();
    bench.reach(rows.last().map(reaches).unwrap_or_default());
    bench.reach(vec![sparse(if quick { 60 } else { 300 })?]);
    let (table, chart) = (table(&rows), chart(&rows));
    let rows: Vec<_> = rows.into_iter().map(measured).collect();
    bench.finish(&args.common, &rows, &table, chart)
}

fn measure(size: usize, samples: usize) -> Result<Row, Failure> {
    let orbit = Orbit::new("bench-incremental", nothing)?;
    orbit.wait_ready(Duration::from_secs(20))?;
    let mut field = Field::new("bench-incremental", size, Engine::Track)?;
    // The same writes on memory that nobody tracks, and the place where a full copy goes.
    let file = memfd::create("bench-full", size, false)?;
    let copy = Mapping::shared(file.as_fd(), size, true, true)?;
    let plain = Mapping::anonymous(NEW, true)?;
    let [mut incremental, mut faults, mut announced] = std::array::from_fn(|_| Samples::default());
    let (mut full, mut fork) = (Samples::default(), Samples::default());
    let pages = NEW / PAGE;
    settle(&orbit, &field.area)?;
    for sample in 0..=samples {
        // Other pages each time, as where new objects are made.
        let first = sample * pages % field.pages();
        let new: Vec<usize> = (first..first + pages).collect();
        let began = Instant::now();
        field.write(&new);
        let tracked = began.elapsed();
        let began = Instant::now();
        for page in 0..pages {
            // SAFETY: inside the own mapping.
            unsafe { plain.as_ptr().add(page * PAGE).cast::<usize>().write_volatile(sample) };
        }
        let untracked = began.elapsed();
        let began = Instant::now();
        let call = orbit.call_async(&[&field.area], &[])?;
        let called = began.elapsed();
        call.wait()?;
        let began = Instant::now();
        // SAFETY: both are so long, and do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(field.bytes(), copy.as_ptr(), size) };
        let copied = began.elapsed();
        // Once more, announced. Its call is the same as the other one.
        let first = (first + field.pages() / 2) % field.pages();
        let new: Vec<usize> = (first..first + pages).map(|page| page % field.pages()).collect();
        let began = Instant::now();
        field.area.will_write(field.bytes().wrapping_add(first * PAGE), NEW.min(size - first * PAGE))?;
        field.write(&new);
        let announced_after = began.elapsed();
        orbit.call(&[&field.area], &[])?;
        // The first sample does not count, of nobody.
        if sample > 0 {
            incremental.add(called);
            faults.add(tracked.saturating_sub(untracked));
            announced.add(announced_after.saturating_sub(untracked));
            full.add(copied);
        }
    }
    // Last, for a fork leaves every page of main to be marked or copied at the next write, which is
    // not the call's.
    for _ in 0..samples.div_ceil(4) {
        fork.add(rivals::fork()?);
    }
    let row = Row {
        area_bytes: size,
        new_bytes: NEW,
        engine: field.area.engine().to_string(),
        incremental_us: incremental.summary(),
        write_faults_us: faults.summary(),
        announced_writes_us: announced.summary(),
        full_us: full.summary(),
        fork_us: fork.summary(),
    };
    orbit.destroy()?;
    Ok(row)
}

/// Adopted memory, of which this much is touched in a row.
const TOUCHED: usize = 64 * MIB;
const SPANNED: usize = 8 << 30;

/// A call on memory of which little was ever touched, against one on as much memory, all touched:
/// in turns.
fn sparse(samples: usize) -> Result<Reach, Failure> {
    let orbit = Orbit::new("bench-sparse", nothing)?;
    orbit.wait_ready(Duration::from_secs(20))?;
    let regions = [region(TOUCHED)?, region(SPANNED)?];
    let mut areas = Vec::new();
    for region in &regions {
        for page in 0..TOUCHED / PAGE {
            // SAFETY: inside the own mapping.
            unsafe { region.as_ptr().add(page * PAGE).cast::<usize>().write_volatile(page + 1) };
        }
        // SAFETY: the mapping lives as long as the area is used.
        areas.push(unsafe { Area::builder("bench-sparse").adopt(region.as_ptr(), region.len()) }?);
        settle(&orbit, &areas[areas.len() - 1])?;
    }
    let mut times = [Samples::default(), Samples::default()];
    for sample in 0..samples {
        for (at, region) in regions.iter().enumerate() {
            for page in 0..16 {
                let at = (sample * 16 + page) % 4096 * PAGE;
                // SAFETY: as above.
                unsafe { region.as_ptr().add(at).cast::<usize>().write_volatile(sample) };
            }
            let began = Instant::now();
            let call = orbit.call_async(&[&areas[at]], &[])?;
            times[at].add(began.elapsed());
            call.wait()?;
        }
    }
    orbit.destroy()?;
    let [all, little] = times.map(|times| median(times.summary()));
    let what = "call on 8 GiB adopted, 64 MiB of it touched, to one on 64 MiB";
    Ok(Reach::at_most(what, ratio(little, all), 1.5, "times"))
}

/// Writable address space in small pages.
fn region(bytes: usize) -> Result<Mapping, Failure> {
    let region = Mapping::reserve(bytes)?;
    // SAFETY: the own mapping; a kernel without huge pages rejects the advice, rightly.
    unsafe {
        map::protect(region.addr(), bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        let _ = map::advise(region.addr(), bytes, libc::MADV_NOHUGEPAGE);
    }
    Ok(region)
}

impl Row {
    fn without_faults(&self) -> f64 {
        ratio(median(self.full_us), median(self.incremental_us))
    }

    fn announced(&self) -> f64 {
        ratio(median(self.full_us), median(self.incremental_us) + median(self.announced_writes_us))
    }

    fn with_faults(&self) -> f64 {
        ratio(median(self.full_us), median(self.incremental_us) + median(self.write_faults_us))
    }
}

/// The row in the form that all benches share.
fn measured(row: Row) -> Measured<Row> {
    let [area, new] = [row.area_bytes, row.new_bytes].map(|bytes| out::bytes(bytes as u64));
    let bounds = reaches(&row);
    let (ours, full, fork) = (row.incremental_us, row.full_us, row.fork_us);
    Measured::new(format!("incremental call, {area} area, {new} new"), "us", row)
        .ours(ours)
        .rival("full copy", full)
        .rival("fork", fork)
        .reach(&bounds)
}

fn reaches(row: &Row) -> Vec<Reach> {
    if row.area_bytes != 256 * MIB {
        return Vec::new();
    }
    let what = "full copy to incremental call, 256 MiB with 2 MiB new";
    vec![
        Reach::at_least(what, row.without_faults(), 40.0, "times"),
        Reach::at_least(format!("{what}, write faults counted"), row.with_faults(), 25.0, "times"),
        Reach::at_least(format!("{what}, announced writes counted"), row.announced(), 25.0, "times"),
    ]
}

fn table(rows: &[Row]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("AREA", Right),
        ("NEW", Right),
        ("ENGINE", Left),
        ("INCREMENTAL", Right),
        ("WRITE FAULTS", Right),
        ("ANNOUNCED", Right),
        ("FULL COPY", Right),
        ("FORK", Right),
        ("FULL/INCR", Right),
        ("WITH FAULTS", Right),
        ("ANNOUNCED", Right),
    ]);
    for row in rows {
        let time = |summary: Option<Summary>| summary.map_or("-".to_owned(), |summary| out::time(summary.p50));
        let cells = [
            out::bytes(row.area_bytes as u64),
            out::bytes(row.new_bytes as u64),
            row.engine.clone(),
            time(row.incremental_us),
            time(row.write_faults_us),
            time(row.announced_writes_us),
            time(row.full_us),
            time(row.fork_us),
            out::figures(row.without_faults()),
            out::figures(row.with_faults()),
            out::figures(row.announced()),
        ];
        table.row(cells.into_iter().map(|cell| (cell, PLAIN)).collect());
    }
    table
}

fn chart(rows: &[Row]) -> Chart {
    let of = |name: &str, pick: fn(&Row) -> Option<Summary>| {
        Series::new(name, rows.iter().filter_map(|row| Some((row.area_bytes as f64, pick(row)?.p50))).collect())
    };
    Chart {
        title: "A call with 2 MiB new".to_owned(),
        x: "area, bytes".to_owned(),
        y: "microseconds, median".to_owned(),
        series: vec![
            of("incremental call", |row| row.incremental_us),
            of("its write faults", |row| row.write_faults_us),
            of("the writes, announced", |row| row.announced_writes_us),
            of("copy of all", |row| row.full_us),
            of("fork", |row| row.fork_us),
        ],
    }
}
