//! Figure 12 as a whole: the median and the worst throughput of all tasks, against the unsafe ones.

use super::paper::{Figure, Task};
use super::table::{Own, Row, number};
use crate::Bench;
use crate::reach::{Reach, ratio};
use crate::stats::median;

/// Of each task and part: throughput in an orbit, of the unsafe task's. In the order of the tasks.
pub fn ratios(rows: &[Row]) -> Vec<(Task, &'static str, f64)> {
    let of_figure = rows.iter().filter(|row| row.own.repeats == Some(Figure::Throughput));
    let named = of_figure.filter_map(|row| {
        let part = ratio(median(row.ours), median(row.rivals.first().copied().flatten()));
        Some((row.own.task?, row.own.part, part))
    });
    let mut named: Vec<_> = named.filter(|(.., part)| *part > 0.0).collect();
    named.sort_by_key(|(task, ..)| *task);
    named
}

/// The rows, and their bounds.
pub fn rows(bench: &mut Bench, rows: &[Row]) -> Vec<Row> {
    let mut parts = ratios(rows);
    parts.sort_by(|a, b| a.2.total_cmp(&b.2));
    let Some((worst, part, least)) = parts.first().copied() else { return Vec::new() };
    let middle = (parts[(parts.len() - 1) / 2].2 + parts[parts.len() / 2].2) / 2.0;
    bench.reach([
        Reach::at_least("Figure 12: median of all tasks, of the unsafe task's throughput", middle, 0.99, "times"),
        Reach::at_least(format!("Figure 12: the worst, t{} {part}", worst as usize + 1), least, 0.95, "times"),
    ]);
    bench.note("the paper's Figure 12: median -3.3 %, worst -10.2 %".to_owned());
    let own = Own::new("all", 0);
    vec![
        number("Figure 12, median of all tasks", "times the unsafe task's throughput", middle, own),
        number("Figure 12, worst of all tasks", "times the unsafe task's throughput", least, own),
    ]
}
