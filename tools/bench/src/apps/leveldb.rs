//! LevelDB's compaction: in the orbit and by stock, for the same writes of one writer. What writers
//! see, and CPU time.

use super::lines::lines;
use super::paper::{Figure, Task};
use super::table::{Own, Row, Rows, number, row};
use crate::reach::{Reach, ratio};
use crate::stats::{Samples, Shuffle, median};
use crate::{Bench, Progress};
use orbit_console::out::Failure;
use orbit_leveldb::{Database, Library};
use std::time::Instant;

const OWN: Own = Own::new("leveldb", 1);
/// What the program of the port prints, the measure and its unit. CPU time of the orbit stands
/// beside the program's own.
const PRINTED: [(&str, &str, &str); 3] = [
    ("write_p50_us", "a write, median of a run", "us"),
    ("write_p999_us", "a write, 99.9 % of a run", "us"),
    ("write_max_us", "longest write of a run", "us"),
];

/// Figures of one library, each a sample a run.
#[derive(Default)]
struct Figures {
    printed: [Samples; PRINTED.len()],
    program_cpu: Samples,
    all_cpu: Samples,
    run: Samples,
}

/// Figures of one library that fills a database, each a sample a run.
#[derive(Default)]
struct Filled {
    writes: Samples,
    /// CPU time of the program and the orbit, of a write.
    cpu: Samples,
    /// Of the orbits: calls a second, KiB of a memtable's snapshot, and its share of the program's
    /// memory.
    calls: Samples,
    snapshot: Samples,
    share: Samples,
}

pub fn run(bench: &mut Bench, quick: bool) -> Result<Rows, Failure> {
    let (rounds, writes) = if quick { (4, 60_000) } else { (20, 300_000) };
    let progress = Progress::new(2 * rounds);
    let mut figures = [Figures::default(), Figures::default()];
    let mut shuffle = Shuffle::new(5);
    for round in 0..rounds {
        progress.at(round, "writes");
        let mut order = [(0, Library::Orbit), (1, Library::Stock)];
        shuffle.shuffle(&mut order);
        let mut hashes = Vec::new();
        for (nth, library) in order {
            hashes.push(once(library, round, writes, &mut figures[nth])?);
        }
        if hashes[0] != hashes[1] {
            return Err(Failure::text(format!("seed {round}: the contents differ from stock")));
        }
    }
    bench.note(format!("{writes} writes of 100 to 500 bytes to 40,000 keys, then a compaction of all, in each run"));
    let [ours, stock] = figures;
    let with = |measure: &str, unit, a: &Samples, b: &Samples| -> Row {
        row(measure, unit, a.summary(), &[("stock", b.summary())], &[], OWN)
    };
    let mut rows: Vec<Row> = PRINTED
        .iter()
        .enumerate()
        .map(|(nth, (_, measure, unit))| with(measure, unit, &ours.printed[nth], &stock.printed[nth]))
        .collect();
    rows.push(with("CPU time of the program", "ms", &ours.program_cpu, &stock.program_cpu));
    rows.push(with("CPU time of the program and the orbit", "ms", &ours.all_cpu, &stock.all_cpu));
    rows.push(with("a run", "ms", &ours.run, &stock.run));
    rows.extend(fill(bench, &progress, rounds, quick)?);
    rows.extend(lines("leveldb").map(|lines| number("lines of the port", "lines", lines, of(Figure::Lines))));
    progress.finish();
    Ok(rows)
}

fn of(figure: Figure) -> Own {
    OWN.repeats(Task::T8, figure)
}

/// The paper's load: writes in the order of their keys, with LevelDB's own settings.
fn fill(bench: &mut Bench, progress: &Progress, rounds: usize, quick: bool) -> Result<Vec<Row>, Failure> {
    let count = if quick { 500_000 } else { 2_000_000 };
    let mut figures = [Filled::default(), Filled::default()];
    let mut shuffle = Shuffle::new(8);
    for round in 0..rounds {
        progress.at(rounds + round, "a database is filled");
        let mut order = [(0, Library::Orbit), (1, Library::Stock)];
        shuffle.shuffle(&mut order);
        for (nth, library) in order {
            fill_once(library, count, &mut figures[nth])?;
        }
    }
    let [ours, stock] = figures.each_ref().map(|of| [of.writes.summary(), of.cpu.summary()]);
    let part = |nth: usize| ratio(median(ours[nth]), median(stock[nth]));
    let reach = [
        Reach::at_least("LevelDB: writes in the order of keys, of stock's", part(0), 0.95, "times"),
        Reach::at_most("LevelDB: CPU time of such a write, of stock's", part(1), 1.05, "times"),
    ];
    let [Filled { calls, snapshot, share, .. }, _] = &figures;
    let rows = vec![
        row("writes in order", "writes/s", ours[0], &[("stock", stock[0])], &reach[..1], of(Figure::Throughput)),
        row("CPU time a write", "us", ours[1], &[("stock", stock[1])], &reach[1..], of(Figure::CpuTime)),
        row("calls of the orbits", "calls/s", calls.summary(), &[], &[], of(Figure::Calls)),
        row("snapshot of a memtable", "KiB", snapshot.summary(), &[], &[], of(Figure::SnapshotSize)),
        row("snapshot, share of memory", "%", share.summary(), &[], &[], of(Figure::SnapshotShare)),
    ];
    bench.reach(reach);
    bench.note(format!("in order: {count} writes of 100 bytes to a new database"));
    Ok(rows)
}

fn fill_once(library: Library, count: usize, figures: &mut Filled) -> Result<(), Failure> {
    let database = database()?;
    let said = database.run(library, &format!("fill {count}"));
    let number = |name: &str| said.get(name).and_then(|text| text.parse::<f64>().ok());
    let needed = |name: &str| number(name).ok_or_else(|| Failure::text(format!("no {name}")));
    let seconds = needed("write_seconds")?;
    figures.writes.add_figure(count as f64 / seconds);
    figures.cpu.add_figure((needed("cpu_ms")? + number("orbit_cpu_ms").unwrap_or(0.0)) * 1e3 / count as f64);
    if let (Some(major), Some(minor), Some(pages)) = (number("compactions"), number("minor"), number("minor_pages")) {
        let snapshot = 4.0 * pages / minor.max(1.0);
        figures.calls.add_figure((major + minor) / seconds);
        figures.snapshot.add_figure(snapshot);
        figures.share.add_figure(100.0 * snapshot / needed("resident_kib")?.max(1.0));
    }
    Ok(())
}

fn database() -> Result<Database, Failure> {
    Database::new()
        .ok_or_else(|| Failure::text("LevelDB 1.23 and its source package are missing: scripts/packages.sh ports"))
}

/// One run. Returns the hash of the contents.
fn once(library: Library, seed: usize, writes: usize, figures: &mut Figures) -> Result<String, Failure> {
    let database = database()?;
    let began = Instant::now();
    let said = database.run(library, &format!("writes {seed} {writes} none 0"));
    figures.run.add_figure(began.elapsed().as_secs_f64() * 1e3);
    let number = |name: &str| said.get(name).and_then(|text| text.parse::<f64>().ok());
    for (nth, (name, ..)) in PRINTED.iter().enumerate() {
        figures.printed[nth].add_figure(number(name).ok_or_else(|| Failure::text(format!("no {name}")))?);
    }
    let program = number("cpu_ms").ok_or_else(|| Failure::text("no cpu_ms"))?;
    figures.program_cpu.add_figure(program);
    figures.all_cpu.add_figure(program + number("orbit_cpu_ms").unwrap_or(0.0));
    said.get("hash").cloned().ok_or_else(|| Failure::text("no hash"))
}
