//! `orbit doctor`: each facility of the kernel that orbits use, whether it is there, what is used
//! in its place, and what to do to get it. Everything is tried, nothing is guessed from version
//! numbers; what is tried is undone.

mod rows;
mod trial;
mod tries;

use orbit_console::out::{self, BAD, Done, FAINT, GOOD, HEAD, WARN};
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;

/// Shows what this machine offers, tried for real, and what is used in place of what it lacks.
///
/// Every facility is tried for real, here and now, as this user. Exit status 1 if orbits do not
/// work here at all.
#[derive(clap::Args)]
pub struct Args {
    /// Prints JSON for scripts.
    #[arg(long)]
    json: bool,
    /// Prints only what is missing.
    #[arg(long)]
    missing: bool,
}

/// One facility.
#[derive(Serialize)]
struct Row {
    /// Heading it stands under.
    group: &'static str,
    name: &'static str,
    /// Whether it can be used, here and now.
    there: bool,
    /// What was found: a value, or why it cannot be used.
    why: String,
    /// What orbits use it for.
    used_for: &'static str,
    /// What is used where it is missing.
    instead: &'static str,
    /// What to do to get it; empty if it is there or nothing can be done.
    to_do: String,
    /// Whether nothing can take its place.
    needed: bool,
}

#[derive(Serialize)]
struct Report {
    kernel: String,
    architecture: String,
    user: u32,
    /// How a real call to a real orbit went.
    orbit: trial::Trial,
    facilities: Vec<Row>,
}

pub fn run(args: &Args) -> Done {
    let kernel = orbit_linux::uname::kernel();
    let mut report = Report {
        kernel: kernel.release,
        architecture: std::env::consts::ARCH.to_owned(),
        user: orbit_linux::host::user(),
        // First, while this program has one thread.
        orbit: trial::run(),
        facilities: rows::all(),
    };
    let works = report.orbit.works;
    if args.missing {
        report.facilities.retain(|row| !row.there);
    }
    if args.json {
        out::json(&mut anstream::stdout().lock(), &report)?;
    } else {
        write(&report)?;
    }
    Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn write(report: &Report) -> std::io::Result<()> {
    let mut to = anstream::stdout().lock();
    let trial = &report.orbit;
    let verdict = if trial.works { GOOD } else { BAD };
    writeln!(to, "Linux {} ({}), user {}", report.kernel, report.architecture, report.user)?;
    writeln!(to, "{verdict}{}{verdict:#}", trial.sentence)?;
    let width = report.facilities.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let pad = " ".repeat(width + 6);
    let mut group = "";
    for row in &report.facilities {
        if row.group != group {
            group = row.group;
            writeln!(to, "\n{HEAD}{group}{HEAD:#}")?;
        }
        let (style, word) = match (row.there, row.needed) {
            (true, _) => (GOOD, "yes"),
            (false, true) => (BAD, "NO "),
            (false, false) => (WARN, "no "),
        };
        let about = if row.there { row.used_for } else { &row.why[..] };
        writeln!(to, "{:width$}  {style}{word}{style:#} {about}", row.name)?;
        if row.there && !row.why.is_empty() {
            writeln!(to, "{pad}{FAINT}{}{FAINT:#}", row.why)?;
        }
        if !row.there {
            writeln!(to, "{pad}{FAINT}used for: {}{FAINT:#}", row.used_for)?;
            writeln!(to, "{pad}in its place: {}", row.instead)?;
            if !row.to_do.is_empty() {
                writeln!(to, "{pad}to get it: {}", row.to_do)?;
            }
        }
    }
    to.flush()
}
