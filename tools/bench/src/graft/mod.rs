//! `orbit bench graft`: how long a program stands still while another process enters it, makes
//! calls in it, maps a page, unmaps it and leaves; by `graft`, by bare ptrace without any of
//! graft's care, and by gdb.
//!
//! The figure is the program's own: the longest gap between two readings of the clock by a thread
//! of it that reads it without pause. The ways take turns on one program.

mod bare;
mod subject;

use super::plot::{Chart, Series};
use super::reach::{Reach, ratio};
use super::row::Measured;
use super::stats::{Samples, Summary, median};
use super::{Bench, Common, Progress};
use ::graft::{Process, Protection, Source};
use orbit_console::out::{self, Align, Failure, PLAIN, Table};
use orbit_linux::child::Exit as _;
use serde::Serialize;
use std::process::{Command, Stdio};
use subject::Subject;

/// Measures how long a program is stopped while it is entered: by graft, by bare ptrace, by gdb.
///
/// gdb is measured where it is installed.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Runs the program that is entered, with so many threads.
    #[arg(long, hide = true, value_name = "THREADS")]
    subject: Option<usize>,
}

/// Threads of the program: the one that reads the clock, and others that sleep.
const THREADS: [usize; 3] = [1, 8, 64];
/// Memory that is mapped and unmapped, bytes.
const REGION: u64 = 4096;

/// What is done while the program is stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Nothing: all threads are stopped and released.
    Stop,
    /// One call, a page mapped, unmapped.
    Calls,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Stop => "stop and release",
            Work::Calls => "stop, a call, a page mapped and unmapped, release",
        }
    }

    /// How many times as long as bare ptrace, at most: graft reads and keeps more of each thread,
    /// and has each call stand in a stub that a program whose tracer died survives.
    fn limit(self) -> f64 {
        match self {
            Work::Stop => 2.0,
            Work::Calls => 5.0,
        }
    }
}

/// What a row has beside the shared fields.
#[derive(Serialize)]
struct Own {
    threads: usize,
    work: &'static str,
}

pub fn run(args: &Args) -> out::Done {
    if let Some(threads) = args.subject {
        return subject::run(threads);
    }
    let mut bench = Bench::start("graft", &args.common)?;
    let (rounds, by_gdb) = if args.common.quick { (30, 3) } else { (300, 10) };
    let has_gdb = gdb_enters_another();
    if let Err(why) = &has_gdb {
        bench.note(format!("gdb was not measured: {why}"));
    }
    bench.note("gdb reads the program's symbols while the program is stopped".to_owned());
    let (left, right) = (Align::Left, Align::Right);
    let mut table = Table::new(&[
        ("THE PROGRAM IS STOPPED FOR", left),
        ("THREADS", right),
        ("GRAFT", right),
        ("P99", right),
        ("BARE PTRACE", right),
        ("GDB", right),
        ("GRAFT/PTRACE", right),
    ]);
    let works = [Work::Stop, Work::Calls];
    let progress = Progress::new(THREADS.len() * works.len());
    let (mut rows, mut series) = (Vec::new(), works.map(|_| (Vec::new(), Vec::new())));
    for (nth, threads) in THREADS.into_iter().enumerate() {
        let subject = Subject::start(threads)?;
        for (at, work) in works.into_iter().enumerate() {
            progress.at(nth * works.len() + at, &format!("{threads} threads: {}", work.name()));
            let stops = measure(&subject, work, rounds, if has_gdb.is_ok() { by_gdb } else { 0 })?;
            let times = ratio(median(stops.ours), median(stops.bare));
            let cells = [
                work.name().to_owned(),
                threads.to_string(),
                shown(stops.ours.map(|ours| ours.p50)),
                shown(stops.ours.map(|ours| ours.p99)),
                shown(stops.bare.map(|bare| bare.p50)),
                shown(stops.gdb.map(|gdb| gdb.p50)),
                format!("{times:.2}"),
            ];
            table.row(cells.map(|cell| (cell, PLAIN)).into());
            let what = format!("graft to bare ptrace, {threads} threads: {}", work.name());
            let bound = [Reach::at_most(what, times, work.limit(), "times")];
            let measure = format!("stopped for: {}; {threads} threads", work.name());
            let row = Measured::new(measure, "us", Own { threads, work: work.name() });
            rows.push(row.ours(stops.ours).rival("ptrace", stops.bare).rival("gdb", stops.gdb).reach(&bound));
            bench.reach(bound);
            series[at].0.push((threads as f64, median(stops.ours)));
            series[at].1.push((threads as f64, median(stops.bare)));
        }
    }
    progress.finish();
    let lines = works.iter().zip(series).flat_map(|(work, (ours, bare))| {
        [Series::new(&format!("graft: {}", work.name()), ours), Series::new(&format!("ptrace: {}", work.name()), bare)]
    });
    let chart = Chart {
        title: "Time for which a program that is entered is stopped".to_owned(),
        x: "threads".to_owned(),
        y: "us".to_owned(),
        series: lines.collect(),
    };
    bench.finish(&args.common, &rows, &table, chart)
}

/// How long a program was stopped, in us.
struct Stops {
    ours: Option<Summary>,
    bare: Option<Summary>,
    gdb: Option<Summary>,
}

/// The ways take turns; gdb only in the first rounds.
fn measure(subject: &Subject, work: Work, rounds: usize, by_gdb: usize) -> Result<Stops, Failure> {
    let (mut ours, mut bare, mut gdb) = (Samples::default(), Samples::default(), Samples::default());
    for round in 0..rounds {
        ours.add(subject.stopped_by(|| by_graft(&subject.process, work))?);
        bare.add(subject.stopped_by(|| bare::enter(&subject.process, work))?);
        if round < by_gdb {
            gdb.add(subject.stopped_by(|| gdb_enters(subject.process.pid(), work))?);
        }
    }
    Ok(Stops { ours: ours.summary(), bare: bare.summary(), gdb: gdb.summary() })
}

fn shown(us: Option<f64>) -> String {
    us.map_or("-".to_owned(), out::time)
}

fn failed(what: impl std::fmt::Display) -> Failure {
    Failure::text(format!("bench graft: {what}"))
}

fn by_graft(process: &Process, work: Work) -> Result<(), Failure> {
    let pid = process.pid() as u64;
    let done = process.while_stopped(|stopped| -> Result<bool, ::graft::Error> {
        if work == Work::Stop {
            return Ok(true);
        }
        let answer = stopped.call(libc::SYS_getpid, [0; 6])?;
        let region = stopped.map(None, REGION, Protection::READ_WRITE, Source::Zeroes)?;
        stopped.unmap(region)?;
        Ok(answer == pid)
    });
    match done.map_err(failed)? {
        true => Ok(()),
        false => Err(failed("an injected getpid answered wrongly")),
    }
}

/// Whether gdb can make calls in a program here, tried with one that nothing is measured of. On a
/// CPU with AMX that of Debian 12 cannot: it fails to write the registers back, which ruins the
/// program.
fn gdb_enters_another() -> Result<(), String> {
    let mut other = Command::new("sleep").arg("60").spawn().map_err(|error| format!("sleep: {error}"))?;
    let done = gdb_enters(other.id() as i32, Work::Calls);
    // It may have ended already.
    let _ = other.kill();
    other.wait_for_exit().map_err(|error| error.to_string())?;
    done.map_err(|error| error.to_string())
}

fn gdb_enters(pid: i32, work: Work) -> Result<(), Failure> {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-p", &pid.to_string()]);
    if work == Work::Calls {
        // Read and write, private and anonymous, as in the other ways.
        let map = format!("set $page = ((long (*)(long, long, int, int, int, long)) mmap)(0, {REGION}, 3, 0x22, -1, \
            0)");
        gdb.args(["-ex", "print ((int (*)(void)) getpid)()", "-ex", &map]);
        gdb.args(["-ex", &format!("print ((int (*)(long, long)) munmap)($page, {REGION})")]);
    }
    let done = gdb.args(["-ex", "detach"]).stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&done.stdout);
    let is_done = work == Work::Stop || said.contains(&format!("$1 = {pid}")) && said.contains("$2 = 0");
    match done.status.success() && is_done {
        true => Ok(()),
        false => {
            let errors = String::from_utf8_lossy(&done.stderr);
            Err(failed(format!("gdb: {}", errors.lines().last().unwrap_or("the calls in the program failed"))))
        }
    }
}
