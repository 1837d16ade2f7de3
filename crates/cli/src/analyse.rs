//! `orbit analyse`: which allocations of a program does its task need?

use orbit_analyse::{Missing, Options, Report, Source, Wanted, analyse, likely, sketch, top};
use orbit_console::out::{Done, Failure};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  orbit analyse --entry check_and_resolve -- ./server --self-test
  orbit analyse --entry 'db::Compactor::run' --calls 1 -- ./db-test
  orbit analyse --entry libtask.so:run --json -o needs.json -- ./server
  orbit analyse --entry check --source locks.c --cflags='-Iinclude' -- ./server --self-test
  orbit analyse --entry check --source locks.c --patch -o areas.patch
  orbit analyse --entry db::check --source locks.cc --cflags=-std=c++17
  orbit analyse --entry db::check --source src/main.rs --cflags=--edition=2024
  orbit analyse --entry check --source Cargo.toml --cflags='--bin server'

The report goes to stderr when the program has ended: each allocation point (file and line,
call path) whose objects the task accessed, which bytes of them, the global variables, and
accesses to freed memory. Compile the program with -g for lines. It says what the watched calls
did; what no call did is not in it.

Each call runs twice: in a copy that is watched, then in the program. What the copy writes to files
and connections is written twice.";

/// Finds what a task reads and writes: which allocations of a program must move into areas.
///
/// Runs the unmodified program; each call of the entry function is watched in a copy of the
/// process, instruction by instruction. The exit status is the program's; 1 if it could not be
/// analysed.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The task's entry: FUNCTION, FILE:FUNCTION or 0xADDRESS.
    #[arg(short, long, value_name = "FUNCTION")]
    entry: Wanted,
    /// Watches so many calls, from the first on.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    calls: u64,
    /// Watches one call no longer than this.
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// A C, C++ or Rust source (of a crate its root), compiled by clang or rustc; a cargo project's
    /// Cargo.toml, built with all crates that it depends on; or LLVM's text (.ll) that a build has
    /// left. Adds allocation points that it makes likely and that no watched call needed. May be
    /// repeated.
    #[arg(long, value_name = "FILE")]
    source: Vec<PathBuf>,
    /// What the compiler, or cargo, is given for the sources, in words.
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true, default_value = "")]
    cflags: String,
    /// Writes the report as one JSON object.
    #[arg(long, conflicts_with = "patch")]
    json: bool,
    /// Writes a sketch of the change in place of the report: a patch with the allocator of an area
    /// on each line that is named, relative to the top of the git working tree, or to the current
    /// directory.
    #[arg(long)]
    patch: bool,
    /// Writes it to this file, in place of stderr.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The program itself, not a script that starts it, and its arguments. With sources alone,
    /// none: nothing is run.
    #[arg(last = true, required_unless_present = "source", value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub fn run(args: &Args) -> Done {
    let mut to: Box<dyn Write> = match &args.output {
        None => Box::new(io::stderr()),
        Some(path) => {
            let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
            Box::new(file.map_err(|error| Failure::text(format!("--output {}: {error}", path.display())))?)
        }
    };
    let text = |error: orbit_analyse::Error| Failure::text(error.to_string());
    // Before the run, which may take long and would be lost with an error of theirs.
    let by_sources = if args.source.is_empty() {
        None
    } else {
        let flags: Vec<String> = args.cflags.split_whitespace().map(str::to_owned).collect();
        let sources: Vec<Source> =
            args.source.iter().map(|file| Source { file: file.clone(), flags: flags.clone() }).collect();
        Some(likely(&args.entry.name, &sources).map_err(text)?)
    };
    let mut report = if args.program.is_empty() {
        Report { entry: args.entry.name.clone(), ..Report::default() }
    } else {
        let options = Options {
            entry: args.entry.clone(),
            program: args.program.clone(),
            calls: args.calls,
            limit: Duration::from_secs(args.limit.into()),
        };
        let waits = |missing: &Missing| {
            eprintln!(
                "orbit analyse: function {} {missing}; watching the libraries that the program loads",
                args.entry
            );
        };
        analyse(&options, waits).map_err(text)?
    };
    if let Some(found) = by_sources {
        report.add_likely(found);
    }
    if args.patch {
        write!(to, "{}", sketch(&report, &top(&report), |file| std::fs::read_to_string(file).ok()))?;
        return Ok(ExitCode::from(u8::try_from(report.status).unwrap_or(1)));
    }
    if args.json {
        serde_json::to_writer(&mut to, &report)?;
        writeln!(to)?;
    } else {
        write!(to, "{report}")?;
    }
    Ok(ExitCode::from(u8::try_from(report.status).unwrap_or(1)))
}
