//! Rows of these benches: the form that all benches share, and a line of the table shown.

use crate::reach::Reach;
use crate::row::Measured;
use crate::stats::Summary;
use orbit_console::out::{self, Align, PLAIN, Table};
use serde::Serialize;

/// What a row has beside the shared fields.
#[derive(Serialize)]
pub struct Own {
    pub part: &'static str,
    /// Clients of the load, or sessions of a deadlock.
    pub clients: usize,
}

/// What a part gives: what is shown, and the rows.
pub type Rows = (Table, Vec<Measured<Own>>);

/// A row, and how it is shown.
pub struct Row {
    cells: Vec<String>,
    pub measured: Measured<Own>,
}

/// A row of one figure, ours and the rivals'.
pub fn row(
    measure: &str,
    unit: &'static str,
    ours: Option<Summary>,
    rivals: &[(&'static str, Option<Summary>)],
    bounds: &[Reach],
    own: Own,
) -> Row {
    let shown = |figure: Option<Summary>| {
        figure.map_or("-".to_owned(), |f| format!("{} ({})", out::figures(f.p50), out::figures(f.p99)))
    };
    let words: Vec<String> = rivals.iter().map(|(name, figure)| format!("{name} {}", shown(*figure))).collect();
    let cells = vec![measure.to_owned(), unit.to_owned(), shown(ours), words.join(", ")];
    let mut measured = Measured::new(measure, unit, own).ours(ours);
    for (name, figure) in rivals {
        measured = measured.rival(name, *figure);
    }
    Row { cells, measured: measured.reach(bounds) }
}

pub fn table(rows: &[Row]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[("MEASURE", Left), ("UNIT", Left), ("ORBIT (P99)", Right), ("RIVALS (P99)", Left)]);
    for row in rows {
        table.row(row.cells.iter().map(|cell| (cell.clone(), PLAIN)).collect());
    }
    table
}
