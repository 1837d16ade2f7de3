//! Keep: an unmodified program that is about to die of a signal is put back in place, and
//! continues.
//!
//! This is the Transparent Application Checkpoint of the RMK paper (section 6) and its crash
//! recovery (Table 1), with a log of calls for request servers.
//!
//! | file | idea |
//! |---|---|
//! | `keeper` | when a checkpoint is taken, what is done at a crash |
//! | `attach` | handlers put into a program that runs already, and taken out |
//! | `engine` | the same for callers that decide themselves: pins |
//! | `family` | the children of a program, each with a keeper of its own |
//! | `kept`, `capture`, `restore` | a checkpoint of a stopped program, and going back to it |
//! | `files`, `open_state` | the descriptors of a program without a log, and what open files hold |
//! | `objects` | signal actions, timers, limits and the like of a program without a log |
//! | `history`, `pages` | one full image, and what each older checkpoint had otherwise |
//! | `ahead` | copies of written pages that are made before the pause |
//! | `staging` | copies of written pages that the program makes itself |
//! | `space` | what to do to mappings, as a pure function |
//! | `ladder` | which way of recovery, as a pure judge |
//! | `board`, `metrics`, `status` | figures for people and machines |
//! | `desk` | orders from other processes: a kept program hangs |
//! | `restart` | a program that died all the same is started again |
//! | `rules` | which calls are the moments of a request |
//! | `limits` | what is not rolled back, in sentences |
//! | `stack` | the stack of a crash, named after the recovery |
//! | `layout`, `shared` | the memory that program and keeper share; nothing in it is trusted |
//! | `side/` | the program's side: its log of calls, its handlers for fatal signals |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod ahead;
mod appenders;
mod arguments;
mod attach;
mod bell;
mod beside;
pub mod board;
mod capture;
mod desk;
mod early;
pub mod engine;
mod error;
mod family;
mod files;
mod history;
mod keeper;
mod kept;
pub mod ladder;
mod layout;
mod limits;
mod log;
mod marks;
mod metrics;
mod objects;
mod open_state;
mod outside;
mod pages;
mod place;
mod program;
mod quiet;
pub mod report;
mod rest;
mod restart;
mod restore;
mod rules;
mod shared;
mod signals;
mod space;
mod stack;
mod staging;
mod state;
mod status;

pub use arguments::Args;
pub use desk::recover;
pub use error::Error;
pub use restore::Restored;
pub use status::table;

use orbit_console::events::Events;
use orbit_console::out::{Done, Failure};
use program::{End, Ended};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Exit status if the program cannot be kept.
pub const NOT_BEGUN: u8 = 125;

/// Runs the subcommand; blocks until the program has exited. Does not return where the program has
/// died of a signal: the caller dies of the same, without a core.
///
/// # Errors
/// Never: what fails before the program runs is said on stderr, and the status is [`NOT_BEGUN`],
/// 126 or 127.
pub fn run(args: &Args) -> Done {
    if args.status {
        return status::print(args.json);
    }
    match begin(args) {
        Ok(end) => {
            if let Some(signal) = end.signal {
                orbit_linux::signals::die_of(signal);
            }
            Ok(ExitCode::from(end.code))
        }
        Err((code, why)) => {
            // Says it on stderr; the status is our own.
            let _ = orbit_console::out::exit_code(Err(Failure::text(why)));
            Ok(ExitCode::from(code))
        }
    }
}

fn begin(args: &Args) -> Result<End, (u8, String)> {
    let mut settings = args.settings().map_err(|why| (NOT_BEGUN, why))?;
    let events =
        args.events.as_deref().map(|path| Events::open(path, "keep")).transpose().map_err(|why| (NOT_BEGUN, why))?;
    let name = match (args.pid, settings.command.first()) {
        (Some(pid), _) => place::thread_name(pid, pid),
        (None, Some(program)) => Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned(),
        (None, None) => return Err((NOT_BEGUN, "no program is named: orbit keep -- PROGRAM, or --pid N".into())),
    };
    let mut reporter = report::Reporter::new(events, args.quiet, name);
    orbit_console::inherited::keep_child_statuses();
    // Before there is another thread, which would not block them.
    let signals = signals::Signals::catch().map_err(|e| (NOT_BEGUN, format!("catching signals: {e}")))?;
    let status = settings.board.serve();
    if let Err(error) = &status {
        reporter.warn(format!("--status does not show it: {error}"));
    }
    let orders = settings.desk.serve();
    if let Err(error) = &orders {
        reporter.warn(format!("`orbit watch --on-hang recover` does not reach it: {error}"));
    }
    // Removed however this ends.
    let _sockets = (status, orders);
    if let Some(address) = args.metrics {
        let bound = metrics::serve(address, &settings.board);
        let bound = bound.map_err(|e| (NOT_BEGUN, format!("--metrics {address}: {e}")))?;
        reporter.note(format!("figures are at http://{bound}/metrics"));
    }
    if args.restart {
        let restarts = restart::Restarts::begin().map_err(|e| (NOT_BEGUN, format!("--restart: {e}")))?;
        settings.restarts = Some(Arc::new(restarts));
    }
    let settings = Arc::new(settings);
    if let Some(pid) = args.pid {
        let keeper = keeper::Keeper::attach(pid, &settings, reporter);
        let ended = keeper.and_then(|keeper| keeper.run(Some(&signals)));
        // Its parent may have been faster to ask for its status.
        let unknown = End { code: 0, signal: None };
        return ended.map(|ended| ended.end.unwrap_or(unknown)).map_err(|error| (NOT_BEGUN, error.to_string()));
    }
    let mut pauses = restart::Pauses::new(Instant::now());
    loop {
        let keeper = keeper::Keeper::start(&settings, reporter.clone(), pauses.number);
        let keeper = keeper.map_err(|error| match &error {
            Error::Io("starting the program", source) => {
                let program = settings.command.first().map(|p| p.to_string_lossy()).unwrap_or_default();
                (program::not_started(source), format!("{program}: {source}"))
            }
            _ => (NOT_BEGUN, error.to_string()),
        })?;
        let Ended { end, again } = keeper.run(Some(&signals)).map_err(|error| (NOT_BEGUN, error.to_string()))?;
        // The program is the keeper's child, so its status is known.
        let end = end.unwrap_or(End { code: NOT_BEGUN, signal: None });
        if !again {
            return Ok(end);
        }
        let pause = pauses.next(Instant::now());
        reporter.report(&report::Event::Restart { number: pauses.number, pause_ms: report::ms(pause) });
        if !restart::wait(pause, &signals) {
            reporter.note("not started again: a signal has asked for its end");
            return Ok(end);
        }
    }
}
