//! `orbit modules run`: a core in the foreground, its modules, and what they report.
//!
//! Needs no handler for signals: when this process ends, however it does, its modules' processes,
//! its kernel programs and its socket end with it, and the guarded program continues.

use orbit_console::events::Events;
use orbit_console::inherited;
use orbit_console::out::{self, Done, Failure};
use orbit_linux::child::Exit;
use orbit_modules::hosted::{self, Hosted};
use orbit_rmk::Core;
use orbit_watch as guard;
use serde_json::json;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

/// Runs a core with these modules, each in a process of its own, until the program ends or the time
/// is over.
///
/// What they report goes to stderr; with --events as JSON lines to a file, and no more to stderr.
/// The modules see the program given, and the processes it makes; of a program that is started
/// here, from just after its start. Ends with its status.
#[derive(clap::Args)]
pub struct Args {
    /// ahd, shd, silence or switches; see `orbit modules --help`.
    #[arg(required = true, value_name = "MODULE")]
    modules: Vec<String>,
    /// Guards the program with this process number.
    #[arg(long, short, conflicts_with = "program")]
    pid: Option<u32>,
    /// Appends reports as JSON lines to this file; - for stdout.
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Ends after so many seconds.
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Starts this program and guards it.
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// How often reports and the program's end are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

pub fn run(args: &Args) -> Done {
    let limit = match args.seconds {
        None => None,
        Some(seconds) => Some(
            Duration::try_from_secs_f64(seconds)
                .map_err(|_| Failure::text(format!("--seconds {seconds}: give a number of seconds, 0 or more")))?,
        ),
    };
    inherited::keep_child_statuses();
    let to = args.events.as_deref().map(|path| Events::open(path, "modules").map_err(Failure::Text));
    let mut to = to.transpose()?;
    let hosted = Hosted::new().map_err(Failure::text)?;
    let core = hosted.core();
    if let Some(pid) = args.pid {
        core.guard(pid).map_err(|error| Failure::text(error.to_string()))?;
    }
    for name in &args.modules {
        hosted.load(name, &[]).map_err(Failure::text)?;
    }
    let _socket = hosted.serve()?;
    let mut program = start(core, &args.program)?;
    let began = Instant::now();
    let code = loop {
        report(&hosted, &mut to);
        if let Some(status) = program.as_mut().map(Exit::exited).transpose()?.flatten() {
            let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            break ExitCode::from(code as u8);
        }
        if limit.is_some_and(|limit| began.elapsed() >= limit) || args.pid.is_some() && core.guarded().is_empty() {
            break ExitCode::SUCCESS;
        }
        std::thread::sleep(CHECK_INTERVAL);
    };
    // A last check, so that nothing said before the end is missed.
    report(&hosted, &mut to);
    if let Some(to) = &mut to {
        to.finish(left_out);
    }
    hosted.clear();
    Ok(code)
}

fn start(core: &Core, program: &[OsString]) -> Result<Option<Child>, Failure> {
    let Some((name, args)) = program.split_first() else { return Ok(None) };
    let mut command = Command::new(name);
    inherited::restore_ignored_signals(&mut command);
    inherited::rename_pid_variables(&mut command);
    let child = command.args(args).spawn();
    let child = child.map_err(|error| Failure::text(format!("cannot start {}: {error}", name.display())))?;
    // Not reaped yet, so the number is its own; if it ended already there is nothing left to guard.
    let _ = core.guard(child.id());
    Ok(Some(child))
}

/// Writes the reports of the modules and the core. What cannot be written ends nothing: the program
/// would continue unwatched.
fn report(hosted: &Hosted, to: &mut Option<Events>) {
    for (name, report) in hosted.reports() {
        let (kind, text) = hosted::words(report);
        // With stderr closed there is no reader.
        let _ = match to {
            Some(to) => {
                to.write(&line(Some(name), kind, &text), left_out);
                Ok(())
            }
            None if kind == "said" && guard::shown(name, &text) => Ok(()),
            None if kind == "said" => out::say(|to| writeln!(to, "{name}: {}", guard::Harmless(text))),
            None => out::say(|to| writeln!(to, "{name}: {kind}: {}", guard::Harmless(text))),
        };
    }
}

fn line(module: Option<&str>, kind: &str, text: &str) -> Vec<u8> {
    let line = json!({ "time": orbit_rmk::now(), "module": module, "report": kind, "text": text });
    format!("{line}\n").into_bytes()
}

/// The line for reports that were lost, of whichever module.
fn left_out(lost: u64) -> Vec<u8> {
    line(None, "dropped", &format!("{lost} reports: they could not be written"))
}
