//! What `orbit agent status` and `--check` print.

use crate::kubernetes::pods::Pods;
use crate::policy::Config;
use crate::selector::Selector;
use crate::state;
use orbit_console::harmless::Harmless;
use orbit_console::out::{self, Align, BAD, Done, Failure, PLAIN, Table, WARN};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Prints an agent's status.
///
/// # Errors
/// Those of writing.
pub fn status(status: &Value, json: bool) -> Done {
    let mut to = std::io::stdout().lock();
    if json {
        out::json(&mut to, status)?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = |value: &Value| value.as_str().map(|text| Harmless(text).to_string()).unwrap_or_default();
    let list = |name: &str| status[name].as_array().cloned().unwrap_or_default();
    let (services, hangs, unwatched) = (list("services"), list("hangs"), list("unwatched"));
    let processes: u64 = services.iter().filter_map(|s| s["processes"].as_u64()).sum();
    let mut table = Table::new(&[
        ("service", Align::Left),
        ("policy", Align::Left),
        ("processes", Align::Right),
        ("state", Align::Left),
    ]);
    for service in &services {
        let own = hangs.iter().filter(|h| h["service"] == service["service"]).count();
        let (state, style) = if own == 0 { ("ok".to_owned(), PLAIN) } else { (format!("hangs ({own})"), BAD) };
        let cells = [text(&service["service"]), text(&service["policy"]), service["processes"].to_string()];
        let mut row: Vec<_> = cells.into_iter().map(|cell| (cell, PLAIN)).collect();
        row.push((state, style));
        table.row(row);
    }
    let mut stdout = anstream_stdout();
    table.write(&mut stdout)?;
    for hang in &hangs {
        writeln!(
            stdout,
            "\n{} since {} ({}, {}), policy {}",
            text(&hang["service"]),
            text(&hang["at"]),
            text(&hang["kind"]),
            text(&hang["sure"]),
            text(&hang["policy"])
        )?;
        writeln!(stdout, "  {}", text(&hang["why"]))?;
        if hang["did"].as_str().is_some_and(|did| !did.is_empty()) {
            writeln!(stdout, "  {}", text(&hang["did"]))?;
        }
    }
    if !unwatched.is_empty() {
        writeln!(stdout, "\n{WARN}not watched:{WARN:#}")?;
    }
    for each in &unwatched {
        writeln!(
            stdout,
            "  {} ({}, {} processes; policy {}): {}",
            text(&each["service"]),
            text(&each["command"]),
            each["processes"],
            text(&each["policy"]),
            text(&each["why"])
        )?;
    }
    for policy in list("policies").iter().filter(|policy| policy["unusable"].is_string()) {
        writeln!(
            stdout,
            "\n{WARN}policy {} is unusable:{WARN:#} {}",
            text(&policy["policy"]),
            text(&policy["unusable"])
        )?;
    }
    for node in list("nodes").iter().filter(|node| node["state"] != "heard") {
        let why = text(&node["why"]);
        let why = if why.is_empty() { why } else { format!(": {why}") };
        writeln!(stdout, "\n{WARN}node {} is {}{why}{WARN:#}", text(&node["node"]), text(&node["state"]))?;
    }
    if status["rejected"].is_string() {
        writeln!(stdout, "\n{WARN}the last configuration was rejected:{WARN:#} {}", text(&status["rejected"]))?;
    }
    writeln!(
        stdout,
        "\n{processes} processes of {} services watched, {} hangs; the agent used {:.1} s of CPU, {}",
        services.len(),
        hangs.len(),
        status["cpu_seconds"].as_f64().unwrap_or(0.0),
        out::bytes(status["resident_bytes"].as_u64().unwrap_or(0))
    )?;
    Ok(ExitCode::SUCCESS)
}

fn anstream_stdout() -> impl Write {
    anstream::stdout().lock()
}

/// Reads a configuration, and shows what it would select now. Fails if a policy is unusable here.
///
/// # Errors
/// A sentence with file and line if it is not sound.
pub fn check(path: &Path) -> Done {
    let config = Config::read(path).map_err(Failure::Text)?;
    let mut selector = Selector::new(config.kubernetes.as_ref().map(Pods::read_once));
    selector.scan(&config)?;
    let services = state::services(&selector, &config);
    let mut to = anstream_stdout();
    writeln!(to, "{}: sound, {} policies", path.display(), config.policies.len())?;
    for policy in &config.policies {
        writeln!(to, "\npolicy {}: on_hang = {}, limit {:?}", policy.name, policy.on_hang, policy.limit)?;
        if let Some(why) = &policy.unusable {
            writeln!(to, "  {BAD}unusable:{BAD:#} {}", Harmless(why))?;
        }
        for service in services.iter().filter(|service| service.policy == policy.name) {
            writeln!(to, "  would watch {} ({} processes)", Harmless(&service.name), service.pids.len())?;
        }
        for (pid, each) in selector.unwatched().iter().filter(|(_, each)| each.policy == policy.name) {
            writeln!(to, "  {WARN}not{WARN:#} process {pid} ({}): {}", Harmless(&each.command), Harmless(&each.why))?;
        }
    }
    let is_usable = config.policies.iter().all(|policy| policy.unusable.is_none());
    Ok(if is_usable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
