//! `orbit bench call`: how long a call delays the caller, for areas of several sizes (Figure 10
//! of the paper), against handing work to a thread, writing the dirty pages to a process, and fork.

use super::machine;
use super::memory::{Ballast, Field, PAGE, Twin, settle};
use super::plot::{Chart, Series};
use super::reach::{Reach, ratio};
use super::row::Measured;
use super::rivals::{self, Echo, Hand, Piped, Places, Sleeper};
use super::stats::{Samples, Shuffle, Summary, median};
use super::{Bench, Common, Progress};
use orbit::{CallOptions, Engine, Limits, Orbit};
use orbit_console::out::{self, Align, Failure, PLAIN, Table};
use serde::Serialize;
use std::ffi::{c_long, c_void};
use std::time::{Duration, Instant};

/// How large the program is in which all this happens, areas not counted.
const FOOTPRINT: u64 = 32 << 20;

/// Measures how long a call delays main, against a thread, a pipe and fork.
///
/// The program has 32 MiB besides its area. Per sample main writes to the dirty pages, then hands
/// over; the rivals take turns, and everybody sleeps before it is their turn (rows "awake": the
/// orbit still polls for calls). Times are those of main's thread alone: async_us until
/// the snapshot is taken and the call is queued, sync_us until the answer is there,
/// async_every_1500_us and async_every_10_ms after main has slept that long, as a server does
/// between requests (thread_every_...: the thread then), async_beside_threads_us where another
/// thread of main ran just before, thread_us for a mutex and a condition, pipe_us for writing the
/// dirty pages to a process, fork_us for the fork alone, futex_us for a round trip between two
/// sleepers on the same two CPUs.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// How written pages are found: auto, track, compare, copy, fork, share; or `all` for a row
    /// each.
    #[arg(long, default_value = "auto", value_parser = parse_engines)]
    engine: Engines,
    /// Measures areas of these sizes (64MiB, 8GiB) in place of the usual ones, with 64 pages, one
    /// in a hundred, and all of them dirty. Takes three times as much memory as the largest; engine
    /// share as much again as is dirty. Fork is measured with as much plain memory then.
    #[arg(long, value_delimiter = ',', value_parser = parse_area)]
    area: Vec<usize>,
}

/// The engines to measure.
#[derive(Clone, Debug)]
struct Engines(Vec<Engine>);

fn parse_engines(name: &str) -> Result<Engines, String> {
    if name == "all" {
        return Ok(Engines(vec![Engine::Auto, Engine::Track, Engine::Compare, Engine::Copy]));
    }
    name.parse().map(|engine| Engines(vec![engine])).map_err(|error: orbit::Error| error.to_string())
}

/// Whole pages of an area, from `4KiB` on.
fn parse_area(text: &str) -> Result<usize, String> {
    let wrong = || format!("\"{text}\" is no size of an area: say so many KiB, MiB or GiB, as 512MiB or 8GiB");
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let unit = match &text[at..] {
        "KiB" => KIB,
        "MiB" => MIB,
        "GiB" => 1 << 30,
        _ => return Err(wrong()),
    };
    let bytes = text[..at].parse::<usize>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(wrong)?;
    if bytes == 0 || !bytes.is_multiple_of(PAGE) { Err(wrong()) } else { Ok(bytes) }
}

/// One row of the result.
#[derive(Serialize)]
struct Row {
    area_bytes: usize,
    dirty_pages: usize,
    /// The one asked for, and the one that was at work.
    asked_engine: String,
    engine: String,
    /// `awake` or `asleep`.
    orbit: &'static str,
    async_us: Option<Summary>,
    sync_us: Option<Summary>,
    /// async_us where a thread of main ran on the other CPU just before.
    async_beside_threads_us: Option<Summary>,
    thread_us: Option<Summary>,
    /// Main slept for 1.5 ms, or 10 ms, before: caches have cooled down. Small areas only.
    async_every_1500_us: Option<Summary>,
    thread_every_1500_us: Option<Summary>,
    async_every_10_ms: Option<Summary>,
    thread_every_10_ms: Option<Summary>,
    pipe_us: Option<Summary>,
    /// Resident memory of the program that forks.
    main_bytes: u64,
    fork_us: Option<Summary>,
    futex_us: Option<Summary>,
    /// Calls whose snapshot a one-shot child held, of all that were measured.
    copier_calls: u64,
}

#[derive(Clone, Copy)]
struct Case {
    area_bytes: usize,
    dirty_pages: usize,
    engine: Engine,
    awake: bool,
}

impl Case {
    /// Whether fork is measured beforehand, with plain memory.
    fn is_large(&self) -> bool {
        self.engine == Engine::Share || self.area_bytes > 256 * MIB
    }

    fn all_dirty(&self) -> bool {
        self.dirty_pages * PAGE == self.area_bytes
    }

    /// Whether calls with gaps between them are measured.
    fn has_gaps(&self) -> bool {
        !self.awake && self.area_bytes <= 64 * KIB && !(self.all_dirty() && self.area_bytes > PAGE)
    }
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Area and dirty pages.
const SPARSE: [(usize, usize); 9] = [
    (4 * KIB, 1),
    (16 * KIB, 1),
    (16 * KIB, 2),
    (64 * KIB, 1),
    (64 * KIB, 2),
    (256 * KIB, 4),
    (MIB, 13),
    (16 * MIB, 64),
    (256 * MIB, 64),
];
const SPARSE_QUICK: [(usize, usize); 5] = [(4 * KIB, 1), (16 * KIB, 2), (64 * KIB, 1), (64 * KIB, 2), (MIB, 13)];
const FULL: [usize; 5] = [64 * KIB, MIB, 8 * MIB, 64 * MIB, 256 * MIB];
const FULL_QUICK: [usize; 3] = [64 * KIB, MIB, 8 * MIB];

/// How long main sleeps before a call "now and then".
const GAPS: [Duration; 2] = [Duration::from_micros(1500), Duration::from_millis(10)];
/// How much longer than a hand-over to a thread a call may take after such a gap.
const AFTER_GAPS: [f64; 2] = [1.4, 1.6];

/// The orbit's function: nothing, as only main's time is measured.
unsafe extern "C" fn nothing(_: *mut c_void, _: *mut c_void) -> c_long {
    0
}

/// Those that main hands work to.
struct Rivals {
    places: Places,
    hand: Hand,
    echo: Echo,
    piped: Piped,
}

pub fn run(args: &Args) -> out::Done {
    let mut bench = Bench::start("call", &args.common)?;
    let places = Places::find();
    // First, while this program has one thread and little memory.
    let piped = Piped::start(&places)?;
    orbit::init()?;
    let rivals = Rivals { hand: Hand::start(&places)?, echo: Echo::start(&places)?, piped, places };
    let mut ballast = Ballast::none();
    ballast.fill_up_to(FOOTPRINT)?;
    let cases = match &*args.area {
        [] => cases(&args.engine.0, args.common.quick),
        sizes => cases_of(&args.engine.0, sizes),
    };
    let mut rows = Vec::new();
    let progress = Progress::new(cases.len());
    for (nth, case) in cases.iter().enumerate() {
        progress.at(nth, &format!("{} with {} dirty", out::bytes(case.area_bytes as u64), case.dirty_pages));
        match measure(case, &rivals, args.common.quick) {
            Ok(row) => rows.push(row),
            Err(failure) => bench.note(format!("engine {}: {failure}", case.engine)),
        }
    }
    progress.finish();
    rivals.places.hold(false);
    for row in &rows {
        bench.reach(reaches(row));
    }
    let (table, chart) = (table(&rows), chart(&rows));
    let rows: Vec<_> = rows.into_iter().map(measured).collect();
    bench.finish(&args.common, &rows, &table, chart)
}

fn cases(engines: &[Engine], quick: bool) -> Vec<Case> {
    let sparse: &[_] = if quick { &SPARSE_QUICK } else { &SPARSE };
    let full: &[_] = if quick { &FULL_QUICK } else { &FULL };
    let mut cases = Vec::new();
    for &engine in engines {
        for &(area_bytes, dirty_pages) in sparse {
            cases.push(Case { area_bytes, dirty_pages, engine, awake: false });
            if area_bytes <= 64 * KIB {
                cases.push(Case { area_bytes, dirty_pages, engine, awake: true });
            }
        }
        for &area_bytes in full {
            cases.push(Case { area_bytes, dirty_pages: area_bytes / PAGE, engine, awake: false });
        }
    }
    cases
}

/// Those of areas that were asked for.
fn cases_of(engines: &[Engine], sizes: &[usize]) -> Vec<Case> {
    let dirty = |pages: usize| [64.min(pages), pages.div_ceil(100), pages];
    let of = |engine: Engine, area_bytes: usize| {
        let mut dirty = Vec::from(dirty(area_bytes / PAGE));
        dirty.sort_unstable();
        dirty.dedup();
        dirty.into_iter().map(move |dirty_pages| Case { area_bytes, dirty_pages, engine, awake: false })
    };
    engines.iter().flat_map(|&engine| sizes.iter().flat_map(move |&bytes| of(engine, bytes))).collect()
}

fn measure(case: &Case, rivals: &Rivals, quick: bool) -> Result<Row, Failure> {
    let mut times = Times::default();
    if case.is_large() {
        // The area's memory is not as other memory for a fork: as much of the usual kind is.
        let _twin = Twin::new(case.area_bytes)?;
        for _ in 0..4 {
            times.fork.add(rivals::fork()?);
        }
    }
    let limits = rivals.places.others().map_or(Limits::new(), |cpu| Limits::new().cpus([cpu]));
    let orbit = Orbit::builder("bench-call").entry(nothing).limits(limits).build()?;
    orbit.wait_ready(Duration::from_secs(20))?;
    let field = Field::new("bench-call", case.area_bytes, case.engine)?;
    let sleeper = Sleeper::process(orbit.pid())?;
    let mut run = Run {
        case: *case,
        orbit,
        sleeper,
        field,
        rivals,
        pages: Vec::new(),
        times: Times::default(),
        shuffle: Shuffle::new(1),
    };
    run.pages = run.field.spread(case.dirty_pages);
    // A copier is a child as fork's is: it must not have to share main's CPU.
    rivals.places.hold(!case.all_dirty());
    if case.engine != Engine::Copy && case.area_bytes > 8 * KIB {
        settle(&run.orbit, &run.field.area)?;
    }
    // The first turn does not count, of nobody.
    run.round(0)?;
    run.times = times;
    let copiers = run.orbit.stats().copiers;
    let (least, most, budget) = if quick { (5, 60, 1.0) } else { (8, 400, 5.0) };
    let began = Instant::now();
    let mut round = 0;
    while round < most && (round < least || began.elapsed().as_secs_f64() < budget) {
        round += 1;
        if case.awake { run.round_awake()? } else { run.round(round)? }
    }
    if case.has_gaps() {
        run.now_and_then(if quick { 30 } else { 150 })?;
    }
    rivals.places.hold(false);
    let row = run.row(copiers);
    run.orbit.destroy()?;
    Ok(row)
}

#[derive(Default)]
struct Times {
    call_async: Samples,
    call_sync: Samples,
    beside_threads: Samples,
    thread: Samples,
    /// One for each of [`GAPS`].
    async_after: [Samples; GAPS.len()],
    thread_after: [Samples; GAPS.len()],
    pipe: Samples,
    fork: Samples,
    futex: Samples,
}

struct Run<'a> {
    case: Case,
    orbit: Orbit,
    sleeper: Sleeper,
    field: Field,
    rivals: &'a Rivals,
    pages: Vec<usize>,
    times: Times,
    shuffle: Shuffle,
}

impl Run<'_> {
    /// Everybody once, in an order that changes from round to round; fork every fourth round. What
    /// a fork leaves behind (pages to be copied or marked at the next write) is fork's affair: a
    /// round that does not count follows it.
    fn round(&mut self, round: usize) -> Result<(), Failure> {
        if round % 4 == 1 && !self.case.is_large() {
            self.field.write(&self.pages);
            self.rivals.places.hold(false);
            self.times.fork.add(rivals::fork()?);
            self.rivals.places.hold(!self.case.all_dirty());
            let counted = std::mem::take(&mut self.times);
            self.turns()?;
            self.times = counted;
        }
        self.turns()
    }

    fn turns(&mut self) -> Result<(), Failure> {
        let mut order = [0, 1, 2, 3, 4];
        self.shuffle.shuffle(&mut order);
        for rival in order {
            self.field.write(&self.pages);
            self.sleeper.wait()?;
            self.rivals.hand.sleeper.wait()?;
            self.rivals.echo.sleeper.wait()?;
            self.rivals.piped.sleeper.wait()?;
            match rival {
                0 => self.call_async()?,
                1 => self.call_sync()?,
                2 => self.times.thread.add(self.rivals.hand.give()),
                3 => self.times.pipe.add(self.rivals.piped.give(self.field.bytes(), &self.pages)?),
                _ => self.times.futex.add(self.rivals.echo.round_trip()),
            }
            if rival == 2 || rival == 4 {
                self.call_beside_threads()?;
            }
        }
        Ok(())
    }

    /// Calls and hand-overs, each after a sleep of main's, in turns.
    fn now_and_then(&mut self, rounds: usize) -> Result<(), Failure> {
        for turn in 0..rounds * GAPS.len() {
            let gap = turn % GAPS.len();
            let first = (turn / GAPS.len()).is_multiple_of(2);
            for ours in [first, !first] {
                self.sleeper.wait()?;
                self.rivals.hand.sleeper.wait()?;
                std::thread::sleep(GAPS[gap]);
                self.field.write(&self.pages);
                if ours {
                    let counted = std::mem::take(&mut self.times.call_async);
                    self.call_async()?;
                    let after = std::mem::replace(&mut self.times.call_async, counted);
                    self.times.async_after[gap].extend(after.figures());
                } else {
                    self.times.thread_after[gap].add(self.rivals.hand.give());
                }
            }
        }
        Ok(())
    }

    /// Calls that come as fast as they are answered, so that the orbit keeps polling for the next
    /// one: first some to get it going, then some that count. No rival has such a state.
    fn round_awake(&mut self) -> Result<(), Failure> {
        let counted = std::mem::take(&mut self.times);
        for _ in 0..100 {
            self.field.write(&self.pages);
            self.call_async()?;
        }
        self.times = counted;
        for _ in 0..20 {
            self.field.write(&self.pages);
            self.call_async()?;
            self.field.write(&self.pages);
            self.call_sync()?;
        }
        Ok(())
    }

    /// A thread of main has just run on the other CPU, which still holds main's address
    /// translations: the next call that protects pages has to interrupt it. That call is counted by
    /// itself.
    fn call_beside_threads(&mut self) -> Result<(), Failure> {
        self.field.write(&self.pages);
        self.sleeper.wait()?;
        let counted = std::mem::take(&mut self.times.call_async);
        self.call_async()?;
        let beside = std::mem::replace(&mut self.times.call_async, counted);
        self.times.beside_threads.extend(beside.figures());
        Ok(())
    }

    fn call_async(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        let call = match self.quiet() {
            Some(quiet) => self.orbit.call_async_with(&[&self.field.area], &[], &quiet)?,
            None => self.orbit.call_async(&[&self.field.area], &[])?,
        };
        self.times.call_async.add(began.elapsed());
        self.check(&call.wait()?)
    }

    fn call_sync(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        let outcome = match self.quiet() {
            Some(quiet) => self.orbit.call_with(&[&self.field.area], &[], &quiet)?,
            None => self.orbit.call(&[&self.field.area], &[])?,
        };
        self.times.call_sync.add(began.elapsed());
        self.check(&outcome)
    }

    /// For a shared area: this thread alone writes to it.
    fn quiet(&self) -> Option<CallOptions> {
        // SAFETY: the other threads of this program, and its children, have nothing of the field.
        (self.case.engine == Engine::Share).then(|| unsafe { CallOptions::new().quiet() })
    }

    fn check(&self, outcome: &orbit::Outcome) -> Result<(), Failure> {
        match outcome.returned() {
            Some(0) => Ok(()),
            _ => Err(Failure::text(format!("a call that should have returned 0: {outcome}"))),
        }
    }

    fn row(&self, copiers_before: u64) -> Row {
        Row {
            area_bytes: self.case.area_bytes,
            dirty_pages: self.case.dirty_pages,
            asked_engine: self.case.engine.to_string(),
            engine: self.field.area.engine().to_string(),
            orbit: if self.case.awake { "awake" } else { "asleep" },
            async_us: self.times.call_async.summary(),
            sync_us: self.times.call_sync.summary(),
            async_beside_threads_us: self.times.beside_threads.summary(),
            thread_us: self.times.thread.summary(),
            async_every_1500_us: self.times.async_after[0].summary(),
            thread_every_1500_us: self.times.thread_after[0].summary(),
            async_every_10_ms: self.times.async_after[1].summary(),
            thread_every_10_ms: self.times.thread_after[1].summary(),
            main_bytes: machine::resident(),
            pipe_us: self.times.pipe.summary(),
            fork_us: self.times.fork.summary(),
            futex_us: self.times.futex.summary(),
            copier_calls: self.orbit.stats().copiers - copiers_before,
        }
    }
}

/// The row in the form that all benches share. Fork's time depends on main's size, so the measure
/// names it.
fn measured(row: Row) -> Measured<Row> {
    let size = out::bytes(row.area_bytes as u64);
    let main = out::bytes(row.main_bytes >> 20 << 20);
    let what = format!(
        "async call, {size} area, {} dirty, orbit {}, {}, main {main}",
        row.dirty_pages, row.orbit, row.asked_engine
    );
    let bounds = reaches(&row);
    let (ours, thread, pipe, fork) = (row.async_us, row.thread_us, row.pipe_us, row.fork_us);
    Measured::new(what, "us", row)
        .ours(ours)
        .rival("thread", thread)
        .rival("pipe", pipe)
        .rival("fork", fork)
        .reach(&bounds)
}

/// What this row has to reach.
fn reaches(row: &Row) -> Vec<Reach> {
    let (call, thread) = (median(row.async_us), median(row.thread_us));
    let (fork, futex) = (median(row.fork_us), median(row.futex_us));
    let what = format!("{} area, {} dirty, {}", out::bytes(row.area_bytes as u64), row.dirty_pages, row.orbit);
    let mut reaches = Vec::new();
    if row.asked_engine != Engine::Auto.to_string() {
        return reaches;
    }
    let awake = row.orbit == "awake";
    let few = row.dirty_pages <= 2;
    let main = out::bytes(row.main_bytes >> 20 << 20);
    if awake && row.area_bytes == 64 * KIB {
        reaches.push(Reach::at_most(format!("async call, {what}"), call, 2.5, "us"));
    }
    if awake && row.area_bytes == 4 * KIB {
        reaches.push(Reach::at_most(format!("sync call, {what}"), median(row.sync_us), 2.0, "us"));
    }
    if awake {
        return reaches;
    }
    if few && row.area_bytes <= 64 * KIB {
        let limit = if row.area_bytes <= 16 * KIB { 2.0 } else { 3.0 };
        reaches.push(Reach::at_most(format!("async call to thread, {what}"), ratio(call, thread), limit, "times"));
        reaches.push(Reach::at_least(format!("fork (main {main}) to async call, \
            {what}"), ratio(fork, call), 50.0, "times"));
    }
    let gaps = [
        ("1.5 ms", row.async_every_1500_us, row.thread_every_1500_us, AFTER_GAPS[0]),
        ("10 ms", row.async_every_10_ms, row.thread_every_10_ms, AFTER_GAPS[1]),
    ];
    for (gap, call, thread, most) in gaps {
        if let (Some(call), Some(thread)) = (call, thread) {
            let what = format!("async call every {gap} to thread, {what}");
            reaches.push(Reach::at_most(what, ratio(call.p50, thread.p50), most, "times"));
        }
    }
    if row.area_bytes == 4 * KIB {
        let sync = ratio(median(row.sync_us), futex);
        reaches.push(Reach::at_most(format!("sync call to futex round trip, {what}"), sync, 1.5, "times"));
    }
    if row.area_bytes == MIB && row.dirty_pages == 13 {
        reaches.push(Reach::at_least(format!("fork (main {main}) to async call, \
            {what}"), ratio(fork, call), 30.0, "times"));
    }
    if row.dirty_pages * PAGE == row.area_bytes && row.area_bytes > 4 * KIB {
        reaches.push(Reach::at_most(format!("async call to fork (main {main}), \
            {what}"), ratio(call, fork), 1.2, "times"));
    }
    reaches
}

fn table(rows: &[Row]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("AREA", Right),
        ("DIRTY", Right),
        ("ENGINE", Left),
        ("ORBIT", Left),
        ("ASYNC", Right),
        ("P99", Right),
        ("SYNC", Right),
        ("BESIDE", Right),
        ("THREAD", Right),
        ("PIPE", Right),
        ("FORK", Right),
        ("FUTEX", Right),
        ("ASYNC/THREAD", Right),
        ("EVERY 1.5 MS", Right),
        ("EVERY 10 MS", Right),
        ("FORK/ASYNC", Right),
        ("MAIN'S SIZE", Right),
    ]);
    for row in rows {
        let time = |summary: Option<Summary>| summary.map_or("-".to_owned(), |summary| out::time(summary.p50));
        let times = |a: Option<Summary>, b: Option<Summary>| match (a, b) {
            (Some(a), Some(b)) => out::figures(ratio(a.p50, b.p50)),
            _ => "-".to_owned(),
        };
        let by = if row.copier_calls > 0 { "+child" } else { "" };
        let cells = [
            out::bytes(row.area_bytes as u64),
            row.dirty_pages.to_string(),
            format!("{}{by}", row.engine),
            row.orbit.to_owned(),
            time(row.async_us),
            row.async_us.map_or("-".to_owned(), |summary| out::time(summary.p99)),
            time(row.sync_us),
            time(row.async_beside_threads_us),
            time(row.thread_us),
            time(row.pipe_us),
            time(row.fork_us),
            time(row.futex_us),
            times(row.async_us, row.thread_us),
            times(row.async_every_1500_us, row.thread_every_1500_us),
            times(row.async_every_10_ms, row.thread_every_10_ms),
            times(row.fork_us, row.async_us),
            out::bytes(row.main_bytes),
        ];
        table.row(cells.into_iter().map(|cell| (cell, PLAIN)).collect());
    }
    table
}

fn chart(rows: &[Row]) -> Chart {
    let of = |name: &str, all_dirty: bool, pick: fn(&Row) -> Option<Summary>| {
        let fits = |row: &&Row| {
            row.orbit == "asleep" && (row.dirty_pages * PAGE == row.area_bytes && row.area_bytes > 4 * KIB) == all_dirty
        };
        let mut points: Vec<(f64, f64)> = Vec::new();
        for row in rows.iter().filter(fits) {
            let Some(summary) = pick(row) else { continue };
            let point = (row.area_bytes as f64, summary.p50);
            // Of rows about one area the last counts, which has most dirty pages: a line has one
            // value there.
            match points.last_mut() {
                Some(last) if last.0 == point.0 => *last = point,
                _ => points.push(point),
            }
        }
        Series::new(name, points)
    };
    Chart {
        title: "How long a call delays main (orbit asleep)".to_owned(),
        x: "area, bytes".to_owned(),
        y: "microseconds, median".to_owned(),
        series: vec![
            of("async, few dirty", false, |row| row.async_us),
            of("sync, few dirty", false, |row| row.sync_us),
            of("async, all dirty", true, |row| row.async_us),
            of("thread", false, |row| row.thread_us),
            of("pipe, few dirty", false, |row| row.pipe_us),
            of("fork", true, |row| row.fork_us),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_areas() {
        assert_eq!(parse_area("8GiB"), Ok(8 << 30));
        assert_eq!(parse_area("4KiB"), Ok(PAGE));
        for wrong in ["", "8", "GiB", "1KiB", "0MiB", "8gb", "99999999999999GiB"] {
            assert!(parse_area(wrong).is_err_and(|text| text.contains("512MiB")), "{wrong}");
        }
        let cases = cases_of(&[Engine::Share], &[8 << 30, 64 << 10]);
        let dirty: Vec<usize> = cases.iter().map(|case| case.dirty_pages).collect();
        assert_eq!(dirty, [64, 20_972, 2 << 20, 1, 16]);
    }
}
