//! `orbit modules run`: a core in the foreground, its modules, and what they report.
//!
//! Needs no handler for signals: when this process ends, however it does, its modules' processes, its kernel programs and its
//! socket end with it, and the guarded program goes on.

use super::builtin;
use super::control::{self, Answer, Ask};
use crate::out::{Done, Failure};
use orbit_rmk::{Core, Counts, Installed, Report};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Runs a core with these modules, each in a process of its own, until the program ends or the time is over.
///
/// What they report goes to stderr; with --events as JSON lines to a file, and no more to stderr. The modules see the program
/// given, and the processes it makes; of a program that is started here, from just after its start. Ends with its status.
#[derive(clap::Args)]
pub struct Args {
    /// silence or switches; see `orbit modules --help`.
    #[arg(required = true, value_name = "MODULE")]
    modules: Vec<String>,
    /// Guards the program with this process number.
    #[arg(long, short, conflicts_with = "program")]
    pid: Option<u32>,
    /// Writes reports as JSON lines to this file; - for stdout.
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Ends after so many seconds.
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Starts this program and guards it.
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// How often reports and the program's end are looked for.
const LOOK: Duration = Duration::from_millis(50);

/// A module of this core.
struct Entry {
    name: &'static str,
    installed: Installed,
    reloads: u64,
    gave_up: bool,
}

type Modules = Arc<Mutex<Vec<Entry>>>;

fn lock(modules: &Modules) -> MutexGuard<'_, Vec<Entry>> {
    modules.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn run(args: &Args) -> Done {
    let limit = match args.seconds {
        None => None,
        Some(seconds) => Some(
            Duration::try_from_secs_f64(seconds)
                .map_err(|_| Failure::text(format!("--seconds {seconds}: give a number of seconds, 0 or more")))?,
        ),
    };
    let mut to = open(args.events.as_deref())?;
    orbit::init()?;
    let core = Core::new().map_err(|error| Failure::text(error.to_string()))?;
    if let Some(pid) = args.pid {
        core.guard(pid).map_err(|error| Failure::text(error.to_string()))?;
    }
    let modules = Modules::default();
    for name in &args.modules {
        load(&core, &modules, name).map_err(Failure::text)?;
    }
    control::serve({
        let (core, modules) = (core.clone(), modules.clone());
        move |ask| answer(&core, &modules, ask)
    })?;
    let mut program = start(&core, &args.program)?;
    let began = Instant::now();
    let code = loop {
        tell(&modules, &mut to)?;
        if let Some(status) = program.as_mut().map(Child::try_wait).transpose()?.flatten() {
            let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            break ExitCode::from(code as u8);
        }
        if limit.is_some_and(|limit| began.elapsed() >= limit) || args.pid.is_some() && core.guarded().is_empty() {
            break ExitCode::SUCCESS;
        }
        std::thread::sleep(LOOK);
    };
    // A last look, so that nothing said before the end is missed.
    tell(&modules, &mut to)?;
    lock(&modules).clear();
    Ok(code)
}

fn open(path: Option<&Path>) -> Result<Option<Box<dyn Write>>, Failure> {
    let Some(path) = path else { return Ok(None) };
    if path.as_os_str() == "-" {
        return Ok(Some(Box::new(io::stdout())));
    }
    match File::create(path) {
        Ok(file) => Ok(Some(Box::new(file))),
        Err(error) => Err(Failure::text(format!("cannot write {}: {error}", path.display()))),
    }
}

fn start(core: &Core, program: &[String]) -> Result<Option<Child>, Failure> {
    let Some((name, args)) = program.split_first() else { return Ok(None) };
    let child = Command::new(name).args(args).spawn();
    let child = child.map_err(|error| Failure::text(format!("cannot start {name}: {error}")))?;
    // Not reaped yet, so the number is its own; if it ended already there is nothing left to guard.
    let _ = core.guard(child.id());
    Ok(Some(child))
}

/// Writes what the modules and the core have to report.
fn tell(modules: &Modules, to: &mut Option<Box<dyn Write>>) -> Result<(), Failure> {
    for entry in lock(modules).iter_mut() {
        while let Some(report) = entry.installed.report(Duration::ZERO) {
            let (kind, text) = match report {
                Report::Said(text) => ("said", text),
                Report::Failed(how) => ("failed", how),
                Report::Reloaded { missed } => {
                    entry.reloads += 1;
                    ("reloaded", format!("events missed so far: {missed}"))
                }
                Report::GaveUp => {
                    entry.gave_up = true;
                    ("gave up", "it failed too often and stays unloaded".to_owned())
                }
                Report::Refused(why) => ("refused", why),
                other => ("said", format!("{other:?}")),
            };
            match to {
                Some(to) => {
                    let line = json!({ "time": orbit_rmk::now(), "module": entry.name, "report": kind, "text": text });
                    writeln!(to, "{line}")?;
                    to.flush()?;
                }
                None if kind == "said" => writeln!(anstream::stderr(), "{}: {text}", entry.name)?,
                None => writeln!(anstream::stderr(), "{}: {kind}: {text}", entry.name)?,
            }
        }
    }
    Ok(())
}

fn load(core: &Core, modules: &Modules, name: &str) -> Result<(), String> {
    let builtin = builtin::find(name)?;
    let mut modules = lock(modules);
    if modules.iter().any(|entry| entry.name == name) {
        return Err(format!("module \"{name}\" is loaded already"));
    }
    let installed = (builtin.install)(core).map_err(|error| error.to_string())?;
    modules.push(Entry { name: builtin.name, installed, reloads: 0, gave_up: false });
    Ok(())
}

fn unload(modules: &Modules, name: &str) -> Result<(), String> {
    let mut modules = lock(modules);
    let Some(at) = modules.iter().position(|entry| entry.name == name) else {
        let names: Vec<_> = modules.iter().map(|entry| entry.name).collect();
        return Err(format!("module \"{name}\" is not loaded; loaded: {}", names.join(", ")));
    };
    modules.remove(at).installed.remove();
    Ok(())
}

fn answer(core: &Core, modules: &Modules, ask: Ask) -> Answer {
    match ask {
        Ask::List => {}
        Ask::Load(name) => load(core, modules, &name)?,
        Ask::Unload(name) => unload(modules, &name)?,
    }
    Ok(state(core, modules))
}

/// The core as the list has it.
fn state(core: &Core, modules: &Modules) -> Value {
    let pins = core.pins();
    let of_entry = |entry: &Entry| {
        let status = entry.installed.status();
        let state = match (status.up, entry.gave_up) {
            (true, _) => "up",
            (false, true) => "given up",
            (false, false) => "down",
        };
        let used: Vec<_> =
            pins.iter().filter(|pin| pin.users.iter().any(|user| user == entry.name)).map(|pin| pin.name).collect();
        json!({
            "module": entry.name, "pid": status.pid, "state": state, "pins": used, "delivered": status.handled,
            "missed": status.missed, "lost": status.lost, "faults": status.failures, "reloads": entry.reloads,
        })
    };
    let modules: Vec<Value> = lock(modules).iter().map(of_entry).collect();
    let loaded = pins.iter().filter(|pin| pin.loaded).map(|pin| {
        let Counts { passed, due, delivered, waiting, lost } = pin.counts;
        json!({
            "pin": pin.name, "users": pin.users, "passed": passed, "due": due, "delivered": delivered,
            "waiting": waiting, "lost": lost,
        })
    });
    let loaded: Vec<Value> = loaded.collect();
    json!({ "core": std::process::id(), "guarded": core.guarded(), "modules": modules, "pins": loaded })
}
