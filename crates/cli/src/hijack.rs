//! `orbit hijack`: runs a program under the executive.

use orbit_console::out::{self, Failure};
use orbit_hijack::show::{self, Clock};
use orbit_hijack::{Options, Outcome, Session};
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs a program with an executive in it that sees and controls all its system calls.
///
/// The program and all it starts run unmodified: static or dynamic, threads, signals, exec. The exit status is the
/// program's, or 128 and the signal that killed it; 1 if it could not be started.
#[derive(clap::Args)]
pub struct Args {
    /// Shows each call as `strace -f` does.
    #[arg(long)]
    trace: bool,
    /// Counts calls, and shows a table at the end.
    #[arg(short, long)]
    count: bool,
    /// Writes one JSON object a line, and at the end one with the counters.
    #[arg(long)]
    json: bool,
    /// Writes to this file, in place of stderr.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Shows when each call began and how long it took.
    #[arg(long)]
    times: bool,
    /// Drops records, and counts them, where the reader is too slow; else the program waits.
    #[arg(long)]
    lossy: bool,
    /// Leaves the program's code as it is: each call costs a signal.
    #[arg(long)]
    no_rewrite: bool,
    /// Lets io_uring pass, whose operations are not seen.
    #[arg(long)]
    allow_io_uring: bool,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub fn run(args: &Args) -> out::Done {
    let options = Options {
        trace: args.trace || args.json && !args.count,
        lossy: args.lossy,
        no_rewrite: args.no_rewrite,
        io_uring: args.allow_io_uring,
        ..Options::default()
    };
    let mut to: Box<dyn Write> = match &args.output {
        Some(path) => Box::new(BufWriter::new(
            File::create(path).map_err(|error| Failure::text(format!("cannot write {}: {error}", path.display())))?,
        )),
        None => Box::new(BufWriter::new(io::stderr())),
    };
    let clock = Clock::measure();
    let mut session = Session::start(&options, &args.program).map_err(|error| Failure::text(error.to_string()))?;
    // Ctrl-C goes to the whole group: it is the program's to end.
    ignore_keyboard();
    let mut threads = HashSet::new();
    session.follow(|event| {
        if args.json {
            serde_json::to_writer(&mut to, &show::as_json(event, &clock))?;
            writeln!(to)?;
        } else if let Some(line) = show::line(event) {
            threads.insert(event.tid);
            if threads.len() > 1 || args.output.is_some() {
                write!(to, "[pid {:>6}] ", event.tid)?;
            }
            if args.times {
                write!(to, "{:.6} ", clock.seconds(event.time))?;
            }
            writeln!(to, "{line}")?;
        }
        // What is shown on a terminal is shown at once.
        if args.output.is_none() { to.flush() } else { Ok(()) }
    })?;
    let outcome = session.outcome();
    if args.json {
        serde_json::to_writer(&mut to, &outcome)?;
        writeln!(to)?;
    } else if args.count {
        table(&mut to, &outcome)?;
    }
    if outcome.lost + outcome.damaged > 0 && !args.json {
        writeln!(to, "orbit: {} records lost, {} rings damaged", outcome.lost, outcome.damaged)?;
    }
    to.flush()?;
    Ok(ExitCode::from(u8::try_from(outcome.status).unwrap_or(1)))
}

fn table(to: &mut impl Write, outcome: &Outcome) -> io::Result<()> {
    let mut calls: Vec<_> = outcome.calls.iter().collect();
    calls.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), name.as_str()));
    writeln!(to, "{:>12}  call", "count")?;
    for (name, count) in &calls {
        writeln!(to, "{count:>12}  {name}")?;
    }
    let all: u64 = outcome.calls.values().sum();
    writeln!(to, "{all:>12}  all; {} by signal, {} of {} sites rewritten", outcome.traps, outcome.rewritten, outcome.sites)
}

fn ignore_keyboard() {
    for signal in [libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: sets a disposition of this process, after the guest was started.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}
