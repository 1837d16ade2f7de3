//! `orbit bench`: the paper's measurements on this machine, each beside its rivals.
//!
//! Rules that all of them keep: the rivals take turns sample by sample in one process; figures are
//! medians; what main's thread waits for is what is timed; a fork's child ends at once and only the
//! parent's call counts; the machine and how quiet it was are recorded. A figure beside a bound
//! says whether this run reached it.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod machine;
mod memory;
mod plot;
mod reach;
mod rivals;
mod row;
mod stats;
mod worker;

use orbit_console::out::{self, BAD, Done, FAINT, Failure, GOOD, HEAD, PLAIN, Table};
use plot::Drawing;
use reach::Reach;
use serde::Serialize;
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Declares the benches: of each, the file (or folder) of its name and its variant of the command
/// line. Such a file has `struct Args`, which derives `clap::Args` and has [`Common`] flattened,
/// and `fn run(&Args) -> Done`.
macro_rules! benches {
    ($($file:ident $variant:ident,)*) => {
        $(mod $file;)*

        #[derive(clap::Subcommand)]
        enum What {
            $($variant($file::Args),)*
        }

        /// Runs the bench that was asked for.
        pub fn run(args: &Args) -> Done {
            match &args.what {
                $(What::$variant(args) => $file::run(args),)*
            }
        }
    };
}

// In the order of `--help`: a new bench is a file and a line here.
benches! {
    create Create,
    call Call,
    incremental Incremental,
    write Write,
    delegate Delegate,
    pins Pins,
    ahd Ahd,
    shd Shd,
    apps Apps,
    analyse Analyse,
    hijack Hijack,
    keep Keep,
    crash Crash,
    graft Graft,
    page Page,
    paper Paper,
    service Service,
    why Why,
}

/// Measures what orbits cost on this machine, against threads, pipes and fork.
///
/// Leave the machine alone meanwhile: the load of others is recorded with the result, not taken out
/// of it. Some seconds each with --quick, up to some minutes without; but ahd takes 50 to 70
/// minutes for its hangs and as long again for the rest, shd most of an hour (two minutes with
/// --quick).
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

/// The `orbit` command that is installed beside this program.
fn orbit_command() -> std::io::Result<PathBuf> {
    let command = std::env::current_exe()?.with_file_name("orbit");
    match command.exists() {
        true => Ok(command),
        false => Err(std::io::Error::other(format!("there is no {}: build orbit-cli as well", command.display()))),
    }
}

/// Options of every bench.
#[derive(clap::Args)]
pub struct Common {
    /// Fewer sizes and samples.
    #[arg(long)]
    quick: bool,
    /// Writes the result as JSON to this file; - for stdout, in place of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws the result into this file.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// A file for a result: opened before the first measurement, and what was in it is there until the
/// result is.
struct Target {
    path: PathBuf,
    file: File,
}

impl Target {
    fn open(path: &Path) -> Result<Target, Failure> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| Target::cannot(path, error))?;
        Ok(Target { path: path.to_owned(), file })
    }

    fn cannot(path: &Path, error: impl std::fmt::Display) -> Failure {
        Failure::text(format!("cannot write {}: {error}", path.display()))
    }

    /// Puts this in place of what was there.
    fn write(&self, result: impl FnOnce(&mut BufWriter<&File>) -> Result<(), Failure>) -> Result<(), Failure> {
        let emptied =
            self.file.metadata().and_then(|about| if about.is_file() { self.file.set_len(0) } else { Ok(()) });
        let why = |error: Failure| Target::cannot(&self.path, error);
        emptied.map_err(|error| why(error.into()))?;
        result(&mut BufWriter::new(&self.file)).map_err(why)
    }
}

/// A bench that runs: collects notes and bounds, and writes the result.
pub struct Bench {
    name: &'static str,
    json: Option<Target>,
    plot: Option<Target>,
    watch: machine::Watch,
    notes: Vec<String>,
    reaches: Vec<Reach>,
}

#[derive(Serialize)]
struct Report<'a, R> {
    bench: &'static str,
    version: &'static str,
    /// As ORBIT_COMMIT names it; `scripts/bench.sh` sets it.
    commit: Option<String>,
    quick: bool,
    /// Of times, unless a field's name says otherwise.
    unit: &'static str,
    machine: machine::Machine,
    rows: &'a [R],
    reach: &'a [Reach],
    notes: &'a [String],
}

impl Bench {
    /// Begins. An error where a file that the result shall go to cannot be written.
    pub fn start(name: &'static str, common: &Common) -> Result<Bench, Failure> {
        let open = |path: Option<&PathBuf>| path.map(|path| Target::open(path)).transpose();
        let json = open(common.json.as_ref().filter(|path| path.as_os_str() != "-"))?;
        let plot = open(common.plot.as_ref())?;
        let watch = machine::Watch::start();
        let mut bench = Bench { name, json, plot, watch, notes: Vec::new(), reaches: Vec::new() };
        if common.quick {
            bench.note("a quick run: few samples".to_owned());
        }
        Ok(bench)
    }

    /// Something that a reader of the result must know.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Figures with bounds.
    pub fn reach(&mut self, reaches: impl IntoIterator<Item = Reach>) {
        self.reaches.extend(reaches);
    }

    /// Writes the result where it was asked for: whatever becomes of one place, the others have it.
    pub fn finish<R: Serialize>(&self, common: &Common, rows: &[R], table: &Table, chart: impl Drawing) -> Done {
        let report = Report {
            bench: self.name,
            version: env!("CARGO_PKG_VERSION"),
            commit: std::env::var("ORBIT_COMMIT").ok().filter(|commit| !commit.is_empty()),
            quick: common.quick,
            unit: "us",
            machine: self.watch.finish(),
            rows,
            reach: &self.reaches,
            notes: &self.notes,
        };
        let shown = match &common.json {
            Some(path) if path.as_os_str() == "-" => out::json(&mut anstream::stdout().lock(), &report),
            _ => self.write(&report.machine, table),
        };
        let json = self.json.as_ref().map_or(Ok(()), |target| target.write(|to| out::json(to, &report)));
        let plot = self.plot.as_ref().map_or(Ok(()), |target| {
            target.write(|to| {
                to.write_all(chart.svg().as_bytes())?;
                Ok(to.flush()?)
            })
        });
        json.and(plot).and(shown).map(|()| ExitCode::SUCCESS)
    }

    fn write(&self, machine: &machine::Machine, table: &Table) -> Result<(), Failure> {
        let mut to = anstream::stdout().lock();
        table.write(&mut to)?;
        if !self.reaches.is_empty() {
            writeln!(to)?;
            let column = |name, align| (name, align);
            use out::Align::{Left, Right};
            let mut reach = Table::new(&[
                column("FIGURE TO REACH", Left),
                column("HERE", Right),
                column("BOUND", Left),
                column("", Left),
            ]);
            for line in &self.reaches {
                let (style, word) = if line.met { (GOOD, "met") } else { (BAD, "missed") };
                reach.row(vec![
                    (line.what.clone(), PLAIN),
                    (out::figures(line.value), PLAIN),
                    (format!("{} {} {}", line.bound, line.limit, line.unit), PLAIN),
                    (word.to_owned(), style),
                ]);
            }
            reach.write(&mut to)?;
        }
        writeln!(to)?;
        writeln!(
            to,
            "{FAINT}medians; {} CPUs, {}, {}, {:.0} s; steal {:.1} %, CPUs busy {:.0} %, load {:.2} to {:.2}{FAINT:#}",
            machine.cpus,
            machine.cpu_model,
            machine.kernel,
            machine.seconds,
            machine.steal_percent,
            machine.busy_percent,
            machine.load_before,
            machine.load_after
        )?;
        for note in &self.notes {
            writeln!(to, "{HEAD}note:{HEAD:#} {note}")?;
        }
        to.flush()?;
        Ok(())
    }
}

/// How far a bench has come, on stderr: one line, rewritten, on a terminal; else, in a log, a line
/// a minute.
pub struct Progress {
    of: usize,
    terminal: bool,
    logged: Cell<Instant>,
}

/// Time between two lines of a log.
const A_LINE: Duration = Duration::from_secs(60);

impl Progress {
    /// A bench of so many parts.
    pub fn new(of: usize) -> Progress {
        Progress { of, terminal: std::io::stderr().is_terminal(), logged: Cell::new(Instant::now()) }
    }

    /// Part `nth`, from 0 on, begins.
    pub fn at(&self, nth: usize, what: &str) {
        let nth = nth + 1;
        // A terminal that is gone is no reason to stop measuring.
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K{nth}/{} {what}", self.of);
        } else if self.logged.get().elapsed() >= A_LINE {
            self.logged.set(Instant::now());
            let _ = writeln!(std::io::stderr(), "{nth}/{} {what}", self.of);
        }
    }

    /// Clears the line.
    pub fn finish(&self) {
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
