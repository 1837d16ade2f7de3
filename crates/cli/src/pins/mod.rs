//! `orbit pins`: the pins of the reliability microkernel, the state of each on this machine, and
//! its users.
//!
//! Only reads: no pin is loaded, no kernel program is attached, nothing is left behind.

mod host;

pub mod modules;

use orbit_console::out::{self, BAD, Done, FAINT, Failure, GOOD, HEAD, WARN};
use orbit_rmk::{PinStatus, Probe};
use serde::Serialize;
use serde_json::Value;
use std::io::Write;
use std::process::ExitCode;

/// Lists the pins that modules use: what each works by, whether it can here, its operations and
/// events.
///
/// A pin wraps one facility of the system. It is available, works in part or in another way
/// (fallback), or is missing; then the line below says why, and what to install or allow. Run it as
/// the user that is to run the modules: most of what is not available to others is so to root.
#[derive(clap::Args)]
pub struct Args {
    /// Prints JSON for scripts.
    #[arg(long)]
    json: bool,
}

/// One pin, as JSON has it.
#[derive(Serialize)]
struct Row {
    pin: &'static str,
    about: &'static str,
    /// By what it works where it works entirely.
    facility: &'static str,
    /// `available`, `fallback` or `missing`.
    state: &'static str,
    /// What is used in place of it, or what is missing, and what to install or allow.
    why: Option<String>,
    operations: &'static [&'static str],
    events: Vec<String>,
    /// The cores of this user in which it is loaded: `core`, `users`, and what became of the
    /// events.
    loaded: Vec<Value>,
}

impl Row {
    fn of(pin: PinStatus) -> Row {
        let (state, why) = match pin.probe {
            Probe::Full => ("available", None),
            Probe::Fallback(how) => ("fallback", Some(how)),
            Probe::Missing(why) => ("missing", Some(why)),
        };
        Row {
            pin: pin.name,
            about: pin.about,
            facility: pin.facility,
            state,
            why,
            operations: pin.operations,
            events: pin.events.iter().map(ToString::to_string).collect(),
            loaded: Vec::new(),
        }
    }

    /// Takes from the answers of running cores what concerns this pin.
    fn used_by(mut self, cores: &[Value]) -> Row {
        for core in cores {
            for pin in modules::list_of(core, "pins").iter().filter(|pin| pin["pin"] == self.pin) {
                let mut here = pin.clone();
                here["core"] = core["core"].clone();
                self.loaded.push(here);
            }
        }
        self
    }
}

pub fn run(args: &Args) -> Done {
    let core = orbit_modules::core().map_err(|error| Failure::text(error.to_string()))?;
    let cores = modules::running();
    let rows: Vec<Row> = core.pins().into_iter().map(|pin| Row::of(pin).used_by(&cores)).collect();
    let mut to = anstream::stdout().lock();
    if args.json {
        out::json(&mut to, &serde_json::json!({ "pins": rows }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for row in &rows {
        let style = match row.state {
            "available" => GOOD,
            "fallback" => WARN,
            _ => BAD,
        };
        writeln!(to, "{HEAD}{:<7}{HEAD:#} {style}{:<9}{style:#}  {}", row.pin, row.state, row.about)?;
        writeln!(to, "        {FAINT}by{FAINT:#}         {}", row.facility)?;
        if let Some(why) = &row.why {
            writeln!(to, "        {FAINT}here{FAINT:#}       {style}{why}{style:#}")?;
        }
        writeln!(to, "        {FAINT}operations{FAINT:#} {}", row.operations.join(", "))?;
        writeln!(to, "        {FAINT}events{FAINT:#}     {}", row.events.join(", "))?;
        for here in &row.loaded {
            writeln!(
                to,
                "        {FAINT}loaded{FAINT:#}     core {}, by {}: {} delivered, {} waiting, {} lost",
                here["core"],
                modules::words(here, "users"),
                here["delivered"],
                here["waiting"],
                here["lost"]
            )?;
        }
    }
    let count = |state: &str| rows.iter().filter(|row| row.state == state).count();
    writeln!(
        to,
        "{} pins: {} available, {} by a fallback, {} missing",
        rows.len(),
        count("available"),
        count("fallback"),
        count("missing")
    )?;
    to.flush()?;
    Ok(ExitCode::SUCCESS)
}
