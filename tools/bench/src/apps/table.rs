//! Rows of these benches: the form that all benches share, and a line of the table shown.

use super::paper::{Figure, Task};
use crate::reach::Reach;
use crate::row::Measured;
use crate::stats::{Samples, Summary};
use orbit_console::out::{self, Align, PLAIN, Table};
use serde::Serialize;

/// What a row has beside the shared fields.
#[derive(Clone, Copy, Serialize)]
pub struct Own {
    pub part: &'static str,
    /// Clients of the load, or sessions of a deadlock.
    pub clients: usize,
    /// The paper's task, and what of the paper this row repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeats: Option<Figure>,
}

impl Own {
    /// Of a part of the bench, with so many clients.
    pub const fn new(part: &'static str, clients: usize) -> Own {
        Own { part, clients, task: None, repeats: None }
    }

    /// The row repeats this figure for this task.
    pub const fn repeats(self, task: Task, figure: Figure) -> Own {
        Own { task: Some(task), repeats: Some(figure), ..self }
    }
}

/// What a part measures.
pub type Rows = Vec<Row>;

/// A row, and how it is shown.
pub struct Row {
    cells: Vec<String>,
    pub measured: Measured<Own>,
    pub own: Own,
    pub ours: Option<Summary>,
    /// The rivals', in the order given.
    pub rivals: Vec<Option<Summary>>,
}

/// A row of one figure, ours and the rivals'. The paper's own figure stands among the rivals.
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
    let papers = own.task.zip(own.repeats).and_then(|(task, figure)| figure.of(task));
    let mut words: Vec<String> = rivals.iter().map(|(name, figure)| format!("{name} {}", shown(*figure))).collect();
    words.extend(papers.map(|figure| format!("the paper {}", out::figures(figure.p50))));
    let task = own.task.map_or("-".to_owned(), |task| format!("t{}", task as usize + 1));
    let cells = vec![task, measure.to_owned(), unit.to_owned(), shown(ours), words.join(", ")];
    let mut measured = Measured::new(measure, unit, own).ours(ours);
    for (name, figure) in rivals {
        measured = measured.rival(name, *figure);
    }
    let measured = measured.rival("the paper", papers).reach(bounds);
    Row { cells, measured, own, ours, rivals: rivals.iter().map(|(_, figure)| *figure).collect() }
}

/// A row of a single number.
pub fn number(measure: &str, unit: &'static str, figure: f64, own: Own) -> Row {
    row(measure, unit, one(figure), &[], &[], own)
}

/// A summary of a single number.
pub fn one(figure: f64) -> Option<Summary> {
    let mut samples = Samples::default();
    samples.add_figure(figure);
    samples.summary()
}

/// Table 6: a snapshot's size, and its share of the resident memory of the process `main`.
pub fn snapshot(what: &str, kib: f64, main: i32, own: Own, task: Task) -> [Row; 2] {
    snapshot_of(what, kib, resident_kib(main), own, task)
}

/// The same where the resident memory is known.
pub fn snapshot_of(what: &str, kib: f64, resident_kib: f64, own: Own, task: Task) -> [Row; 2] {
    let share = 100.0 * kib / resident_kib.max(1.0);
    [
        number(&format!("{what}: snapshot"), "KiB", kib, own.repeats(task, Figure::SnapshotSize)),
        number(&format!("{what}: snapshot, share of memory"), "%", share, own.repeats(task, Figure::SnapshotShare)),
    ]
}

/// Resident memory of a process; 0 where it has ended.
pub fn resident_kib(pid: i32) -> f64 {
    let memory = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    4.0 * memory.split_whitespace().nth(1).and_then(|pages| pages.parse::<f64>().ok()).unwrap_or(0.0)
}

/// CPU time of all threads of a process so far, microseconds.
pub fn cpu_us(pid: i32) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of_thread = |thread: std::fs::DirEntry| -> Option<f64> {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    threads.filter_map(of_thread).sum::<f64>() / 1e3
}

pub fn table(rows: &[Row]) -> Table {
    use Align::{Left, Right};
    let mut table =
        Table::new(&[("", Left), ("MEASURE", Left), ("UNIT", Left), ("ORBIT (P99)", Right), ("RIVALS (P99)", Left)]);
    for row in rows {
        table.row(row.cells.iter().map(|cell| (cell.clone(), PLAIN)).collect());
    }
    table
}
