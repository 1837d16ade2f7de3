//! All recordings of this source tree, judged with several limits: hangs found, how soon, and
//! healthy programs reported.

use super::Lines;
use crate::reach::Reach;
use crate::stats::Summary;
use orbit_console::out::Failure;
use orbit_watch::replay::{LIMITS, judge_all};
use serde::Serialize;
use std::path::Path;

/// What one limit finds.
#[derive(Debug, Serialize)]
pub struct Row {
    pub limit_s: f64,
    pub hangs: usize,
    pub found: usize,
    /// Found with more than a guess.
    pub sure: usize,
    /// From the hang to its first verdict.
    pub delay_s: Option<Summary>,
    pub healthy: usize,
    /// Healthy programs with a guess at most.
    pub guesses: usize,
    /// With more.
    pub alarms: usize,
}

/// Judges them all.
pub fn run(lines: &mut Lines) -> Result<(), Failure> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/watch/ahd/tests/recordings"));
    if !folder.is_dir() {
        lines.note(format!("recorded: needs {}", folder.display()));
        return Ok(());
    }
    for (limit_s, found) in LIMITS.iter().copied().zip(judge_all(folder, &LIMITS)?) {
        let n = found.delays.len();
        let mut delays = found.delays;
        delays.sort_by(f64::total_cmp);
        let at = |part: f64| delays.get((part * n.saturating_sub(1) as f64).round() as usize).copied().unwrap_or(0.0);
        let delay_s = (n > 0).then(|| Summary { p50: at(0.5), p99: at(0.99), n });
        if limit_s == LIMITS[LIMITS.len() - 1] {
            let percent = |part: usize, of: usize| part as f64 * 100.0 / of.max(1) as f64;
            lines.reach([
                Reach::at_least(format!("recorded hangs found, of \
                    {}", found.hangs), percent(found.found, found.hangs), 90.0, "%"),
                Reach::at_most(format!("{} recorded healthy programs above a \
                    guess", found.healthy), found.alarms as f64, 0.0, "programs"),
                Reach::at_most(
                    format!("{} recorded healthy programs, a guess", found.healthy),
                    percent(found.guesses, found.healthy),
                    5.0,
                    "%",
                ),
            ]);
        }
        lines.recorded(Row {
            limit_s,
            hangs: found.hangs,
            found: found.found,
            sure: found.sure,
            delay_s,
            healthy: found.healthy,
            guesses: found.guesses,
            alarms: found.alarms,
        });
    }
    Ok(())
}
