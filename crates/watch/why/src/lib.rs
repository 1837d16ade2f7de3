//! `orbit why PID`: one sample of a process, now: what each thread does or waits for, which thread
//! holds that, which processes are at the other end, with stacks. It needs no history, so it judges
//! nothing: that is `orbit watch`.
//!
//! | file | what it owns |
//! |---|---|
//! | `sample` | reading the process |
//! | `runtime` | what its own runtime says: goroutines, monitors, Python's locks |
//! | `groups` | threads of the same state together (pure) |
//! | `show` | text and JSON |
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod groups;
mod runtime;
mod sample;
mod show;

use orbit_console::out::{self, Done, Failure};
use orbit_inspect::Error;
use orbit_linux::stat::Stat;
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  orbit why 4711
  orbit why --json 4711 | jq '.threads[] | select(.holder)'
  orbit why $(pidof server)

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
    #[arg(long)]
    json: bool,
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
pub fn if_it_seems_to_hang(pid: i32, interval: Duration, to: &mut impl std::io::Write) -> std::io::Result<()> {
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
    let sample = sample::take(pid, Duration::from_millis(args.interval)).map_err(|e| match e {
        Error::Gone { id } if id == pid => Failure::Text(format!("there is no process {pid}, or it has just exited")),
        other => Failure::Text(other.to_string()),
    })?;
    let mut to = anstream::stdout().lock();
    match args.json {
        true => out::json(&mut to, &show::json(&sample))?,
        false => show::text(&mut to, &sample)?,
    }
    Ok(ExitCode::SUCCESS)
}
