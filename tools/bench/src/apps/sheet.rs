//! The drawing of these benches: bars for Figure 12, lines for Figures 13 and 14, one below the
//! other.

use super::paper::Figure;
use super::summary::ratios;
use super::table::Row;
use crate::plot::{Bars, Chart, Drawing, Series};
use crate::stats::median;
use std::fmt::Write as _;

/// Several drawings as one.
pub struct Sheet(Vec<Box<dyn Drawing>>);

impl Sheet {
    /// What these rows can be drawn as.
    pub fn of(rows: &[Row]) -> Sheet {
        let mut drawings: Vec<Box<dyn Drawing>> = Vec::new();
        let parts = ratios(rows);
        if !parts.is_empty() {
            let title = "Figure 12: throughput with the task in an orbit, of the unsafe task's".to_owned();
            let groups = parts.into_iter().map(|(task, name, part)| {
                (format!("t{} {name}", task as usize + 1), vec![Some(part), Figure::safe_of_unsafe(task)])
            });
            let groups = groups.collect();
            drawings.push(Box::new(Bars { title, series: vec!["here".into(), "the paper".into()], groups }));
        }
        let of_clients: Vec<&Row> = rows.iter().filter(|row| row.own.repeats == Some(Figure::Clients)).collect();
        if !of_clients.is_empty() {
            drawings.push(Box::new(by_clients(&of_clients)));
        }
        Sheet(drawings)
    }
}

fn by_clients(rows: &[&Row]) -> Chart {
    let of = |name: &str, pick: &dyn Fn(&Row) -> f64| {
        Series::new(name, rows.iter().map(|row| (row.own.clients as f64, pick(row))).collect())
    };
    let rival = |row: &Row, nth: usize| median(row.rivals.get(nth).copied().flatten());
    Chart {
        title: "Figures 13 and 14: a run of the deadlock detector, until its result".to_owned(),
        x: "clients".to_owned(),
        y: "microseconds, median".to_owned(),
        series: vec![
            of("orbit, synchronous", &|row| median(row.ours)),
            of("orbit, asynchronous", &|row| rival(row, 0)),
            of("fork for each run", &|row| rival(row, 1)),
        ],
    }
}

impl Drawing for Sheet {
    fn svg(&self) -> String {
        const HEIGHT: usize = 520;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"860\" height=\"{}\">\n",
            HEIGHT * self.0.len().max(1)
        );
        for (nth, drawing) in self.0.iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = write!(svg, "<g transform=\"translate(0 {})\">\n{}</g>\n", nth * HEIGHT, drawing.svg());
        }
        svg + "</svg>\n"
    }
}
