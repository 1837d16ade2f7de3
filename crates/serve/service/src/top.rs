//! `orbit service top`: what services do in each interval.

use crate::ask;
use crate::protocol::{Reply, Request, Service};
use orbit_console::out::{self, Align, BAD, Done, FAINT, Failure, PLAIN, Table};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Clears a terminal and goes to its upper left corner.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Prints a table after each interval: on a terminal in place of the one before. The host's end is
/// a failure.
pub fn run(socket: &Path, interval: Duration, updates: u64) -> Done {
    let list = || match ask(socket, &Request::List)? {
        Reply::List { services, members, .. } => Ok((services, members.len())),
        _ => Err(Failure::text("the host did not answer with a list")),
    };
    let interval = interval.max(Duration::from_millis(50));
    let (mut before, mut at) = (list()?.0, Instant::now());
    let mut done = 0;
    while updates == 0 || done < updates {
        std::thread::sleep(interval);
        let (services, members) = list()?;
        let seconds = at.elapsed().as_secs_f64();
        at = Instant::now();
        let mut to = anstream::stdout().lock();
        if std::io::stdout().is_terminal() {
            write!(to, "{CLEAR}")?;
        }
        table(&before, &services, seconds).write(&mut to)?;
        writeln!(to, "{FAINT}{} services, {members} members{FAINT:#}", services.len())?;
        to.flush()?;
        before = services;
        done += 1;
    }
    Ok(ExitCode::SUCCESS)
}

/// What changed between two lists.
fn table(before: &[Service], now: &[Service], seconds: f64) -> Table {
    use Align::{Left, Right};
    let before: BTreeMap<&str, &Service> = before.iter().map(|service| (service.id.as_str(), service)).collect();
    let mut table = Table::new(&[
        ("ID", Left),
        ("NAME", Left),
        ("CLASS", Left),
        ("OWNER", Right),
        ("RUNS/S", Right),
        ("UPCALLS", Right),
        ("CPU", Right),
        ("US/RUN", Right),
        ("ABORTS", Right),
        ("DROPPED/S", Right),
        ("", Left),
    ]);
    for service in now {
        let was = before.get(service.id.as_str());
        let since = |value: fn(&Service) -> u64| value(service).saturating_sub(was.map_or(0, |was| value(was))) as f64;
        let (runs, cpu_ns) = (since(|s| s.runs), since(|s| s.cpu_ns));
        let a_second = |amount: f64| (out::figures(amount / seconds.max(1e-9)), PLAIN);
        let of = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        table.row(vec![
            (service.id.clone(), PLAIN),
            (service.name.escape_default().to_string(), PLAIN),
            (service.class.clone(), PLAIN),
            (service.owner.to_string(), PLAIN),
            a_second(runs),
            (format!("{:.0} %", 100.0 * of(since(|s| s.upcalls), runs)), PLAIN),
            (format!("{:.2} %", cpu_ns / 1e7 / seconds.max(1e-9)), PLAIN),
            (out::figures(of(cpu_ns / 1e3, runs)), PLAIN),
            (service.aborts.to_string(), if service.aborts > 0 { BAD } else { PLAIN }),
            a_second(since(|s| s.dropped)),
            if service.is_revoked { ("revoked".to_owned(), BAD) } else { (String::new(), PLAIN) },
        ]);
    }
    table
}
