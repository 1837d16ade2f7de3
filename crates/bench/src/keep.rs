//! `orbit bench keep`: how long a checkpoint stops a program, by how much of its memory it writes between two.
//!
//! The subject is this command itself under `orbit keep`: it holds memory and writes to pages spread over it. Each round is a keeper of its own;
//! its exit event has the median pause. The cases take turns.

use super::plot::{Chart, Series};
use super::reach::Reach;
use super::row::Measured;
use super::stats::{Samples, Summary, median};
use super::{Bench, Common, Progress};
use orbit_console::out::{self, Align, Failure, PLAIN, Table};
use serde::Serialize;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Measures the pause of a checkpoint under `orbit keep`: 256 MiB and 64 MiB resident, parts of them written in between.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Runs the subject: MiB held, percent of it written, milliseconds to run.
    #[arg(long, hide = true, num_args = 3, value_names = ["MIB", "PERCENT", "MS"])]
    subject: Option<Vec<u64>>,
}

/// MiB held, percent written, and the bound in us.
const CASES: [(u64, u64, Option<f64>); 4] =
    [(256, 1, Some(1_500.0)), (256, 20, Some(15_000.0)), (64, 1, None), (64, 20, None)];
const PAGE: usize = 4096;

/// What a row has beside the shared fields.
#[derive(Serialize)]
struct Own {
    resident_mib: u64,
    written_percent: u64,
}

pub fn run(args: &Args) -> out::Done {
    if let Some(subject) = &args.subject {
        write_memory(subject[0], subject[1], Duration::from_millis(subject[2]));
        return Ok(std::process::ExitCode::SUCCESS);
    }
    let quick = args.common.quick;
    let mut bench = Bench::start("keep", &args.common)?;
    let rounds = if quick { 3 } else { 9 };
    let mut pauses: Vec<Samples> = CASES.iter().map(|_| Samples::default()).collect();
    let progress = Progress::new(rounds * CASES.len());
    for round in 0..rounds {
        for (nth, (mib, percent, _)) in CASES.iter().enumerate() {
            progress.at(round * CASES.len() + nth, &format!("{mib} MiB, {percent} %"));
            pauses[nth].add_figure(pause(*mib, *percent)?);
        }
    }
    progress.finish();
    let pauses: Vec<Option<Summary>> = pauses.iter().map(Samples::summary).collect();
    let mut rows = Vec::new();
    let mut table = Table::new(&[("PAUSE OF A CHECKPOINT", Align::Left), ("MEDIAN, us", Align::Right)]);
    for ((mib, percent, limit), pause) in CASES.iter().zip(&pauses) {
        let name = format!("{mib} MiB resident, {percent} % written");
        table.row([name.clone(), format!("{:.0}", median(*pause))].map(|cell| (cell, PLAIN)).into());
        let bound = limit.map(|limit| Reach::at_most(name.clone(), median(*pause), limit, "us"));
        let own = Own { resident_mib: *mib, written_percent: *percent };
        rows.push(Measured::new(name, "us", own).ours(*pause).reach(bound.as_slice()));
        bench.reach(bound);
    }
    let points = |of: u64| {
        let cases = CASES.iter().zip(&pauses).filter(|((mib, ..), _)| *mib == of);
        cases.map(|((_, percent, _), pause)| (*percent as f64, median(*pause))).collect()
    };
    let chart = Chart {
        title: "Pause of a checkpoint".to_owned(),
        x: "percent written".to_owned(),
        y: "us".to_owned(),
        series: vec![Series::new("256 MiB", points(256)), Series::new("64 MiB", points(64))],
    };
    bench.finish(&args.common, &rows, &table, chart)
}

/// The median pause in us of a run with some twenty checkpoints.
fn pause(mib: u64, percent: u64) -> Result<f64, Failure> {
    let failed = |what: &str| Failure::text(format!("bench keep: {what}"));
    let orbit = std::env::current_exe()?;
    let mut keeper = Command::new(&orbit)
        .args(["keep", "--quiet", "--every", "100ms", "--events", "-", "--"])
        .arg(&orbit)
        .args(["bench", "keep", "--subject", &mib.to_string(), &percent.to_string(), "2500"])
        .stdout(Stdio::piped())
        .spawn()?;
    let out = keeper.stdout.take().ok_or_else(|| failed("no output of the keeper"))?;
    let lines = BufReader::new(out).lines().map_while(Result::ok);
    let events = lines.filter_map(|line| serde_json::from_str::<serde_json::Value>(&line).ok());
    let exit = events.filter(|event| event["event"] == "exited").last();
    keeper.wait()?;
    let figures = exit.ok_or_else(|| failed("the keeper reported no exit: try `orbit keep -- true`"))?["figures"].clone();
    match (figures["checkpoints"].as_u64(), figures["pause_p50_us"].as_f64()) {
        (Some(3..), Some(pause)) => Ok(pause),
        _ => Err(failed("fewer than three checkpoints were taken: is the machine loaded?")),
    }
}

/// Holds memory, and writes to pages spread over it again and again.
fn write_memory(mib: u64, percent: u64, length: Duration) {
    let mut memory = vec![1u8; (mib as usize) << 20];
    let pages = memory.len() / PAGE;
    let written = (pages * percent as usize / 100).max(1);
    let since = std::time::Instant::now();
    let mut round = 0usize;
    while since.elapsed() < length {
        for nth in 0..written {
            memory[nth * (pages / written) * PAGE + round % PAGE] = round as u8;
        }
        std::hint::black_box(&memory);
        round += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
}
