//! `orbit modules`: what runs in the cores of this user, and loading and unloading there.

use super::host;
use control::Request;
use orbit_console::out::{self, Align, BAD, Done, FAINT, GOOD, PLAIN, Table, WARN};
use orbit_modules::{builtin, control};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;

/// Lists the modules in this user's running cores: state, pins, events, losses, faults.
///
/// A core is made by `orbit modules run`, by `orbit watch` and by `orbit watch --system` (not with
/// --in-process), and ends with everything it made. DELIVERED, MISSED (while the module was down)
/// and LOST (its queue was full) are events; FAULTS are crashes, endless loops and leaks.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_help = builtins())]
pub struct Args {
    /// Prints JSON for scripts.
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(clap::Subcommand)]
enum What {
    Run(host::Args),
    /// Loads a module into a running core.
    Load {
        #[command(flatten)]
        change: Change,
        /// Guards the program with this process number for this module, beside what the core guards
        /// for all; may be repeated.
        #[arg(long, value_name = "N")]
        pid: Vec<u32>,
    },
    /// Unloads a module; its process ends, pins that nothing else uses are unloaded.
    Unload(Change),
    /// Guards programs for all modules of a running core, with the processes that they make.
    Guard(Programs),
    /// Guards programs no more. Processes that they made stay guarded until they end.
    Unguard(Programs),
}

#[derive(clap::Args)]
struct Programs {
    /// Process numbers.
    #[arg(required = true, value_name = "PID")]
    pids: Vec<u32>,
    #[command(flatten)]
    at: At,
}

#[derive(clap::Args)]
struct Change {
    /// The module.
    name: String,
    #[command(flatten)]
    at: At,
}

#[derive(clap::Args)]
struct At {
    /// Process number of the core, as `orbit modules` shows it; may be left out if there is one
    /// core only.
    #[arg(long, value_name = "PID")]
    core: Option<i32>,
}

fn builtins() -> String {
    let mut text = "Modules:\n".to_owned();
    for builtin in &builtin::ALL {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {:<9} {}", builtin.name, builtin.about);
    }
    text.push_str("\nExample:\n  orbit modules run silence switches -- ./server --port 8080");
    text
}

pub fn run(args: &Args) -> Done {
    match &args.what {
        None => list(args.json),
        Some(What::Run(args)) => host::run(args),
        Some(What::Load { change, pid }) => {
            ask(&change.at, &Request::Load { name: change.name.clone(), pids: pid.clone() })
        }
        Some(What::Unload(change)) => ask(&change.at, &Request::Unload(change.name.clone())),
        Some(What::Guard(programs)) => ask(&programs.at, &Request::Guard(programs.pids.clone())),
        Some(What::Unguard(programs)) => ask(&programs.at, &Request::Unguard(programs.pids.clone())),
    }
}

fn ask(at: &At, what: &Request) -> Done {
    let pid = match (at.core, &control::cores()[..]) {
        (Some(pid), _) => pid,
        (None, [pid]) => *pid,
        (None, all) => {
            return Err(out::Failure::text(format!("{} cores run: name one by --core PID", all.len())));
        }
    };
    control::ask(pid, what)?;
    Ok(ExitCode::SUCCESS)
}

/// The cores that answer; says on stderr which do not.
pub fn running() -> Vec<Value> {
    let answers = control::cores().into_iter().map(|pid| control::ask(pid, &Request::List));
    let mut cores = Vec::new();
    for answer in answers {
        match answer {
            Ok(core) => cores.push(core),
            // With stderr closed there is no reader.
            Err(failure) => drop(writeln!(anstream::stderr(), "orbit: {failure}")),
        }
    }
    cores
}

fn list(json: bool) -> Done {
    let cores = running();
    let mut to = anstream::stdout().lock();
    if json {
        out::json(&mut to, &serde_json::json!({ "cores": cores }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if cores.is_empty() {
        writeln!(to, "No core of this user runs; `orbit modules run MODULE -- PROGRAM` makes one.")?;
        return Ok(ExitCode::SUCCESS);
    }
    table(&cores).write(&mut to)?;
    for core in cores.iter().filter(|core| list_of(core, "modules").is_empty()) {
        writeln!(to, "{FAINT}core {} has no module loaded{FAINT:#}", core["core"])?;
    }
    to.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// A list in an answer; empty if it has none.
pub fn list_of<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

/// Words in an answer, joined.
pub fn words(value: &Value, field: &str) -> String {
    list_of(value, field).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",")
}

fn table(cores: &[Value]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("CORE", Right),
        ("MODULE", Left),
        ("PID", Right),
        ("STATE", Left),
        ("PINS", Left),
        ("DELIVERED", Right),
        ("MISSED", Right),
        ("LOST", Right),
        ("FAULTS", Right),
        ("RELOADS", Right),
    ]);
    for core in cores {
        for module in list_of(core, "modules") {
            let number = |field: &str| (module[field].to_string(), PLAIN);
            let troubled = |field: &str| {
                let style = if module[field].as_u64() == Some(0) { PLAIN } else { WARN };
                (module[field].to_string(), style)
            };
            let state = module["state"].as_str().unwrap_or_default();
            table.row(vec![
                (core["core"].to_string(), PLAIN),
                (module["module"].as_str().unwrap_or_default().to_owned(), PLAIN),
                number("pid"),
                (state.to_owned(), if state == "up" { GOOD } else { BAD }),
                (words(module, "pins"), PLAIN),
                number("delivered"),
                troubled("missed"),
                troubled("lost"),
                troubled("faults"),
                number("reloads"),
            ]);
        }
    }
    table
}
