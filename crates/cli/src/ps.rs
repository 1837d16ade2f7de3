//! `orbit ps`: the orbits of running programs, once.

use crate::view::{OrbitView, ProgramView, Sample};
use anstyle::Style;
use orbit_console::out::{self, Align, Done, FAINT, PLAIN, Table};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Lists the orbits of running programs: those of this user, of all users for root.
///
/// Programs are found by their open descriptors; nothing is left behind. Rates and latencies are
/// those of a short interval between two samples; an orbit that had no call in it shows its
/// latencies of all time.
#[derive(clap::Args)]
pub struct Args {
    /// Prints JSON for scripts.
    #[arg(long)]
    json: bool,
    /// Only the program with this process number.
    #[arg(long, short, value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Time between the two samples, milliseconds; 0: one sample, rates are averages since each
    /// orbit was made.
    #[arg(long, short, default_value_t = 200, value_name = "MS")]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=3_600_000))]
    interval: u64,
}

pub fn run(args: &Args) -> Done {
    print(&sample(args.pid, Duration::from_millis(args.interval)), args.pid, args.json)
}

/// Prints what was found, of all programs or of one.
pub fn print(programs: &[ProgramView], pid: Option<i32>, json: bool) -> Done {
    let mut to = anstream::stdout().lock();
    if json {
        out::json(&mut to, &serde_json::json!({ "programs": programs }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if programs.is_empty() {
        let which = pid.map_or("of this user".to_owned(), |pid| format!("with number {pid}"));
        writeln!(to, "No running program {which} has orbits.")?;
    } else {
        table(programs).write(&mut to)?;
        for program in programs.iter().filter(|program| program.unseen > 0) {
            writeln!(to, "{FAINT}{} more of {} had no room on its page{FAINT:#}", program.unseen, program.pid)?;
        }
    }
    to.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Takes two samples, so long apart; one if that is no time.
pub fn sample(pid: Option<i32>, interval: Duration) -> Vec<ProgramView> {
    let first = Sample::now(pid);
    if interval.is_zero() {
        return first.since(None);
    }
    std::thread::sleep(interval);
    Sample::now(pid).since(Some(&first))
}

/// The table that `ps` and `top` share.
pub fn table(programs: &[ProgramView]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("PROGRAM", Left),
        ("PID", Right),
        ("ORBIT", Left),
        ("PID", Right),
        ("STATE", Left),
        ("CALLS/S", Right),
        ("CALLS", Right),
        ("QUEUE", Right),
        ("PAGES/CALL", Right),
        ("BYTES/CALL", Right),
        ("P50", Right),
        ("P99", Right),
        ("CRASH", Right),
        ("RESTART", Right),
        ("CPU%", Right),
        ("MEM", Right),
    ]);
    for program in programs {
        for orbit in &program.orbits {
            table.row(cells(program, orbit));
        }
    }
    table
}

fn cells(program: &ProgramView, orbit: &OrbitView) -> Vec<(String, Style)> {
    let state = match orbit.state {
        "running" => out::GOOD,
        "down" | "restarting" => out::BAD,
        "starting" => out::WARN,
        _ => PLAIN,
    };
    let troubled = |count: u64| (count.to_string(), if count > 0 { out::WARN } else { PLAIN });
    let time = |us: Option<f64>| (us.map_or("-".to_owned(), out::time), PLAIN);
    let plain = |text: String| (text, PLAIN);
    vec![
        plain(program.program.clone()),
        plain(program.pid.to_string()),
        plain(orbit.name.clone()),
        plain(if orbit.pid == 0 { "-".to_owned() } else { orbit.pid.to_string() }),
        (orbit.state.to_owned(), state),
        plain(out::figures(orbit.calls_per_s)),
        plain(orbit.calls.to_string()),
        plain(orbit.queue.to_string()),
        plain(out::figures(orbit.pages_per_call)),
        plain(out::bytes(orbit.bytes_per_call.round() as u64)),
        time(orbit.p50_us),
        time(orbit.p99_us),
        troubled(orbit.crashes),
        troubled(orbit.restarts),
        plain(format!("{:.1}", orbit.cpu_percent)),
        plain(out::bytes(orbit.memory_bytes)),
    ]
}
