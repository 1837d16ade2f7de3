//! `orbit keep --status`: the programs that are kept now.

use crate::board::{self, Row};
use crate::report::RUNGS;
use anstyle::Style;
use orbit_console::out::{self, Align, Done, Failure, Table};
use std::io::Write;
use std::process::ExitCode;

const PLAIN: Style = Style::new();

/// Prints them, as a table or as JSON.
pub(crate) fn print(is_json: bool) -> Done {
    let keepers = board::all();
    let mut to = anstream::AutoStream::auto(std::io::stdout());
    for complaint in keepers.complaints() {
        anstream::eprintln!("orbit keep: {complaint}");
    }
    if is_json {
        let unknown = &keepers.unknown;
        let keepers: Vec<_> = keepers
            .known
            .iter()
            .map(|(keeper, rows)| serde_json::json!({ "keeper": keeper, "programs": rows }))
            .collect();
        out::json(&mut to, &serde_json::json!({ "keepers": keepers, "other_versions": unknown }))?;
    } else if keepers.known.is_empty() && keepers.unknown.is_empty() {
        out::say(|to| writeln!(to, "No program of this user is kept here: orbit keep -- PROGRAM keeps one."))
            .map_err(Failure::from)?;
    } else {
        let rows = keepers.known.into_iter().flat_map(|(_, rows)| rows);
        table(&rows.collect::<Vec<_>>()).write(&mut to)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The table of kept programs; also for `orbit top`.
pub fn table(rows: &[Row]) -> Table {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("KEPT", Align::Left),
        ("PID", right),
        ("MODE", Align::Left),
        ("CHECKPOINTS", right),
        ("PUT OFF", right),
        ("PAUSE P50", right),
        ("P99", right),
        ("PAGES", right),
        ("HELD", right),
        ("CRASHES", right),
        ("BY RUNG", Align::Left),
    ]);
    for row in rows {
        let f = &row.figures;
        let by_rung = RUNGS.iter().zip(f.by_rung).filter(|(_, n)| *n > 0).map(|(rung, n)| format!("{rung} {n}"));
        let cells = [
            row.name.clone(),
            row.pid.to_string(),
            if row.is_kept { row.mode.clone() } else { "not yet".into() },
            f.checkpoints.to_string(),
            f.put_off.to_string(),
            out::time(f.pause_p50_us),
            out::time(f.pause_p99_us),
            f.pages.to_string(),
            out::bytes(f.held_bytes),
            f.crashes.to_string(),
            by_rung.collect::<Vec<_>>().join(", "),
        ];
        table.row(cells.map(|cell| (cell, PLAIN)).into());
    }
    table
}
