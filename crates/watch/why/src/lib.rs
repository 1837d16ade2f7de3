//! `orbit why PID`: one sample of a process, now: what each thread does or waits for, which thread
//! holds that, which processes are at the other end, with stacks. It needs no history, so it judges
//! nothing: that is `orbit watch`.
//!
//! | file | what it owns |
//! |---|---|
//! | `sample` | reading the process |
//! | `runtime` | what its own runtime says: goroutines, monitors, Python's locks |
//! | `groups` | threads of the same state together (pure) |
//! | `graph` | what waits for what (pure), as SVG, HTML and for Graphviz |
//! | `tree` | a process with all that it made |
//! | `show` | text and JSON |
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod graph;
mod groups;
mod runtime;
mod sample;
mod show;
mod tree;

pub use graph::escaped;

use graph::Graph;
use orbit_console::out::{self, Done, Failure};
use orbit_inspect::Error;
use orbit_inspect::python::PyFrame;
use orbit_inspect::stacks::Frame;
use orbit_linux::stat::Stat;
use sample::Sample;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  orbit why 4711
  orbit why --json 4711 | jq '.threads[] | select(.holder)'
  orbit why $(pidof server)
  orbit why --html hang.html 4711      what waits for what, as a page; stacks on click
  orbit why --dot 4711 | dot -Tpng -o hang.png
  orbit why --tree 4711                with all processes that it made

Each thread is stopped for some 50 us to copy its stack; nothing in the process is changed.
A JVM is asked for its threads as jstack asks it. It takes the same user, or CAP_SYS_PTRACE.";

/// Shows what the threads of a process do or wait for now, which threads hold that, and their
/// stacks.
///
/// Threads with equal stacks are shown once. Threads in a ring of locks come first, then those that
/// seem to wait for themselves, then those that use CPU.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Prints JSON for scripts.
    #[arg(long, conflicts_with_all = ["svg", "html", "dot", "tree"])]
    json: bool,
    /// Writes a picture of what waits for what to FILE, what waits for itself in red; - for stdout.
    #[arg(long, value_name = "FILE|-")]
    svg: Option<PathBuf>,
    /// Writes the picture as a page to FILE, with the stack of a thread on a click; it has no
    /// script and loads nothing. - for stdout.
    #[arg(long, value_name = "FILE|-")]
    html: Option<PathBuf>,
    /// Prints the picture's graph for Graphviz.
    #[arg(long)]
    dot: bool,
    /// Shows the process with its descendants, and which waits for which.
    #[arg(long)]
    tree: bool,
    /// Time over which CPU use is measured, in milliseconds.
    #[arg(long, default_value_t = 200, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=60_000))]
    interval: u64,
    /// The process.
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: i32,
}

/// Writes a sample of a process to `to` if it seems to hang already: threads in a ring of locks, or
/// that wait for a lock of their own, or one that computes without a pause. Whether that is unusual
/// for it one sample cannot say. Blocks for the interval and what reading takes; writes nothing
/// where the process cannot be read.
///
/// # Errors
/// Those of writing.
pub fn if_it_seems_to_hang(pid: i32, interval: Duration, to: &mut impl Write) -> io::Result<()> {
    match sample::take(pid, interval) {
        Ok(sample) if sample.seems_to_hang() => {
            writeln!(
                to,
                "orbit watch: process {pid} ran before it was joined: what is usual for it is not known yet, and it \
                 may hang already. One sample of it, as `orbit why {pid}` shows it:"
            )?;
            show::text(to, &sample)
        }
        _ => Ok(()),
    }
}

/// Takes a sample and prints it.
///
/// # Errors
/// A sentence if the process cannot be read, or writing failed.
pub fn run(args: &Args) -> Done {
    let pid = args.pid;
    if Stat::of(pid).is_ok_and(|stat| stat.is_kernel_thread()) {
        return Err(Failure::Text(format!("process {pid} is a thread of the kernel: it runs no program to be shown")));
    }
    let failed = |e: Error| match e {
        Error::Gone { id } if id == pid => Failure::Text(format!("there is no process {pid}, or it has just exited")),
        other => Failure::Text(other.to_string()),
    };
    let interval = Duration::from_millis(args.interval);
    let mut to = anstream::stdout().lock();
    if args.tree {
        let tree = tree::take(pid, interval).map_err(failed)?;
        let graph = Graph::of(&tree.samples);
        let text = |to: &mut dyn Write| tree::text(to, &tree, &graph.facts);
        if !draw(args, &graph, &text)? {
            text(&mut to)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let sample = sample::take(pid, interval).map_err(failed)?;
    if args.json {
        out::json(&mut to, &show::json(&sample))?;
        return Ok(ExitCode::SUCCESS);
    }
    let samples = [sample];
    let text = |to: &mut dyn Write| show::text(to, &samples[0]);
    if !draw(args, &Graph::of(&samples), &text)? {
        text(&mut to)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes text to what it is given.
type Text<'a> = dyn Fn(&mut dyn Write) -> io::Result<()> + 'a;

/// Writes the pictures that were asked for; whether any was.
fn draw(args: &Args, graph: &Graph, text: &Text<'_>) -> Result<bool, Failure> {
    if let Some(path) = &args.svg {
        put(path, &graph::svg(graph))?;
    }
    if let Some(path) = &args.html {
        put(path, &graph::html(graph, None, &plain(text)))?;
    }
    if args.dot {
        put(Path::new("-"), &graph::dot(graph))?;
    }
    Ok(args.svg.is_some() || args.html.is_some() || args.dot)
}

/// The text without colours.
fn plain(text: &Text<'_>) -> String {
    let mut to = anstream::StripStream::new(Vec::new());
    // Memory takes all.
    let _ = text(&mut to);
    String::from_utf8_lossy(&to.into_inner()).into_owned()
}

/// Writes a file that its owner alone may read: stacks are nobody else's. `-` is stdout.
fn put(path: &Path, text: &str) -> Result<(), Failure> {
    if path == Path::new("-") {
        let mut to = io::stdout().lock();
        to.write_all(text.as_bytes())?;
        return Ok(to.flush()?);
    }
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| Failure::Text(format!("cannot write {}: {error}", path.display())))
}

/// A hang that was found elsewhere, to be drawn.
#[derive(Debug)]
pub struct Found {
    /// What was found, in a sentence.
    pub headline: String,
    /// The processes that are part of it, the one first named in front.
    pub pids: Vec<i32>,
    /// Stacks that were taken for it: process, thread, frames, Python's frames.
    pub stacks: Vec<(i32, i32, Vec<Frame>, Vec<PyFrame>)>,
    /// What the first process' own runtime said.
    pub runtime: Vec<String>,
}

/// A hang as parts of somebody else's page.
#[derive(Clone, Debug)]
pub struct Drawing {
    /// What waits for what: an `svg` element, for a page that has [`picture_style`] and, in some
    /// `defs` element, [`picture_heads`]. It has no style, script or address of its own.
    pub picture: String,
    /// Threads with what they wait for and their stacks, as `orbit why` prints them, in lines.
    pub text: String,
}

/// How the pictures of a page look, for a `style` element.
pub fn picture_style() -> &'static str {
    graph::STYLE
}

/// The heads of the arrows of a page's pictures, for a `defs` element.
pub fn picture_heads() -> String {
    graph::heads()
}

/// Reads what the threads of a hang's processes wait for, and answers the page that `orbit why
/// --html` writes. Stops no thread: it shows the stacks that were taken. Blocks for the interval,
/// for each process, and what reading `/proc` takes.
///
/// # Errors
/// If none of the processes can be read.
pub fn page(found: &Found, interval: Duration) -> Result<String, Error> {
    let samples = read(found, interval)?;
    Ok(graph::html(&Graph::of(&samples), Some(&found.headline), &lines(&samples)))
}

/// The same as parts of a page.
///
/// # Errors
/// As there.
pub fn drawing(found: &Found, interval: Duration) -> Result<Drawing, Error> {
    let samples = read(found, interval)?;
    Ok(Drawing { picture: graph::bare(&Graph::of(&samples)), text: lines(&samples) })
}

fn lines(samples: &[Sample]) -> String {
    plain(&|to: &mut dyn Write| samples.iter().try_for_each(|sample| show::text(to, sample)))
}

fn read(found: &Found, interval: Duration) -> Result<Vec<Sample>, Error> {
    let mut samples: Vec<Sample> = Vec::new();
    let mut failed = None;
    for pid in &found.pids {
        let of = found.stacks.iter().filter(|stack| stack.0 == *pid);
        let known = of
            .map(|(_, tid, frames, python)| (*tid, (frames.clone(), python.iter().map(sample::python_line).collect())));
        let says = if samples.is_empty() { found.runtime.clone() } else { Vec::new() };
        match sample::beside(*pid, interval, known.collect(), says) {
            Ok(sample) => samples.push(sample),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        Some(error) if samples.is_empty() => Err(error),
        _ => Ok(samples),
    }
}
