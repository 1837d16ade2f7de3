//! LevelDB's compaction: in the orbit and by stock, for the same writes of one writer. What writers
//! see, and CPU time.

use super::table::{Own, Row, Rows, row, table};
use crate::stats::{Samples, Shuffle};
use crate::{Bench, Progress};
use orbit_console::out::Failure;
use orbit_leveldb::{Database, Library};
use std::time::Instant;

const OWN: Own = Own { part: "leveldb", clients: 1 };
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
    /// Of the orbits: calls a second (Table 4 of the paper), and KiB of a memtable's snapshot
    /// (Table 6).
    calls: Samples,
    snapshot: Samples,
}

pub fn run(bench: &mut Bench, quick: bool) -> Result<Rows, Failure> {
    let (rounds, writes) = if quick { (4, 60_000) } else { (20, 300_000) };
    let progress = Progress::new(rounds);
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
    progress.finish();
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
    rows.push(row("calls of the orbits", "calls/s", ours.calls.summary(), &[], &[], OWN));
    rows.push(row("snapshot of a memtable", "KiB", ours.snapshot.summary(), &[], &[], OWN));
    Ok((table(&rows), rows.into_iter().map(|row| row.measured).collect()))
}

/// One run. Returns the hash of the contents.
fn once(library: Library, seed: usize, writes: usize, figures: &mut Figures) -> Result<String, Failure> {
    let database = Database::new()
        .ok_or_else(|| Failure::text("LevelDB 1.23 and its source package are missing: scripts/packages.sh ports"))?;
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
    if let (Some(major), Some(minor), Some(pages)) = (number("compactions"), number("minor"), number("minor_pages")) {
        figures.calls.add_figure((major + minor) / began.elapsed().as_secs_f64());
        figures.snapshot.add_figure(4.0 * pages / minor.max(1.0));
    }
    said.get("hash").cloned().ok_or_else(|| Failure::text("no hash"))
}
