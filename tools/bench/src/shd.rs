//! `orbit bench shd`: how many hangs of a CPU system hang detection finds, how soon, and how it
//! does beside the kernel's own detectors. Runs the laboratory (`scripts/lab.sh`), since nobody
//! hangs the machine that he stands on.
//!
//! Owns only the table: every figure is the laboratory's, read from its JSON lines.

use super::plot::{Chart, Series};
use super::reach::Reach;
use super::row::Measured;
use super::stats::{Samples, Summary};
use super::{Bench, Common, Progress};
use orbit_console::out::{Align, BAD, Done, Failure, GOOD, PLAIN, Table};
use orbit_linux::child::Exit;
use serde::Serialize;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Hangs the CPUs of a virtual machine in seven ways and measures when it is found, by whom.
///
/// Needs a checkout of Orbit's sources (for scripts/lab.sh), qemu-system-x86_64, and Debian's 6.1
/// kernel packages, which are downloaded once. Takes most of an hour; two minutes with --quick,
/// then without the kernel's own detectors. Times are of an emulated machine.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Hangs of one CPU, in turn over kinds and CPUs [default: 154; quick: 14].
    #[arg(long)]
    runs: Option<usize>,
    /// Seconds of load during which there should be no alarm [default: 600; quick: 20].
    #[arg(long)]
    load: Option<u64>,
    /// The laboratory's script [default: scripts/lab.sh here or in a folder above].
    #[arg(long, value_name = "PATH")]
    lab: Option<PathBuf>,
}

/// Seconds that the kernel's own detectors took for a long hang of one CPU; none: not found while
/// it lasted.
#[derive(Clone, Copy, Default, Serialize)]
struct Rivals {
    lasted_s: Option<f64>,
    shd_s: Option<f64>,
    soft_lockup_s: Option<f64>,
    hard_lockup_s: Option<f64>,
    rcu_stall_s: Option<f64>,
    hung_task_s: Option<f64>,
}

/// Seconds until something outside knew that every CPU hangs.
#[derive(Clone, Copy, Default, Serialize)]
struct Every {
    heartbeat_s: Option<f64>,
    softlockup_panic_s: Option<f64>,
}

/// One kind of hang.
#[derive(Serialize)]
struct Row {
    kind: String,
    runs: u64,
    found: u64,
    shd_p50_ms: Option<f64>,
    shd_max_ms: Option<f64>,
    #[serde(skip)]
    shd_ms: Option<Summary>,
    /// With `kernel.watchdog_thresh` as it comes, 10.
    rivals: Option<Rivals>,
    /// With the least there is, 1.
    rivals_thresh_1: Option<Rivals>,
    every_cpu: Option<Every>,
    every_cpu_thresh_1: Option<Every>,
    /// What finds a CPU that takes no interrupts, as the detector said when it started; none: it
    /// did not say.
    counter: Option<&'static str>,
}

pub fn run(args: &Args) -> Done {
    let quick = args.common.quick;
    let script = script(args.lab.as_deref())?;
    let (runs, load) = if quick { (14, 20) } else { (154, 600) };
    let (runs, load) = (args.runs.unwrap_or(runs), args.load.unwrap_or(load));
    let mut bench = Bench::start("shd", &args.common)?;
    let mut command = Command::new(&script);
    command.args(["--runs", &runs.to_string(), "--load", &load.to_string()]);
    if !quick {
        command.args(["--rivals", "--every", "1"]);
    }
    let lines = lines(command, runs)?;
    let of = |field: &str| lines.iter().filter(|line| line.get(field).is_some()).collect::<Vec<_>>();
    let Some(all) = of("hangs").first().map(|line| line["hangs"].clone()) else {
        return Err(Failure::text("the laboratory did not come to its end"));
    };
    let mut runs = of("run");
    // The host did not run the machine meanwhile.
    runs.retain(|line| line["void"] != true);
    let ms: Vec<f64> = runs.iter().filter_map(|line| line["reported_ms"].as_f64()).collect();
    let counter = counter(&of("started"));
    let rows = rows(&runs, &of("rival"), &of("every_cpu"), counter);
    let figure = |field: &str| all[field].as_f64().unwrap_or(f64::INFINITY);
    bench.reach([
        Reach::at_least("hangs of one CPU found", 100.0 * figure("found") / figure("runs"), 100.0, "%"),
        Reach::at_most("from hang to report, median", figure("p50_ms"), 300.0, "ms"),
        Reach::at_most("from hang to report, longest", figure("max_ms"), 1000.0, "ms"),
        Reach::at_most(format!("false alarms in {load} s of load"), figure("false_alarms"), 0.0, ""),
        Reach::at_most("alarms for a CPU that did run", figure("wrong"), 0.0, ""),
    ]);
    bench.note("an emulated machine with two processors, Debian's kernel 6.1".into());
    if let Some(counter) = counter {
        bench.note(format!("a CPU that takes no interrupts is found by {counter}"));
    }
    if let Some(void) = all["void"].as_u64().filter(|&n| n > 0) {
        bench.note(format!(
            "{void} runs were made again: this machine was too busy to run the emulated one for half a second"
        ));
    }
    if let Some(dragged) = all["dragged"].as_u64().filter(|&n| n > 0) {
        bench.note(format!(
            "in {dragged} runs the other CPU stopped too, waiting for the hung one, and was reported as well"
        ));
    }
    let table = table(&rows);
    let rows: Vec<_> = rows.into_iter().map(measured).collect();
    bench.finish(&args.common, &rows, &table, chart(ms))
}

/// The laboratory.
fn script(given: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(path) = given {
        let why = |error| Failure::text(format!("cannot run {}: {error}", path.display()));
        return path.canonicalize().map_err(why);
    }
    let here = std::env::current_dir()?;
    let program = std::env::current_exe()?;
    let folders = here.ancestors().chain(program.ancestors());
    let mut scripts = folders.map(|folder| folder.join("scripts/lab.sh"));
    scripts.find(|path| path.exists()).ok_or_else(|| {
        Failure::text(
            "orbit bench shd needs Orbit's sources: its laboratory, scripts/lab.sh, is not in this folder nor above \
             it. \
             Run it in a checkout, or name the script: --lab PATH",
        )
    })
}

/// Runs the laboratory to its end.
fn lines(mut command: Command, runs: usize) -> Result<Vec<Value>, Failure> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| Failure::text(format!("cannot run {:?}: {error}", command.get_program())))?;
    let mut complaints = child.stderr.take().expect("it was piped");
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        // What could be read is reported.
        let _ = complaints.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let progress = Progress::new(runs);
    progress.at(0, "the machine boots");
    let mut all: Vec<Value> = Vec::new();
    for line in BufReader::new(child.stdout.take().expect("it was piped")).lines() {
        // Anything but JSON is not the laboratory's.
        let Ok(line) = serde_json::from_str::<Value>(&line?) else { continue };
        all.push(line);
        let done = all.iter().filter(|line| line.get("run").is_some()).count();
        let more = all.len() - done;
        progress.at(done.saturating_sub(1), &format!("hangs; {more} other lines"));
    }
    progress.finish();
    let status = child.wait_for_exit()?;
    let said = reader.join().unwrap_or_default();
    // 1: something was missed, which the figures say.
    if status.success() || status.code() == Some(1) && all.iter().any(|line| line.get("hangs").is_some()) {
        return Ok(all);
    }
    let last: Vec<&str> = said.lines().rev().take(12).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    Err(Failure::text(format!("the laboratory ended with {status}:\n{}", last.join("\n"))))
}

/// What the detector in the first machine said of its counter.
fn counter(started: &[&Value]) -> Option<&'static str> {
    let has = started.iter().find_map(|line| line["started"]["counter"].as_bool())?;
    Some(if has { "its own performance counter" } else { "ticks of the neighbours (no PMU)" })
}

/// The row in the form that all benches share.
fn measured(row: Row) -> Measured<Row> {
    let once = |seconds: Option<f64>| seconds.map(|s| Summary { p50: s * 1e3, p99: s * 1e3, n: 1 });
    let rival = |pick: fn(&Rivals) -> Option<f64>| once(row.rivals.as_ref().and_then(pick));
    let (soft, hard) = (rival(|r| r.soft_lockup_s), rival(|r| r.hard_lockup_s));
    let (rcu, hung_task) = (rival(|r| r.rcu_stall_s), rival(|r| r.hung_task_s));
    let ours = row.shd_ms;
    Measured::new(format!("hang of a CPU to report, {}", row.kind), "ms", row)
        .ours(ours)
        .rival("soft lockup", soft)
        .rival("hard lockup", hard)
        .rival("RCU stall", rcu)
        .rival("hung task", hung_task)
}

fn rows(runs: &[&Value], rivals: &[&Value], every: &[&Value], counter: Option<&'static str>) -> Vec<Row> {
    let mut kinds: Vec<&str> = Vec::new();
    for kind in runs.iter().filter_map(|line| line["run"].as_str()) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let row = |kind: &str| {
        let own: Vec<&&Value> = runs.iter().filter(|line| line["run"] == kind).collect();
        let mut ms: Vec<f64> = own.iter().filter_map(|line| line["reported_ms"].as_f64()).collect();
        ms.sort_by(f64::total_cmp);
        let rivals = |threshold: u64| {
            let line = rivals.iter().find(|line| line["rival"] == kind && line["threshold_s"] == threshold)?;
            Some(Rivals {
                lasted_s: line["lasted_ms"].as_f64().map(|ms| ms / 1e3),
                shd_s: line["shd_s"].as_f64(),
                soft_lockup_s: line["soft_lockup_s"].as_f64(),
                hard_lockup_s: line["hard_lockup_s"].as_f64(),
                rcu_stall_s: line["rcu_stall_s"].as_f64(),
                hung_task_s: line["hung_task_s"].as_f64(),
            })
        };
        let every = |threshold: u64| {
            let line = every.iter().find(|line| line["every_cpu"] == kind && line["threshold_s"] == threshold)?;
            Some(Every { heartbeat_s: line["heartbeat_s"].as_f64(), softlockup_panic_s: line["panic_s"].as_f64() })
        };
        let mut samples = Samples::default();
        samples.extend(&ms);
        Row {
            shd_ms: samples.summary(),
            kind: kind.to_owned(),
            runs: own.len() as u64,
            found: ms.len() as u64,
            shd_p50_ms: ms.get(ms.len() / 2).copied(),
            shd_max_ms: ms.last().copied(),
            rivals: rivals(10),
            rivals_thresh_1: rivals(1),
            every_cpu: every(10),
            every_cpu_thresh_1: every(1),
            counter,
        }
    };
    kinds.into_iter().map(row).collect()
}

fn table(rows: &[Row]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("HANG", Left),
        ("FOUND", Right),
        ("P50", Right),
        ("MAX", Right),
        ("SOFT LOCKUP", Right),
        ("THRESH 1", Right),
        ("RCU STALL", Right),
        ("HUNG TASK", Right),
        ("ALL CPUS: HEARTBEAT", Right),
        ("PANIC", Right),
        ("THRESH 1", Right),
    ]);
    for row in rows {
        let ms = |ms: Option<f64>| (ms.map_or("-".to_owned(), |ms| format!("{ms:.0} ms")), PLAIN);
        let rival = |of: Option<Rivals>, pick: fn(Rivals) -> Option<f64>| seconds(of.map(pick));
        let every = |of: Option<Every>, pick: fn(Every) -> Option<f64>| seconds(of.map(pick));
        table.row(vec![
            (row.kind.clone(), PLAIN),
            (format!("{}/{}", row.found, row.runs), if row.found == row.runs { GOOD } else { BAD }),
            ms(row.shd_p50_ms),
            ms(row.shd_max_ms),
            rival(row.rivals, |of| of.soft_lockup_s),
            rival(row.rivals_thresh_1, |of| of.soft_lockup_s),
            rival(row.rivals, |of| of.rcu_stall_s),
            rival(row.rivals, |of| of.hung_task_s),
            every(row.every_cpu, |of| of.heartbeat_s),
            every(row.every_cpu, |of| of.softlockup_panic_s),
            every(row.every_cpu_thresh_1, |of| of.softlockup_panic_s),
        ]);
    }
    table
}

/// Outer none: not tried. Inner none: tried, and it did not find it.
fn seconds(found: Option<Option<f64>>) -> (String, anstyle::Style) {
    match found {
        None => ("-".to_owned(), PLAIN),
        Some(None) => ("never".to_owned(), BAD),
        Some(Some(seconds)) => (format!("{seconds:.1} s"), PLAIN),
    }
}

fn chart(mut ms: Vec<f64>) -> Chart {
    ms.sort_by(f64::total_cmp);
    let points = ms.iter().enumerate().map(|(nth, &ms)| ((nth + 1) as f64, ms)).collect();
    Chart {
        title: "From a CPU's hang to the report".to_owned(),
        x: "runs found so soon".to_owned(),
        y: "milliseconds".to_owned(),
        series: vec![Series::new("system hang detection", points)],
    }
}
