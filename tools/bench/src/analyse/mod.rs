//! `orbit bench analyse`: how many of the allocation points that tasks need does `orbit analyse`
//! name, by a run and by sources, and how many besides (Table 7 of the paper). And what watching an
//! instruction takes.
//!
//! The truth: programs whose sources mark the points; for LevelDB's minor compaction, Redis' slow
//! log and save the points without whose memory the task faults ([`withheld`]).

mod redis;
mod withheld;

use super::plot::{Chart, Series};
use super::reach::Reach;
use super::row::Measured;
use super::stats::{Samples, Summary};
use super::{Bench, Common, Progress};
use orbit_analyse::{Options, Place, Report, Source, analyse, likely};
use orbit_console::out::{Align, Done, Failure, PLAIN, Table};
use orbit_leveldb::{Database, Library};
use serde::Serialize;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Compares the allocation points that `orbit analyse` names with those that tasks need.
///
/// Needs a checkout of Orbit's sources, C and C++ compilers, clang, and LevelDB
/// (scripts/packages.sh ports).
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

/// A task: points by name, its own or file and line.
struct Case {
    name: &'static str,
    needed: BTreeSet<String>,
    /// The needed points of a stock program, each with the function that faulted without it.
    readers: String,
    by_run: BTreeSet<String>,
    by_sources: BTreeSet<String>,
    step_us: f64,
    /// Table 7 of the paper: points by hand, by its compiler, and in both.
    paper: Option<[usize; 3]>,
}

/// What a row has beside the shared fields: numbers of points, as in Table 7.
#[derive(Serialize)]
struct Points {
    manual: usize,
    found: usize,
    common: usize,
}

fn subjects() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../analyse/tests/subjects")
}

/// The file's name and the line; without a line the function, without its parameters.
fn name(place: &Place) -> String {
    match (&place.file, place.line) {
        (Some(file), Some(line)) => format!("{}:{line}", file.rsplit('/').next().unwrap_or_default()),
        _ => without_parameters(&place.function).to_owned(),
    }
}

/// A C++ function's name up to its parameters. An unnamed namespace has a parenthesis too.
fn without_parameters(function: &str) -> &str {
    let is_list = |at: &usize| !function[*at..].starts_with("(anonymous namespace)");
    let list = function.match_indices('(').map(|(at, _)| at).find(is_list);
    list.map_or(function, |at| &function[..at])
}

fn watch(program: Vec<OsString>, entry: &str, calls: u64) -> Result<(Report, f64), Failure> {
    let began = Instant::now();
    let entry = entry.parse().map_err(Failure::text)?;
    let report = analyse(&Options { entry, program, calls, limit: Duration::from_secs(120) }, |_| {});
    let report = report.map_err(|error| Failure::text(error.to_string()))?;
    let step = began.elapsed().as_secs_f64() * 1e6 / report.steps.max(1) as f64;
    Ok((report, step))
}

/// A program whose source marks the points that its task needs.
fn marked(name_of_it: &'static str, compiler: &str, entry: &str, but: &str) -> Result<Case, Failure> {
    let source = subjects().join(name_of_it);
    let text = std::fs::read_to_string(&source)?;
    let lines = text.lines().enumerate().filter(|(_, line)| line.contains("SITE") && !line.contains(but));
    let needed = lines.map(|(at, _)| format!("{name_of_it}:{}", at + 1)).collect();
    let program = std::env::temp_dir().join(format!("orbit-bench-analyse-{}", std::process::id()));
    let mut compile = Command::new(compiler);
    compile.args(["-g", "-O0", "-pthread", "-o"]).arg(&program).arg(&source);
    if !compile.status().is_ok_and(|status| status.success()) {
        return Err(Failure::text(format!("{compiler} does not compile {name_of_it}")));
    }
    let watched = watch(vec![program.clone().into()], entry, 2);
    let _ = std::fs::remove_file(&program);
    let (report, step_us) = watched?;
    let sources = [Source { file: source, flags: Vec::new() }];
    let found = likely(entry, &sources).map_err(|error| Failure::text(error.to_string()))?;
    let by_run = report.sites.iter().map(|site| name(&site.at)).collect();
    let by_sources = found.likely.iter().map(|l| name(&l.at)).collect();
    Ok(Case { name: name_of_it, needed, readers: String::new(), by_run, by_sources, step_us, paper: None })
}

/// Debian's LevelDB, as it writes a memtable to a table.
fn leveldb() -> Result<Case, Failure> {
    let entry = "leveldb::BuildTable";
    let database = || Database::new().ok_or_else(|| Failure::text("no LevelDB 1.23: scripts/packages.sh ports"));
    let words = |of: &Database| of.words(Library::Stock, "writes 1 200 none 0");
    let needed = withheld::run(&words(&database()?), entry, 2)?;
    let watched = watch(words(&database()?), entry, 2)?;
    Ok(stock("t8, LevelDB's minor compaction", needed, watched, None))
}

/// A task of a stock Redis.
fn of_redis(
    task: &'static str,
    (entry, calls): (&str, u64),
    commands: &[&[&str]],
    paper: [usize; 3],
) -> Result<Case, Failure> {
    let needed = redis::run(commands, |program| withheld::run(&program, entry, calls))?;
    let watched = redis::run(commands, |program| watch(program, entry, calls))?;
    Ok(stock(task, needed, watched, Some(paper)))
}

/// A stock program's task.
fn stock(
    name_of_it: &'static str,
    needed: withheld::Needed,
    (report, step_us): (Report, f64),
    paper: Option<[usize; 3]>,
) -> Case {
    // A function without a symbol is named by the first caller that has one.
    let has_symbol = |place: &&Place| !place.function.contains("+0x");
    let by_run = report.sites.iter().map(|site| name(site.path.iter().find(has_symbol).unwrap_or(&site.at))).collect();
    let readers = needed.iter().map(|(point, reader)| format!("{point} ({reader})")).collect::<Vec<_>>().join(", ");
    let needed = needed.into_keys().collect();
    Case { name: name_of_it, needed, readers, by_run, by_sources: BTreeSet::new(), step_us, paper }
}

fn share(part: usize, of: usize) -> Option<Summary> {
    let mut samples = Samples::default();
    samples.add_figure(100.0 * part as f64 / of.max(1) as f64);
    samples.summary()
}

/// Calls of the slow log: each command is one.
const SLOW_CALLS: u64 = 12;

pub fn run(args: &Args) -> Done {
    let mut bench = Bench::start("analyse", &args.common)?;
    let progress = Progress::new(5);
    let mut cases = Vec::new();
    progress.at(0, "a C program");
    cases.push(marked("locks.c", "cc", "chain_length", "dangling")?);
    progress.at(1, "a C++ program");
    cases.push(marked("items.cc", "c++", "tasks::total", "nothing")?);
    progress.at(2, "LevelDB");
    cases.push(leveldb()?);
    progress.at(3, "Redis' slow log");
    let slow = ("slowlogPushEntryIfNeeded", SLOW_CALLS);
    cases.push(of_redis("t6, Redis' slow log", slow, &redis::SLOW, [11, 20, 9])?);
    progress.at(4, "Redis' save");
    cases.push(of_redis("t7, Redis' save", ("rdbSave", 1), &redis::SAVE, [12, 65, 11])?);
    progress.finish();
    let mut table = Table::new(&[
        ("TASK", Align::Left),
        ("NEEDED", Align::Right),
        ("BY A RUN", Align::Right),
        ("BY SOURCES", Align::Right),
        ("BY BOTH", Align::Right),
        ("BESIDES", Align::Right),
        ("THE PAPER: NEEDED, FOUND, BESIDES", Align::Right),
        ("US A STEP", Align::Right),
    ]);
    let mut rows = Vec::new();
    for case in &cases {
        let both: BTreeSet<_> = case.by_run.union(&case.by_sources).cloned().collect();
        let common = |found: &BTreeSet<String>| found.intersection(&case.needed).count();
        let besides = both.difference(&case.needed).count();
        let (needed, found) = (case.needed.len(), common(&both));
        let points = || Points { manual: needed, found: both.len(), common: found };
        let percent = |part: usize| 100.0 * part as f64 / needed.max(1) as f64;
        let reach = [
            Reach::at_least(format!("points found, {}", case.name), percent(found), 95.0, "percent"),
            Reach::at_most(format!("points named besides, {}", case.name), percent(besides), 34.0, "percent"),
        ];
        rows.push(
            Measured::new(format!("needed points found, {}", case.name), "percent", points())
                .ours(share(found, needed))
                .rival("by a run", share(common(&case.by_run), needed))
                .rival("by sources", share(common(&case.by_sources), needed))
                .rival("the paper's compiler", case.paper.and_then(|[by_hand, _, both]| share(both, by_hand)))
                .reach(&reach[..1]),
        );
        rows.push(
            Measured::new(format!("points named besides, of those needed, {}", case.name), "percent", points())
                .ours(share(besides, needed))
                .rival("the paper's compiler", case.paper.and_then(|[by_hand, all, both]| share(all - both, by_hand)))
                .reach(&reach[1..]),
        );
        let mut step = Samples::default();
        step.add_figure(case.step_us);
        rows.push(Measured::new(format!("an instruction watched, {}", case.name), "us", points()).ours(step.summary()));
        let cells = [needed, common(&case.by_run), common(&case.by_sources), found, besides].map(|n| n.to_string());
        let papers = case.paper.map_or("-".to_owned(), |[by_hand, all, both]| format!("{by_hand}, {both}, \
            {}", all - both));
        let shown = [case.name.to_owned()].into_iter().chain(cells).chain([papers, format!("{:.1}", case.step_us)]);
        if !case.readers.is_empty() {
            bench.note(format!("{}: needed, with the function that faulted without it: {}", case.name, case.readers));
        }
        if besides > 0 || found < needed {
            let names = |of: Vec<&String>| of.into_iter().cloned().collect::<Vec<_>>().join(", ");
            let more = names(both.difference(&case.needed).collect());
            let missing = names(case.needed.difference(&both).collect());
            bench.note(format!("{}: named besides: {more}; not found: {missing}", case.name));
        }
        table.row(shown.map(|cell| (cell, PLAIN)).collect());
        bench.reach(reach);
    }
    bench.note("what the watched programs print stands among the output".to_owned());
    let chart = Chart { title: "analyse".to_owned(), x: String::new(), y: String::new(), series: Vec::<Series>::new() };
    bench.finish(&args.common, &rows, &table, chart)
}
