//! `--replay FILE`: judges a recording, with no process in sight.

use orbit_ahd::{Limits, replay};
use orbit_console::out::{Done, Failure};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// A limit in seconds, as `5s`, `500ms` or `5`.
pub fn limit(text: &str) -> Result<f64, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    let seconds = number.parse::<f64>().ok().map(|n| n * unit).filter(|s| (0.1..=3600.0).contains(s));
    seconds.ok_or_else(|| "must be from 0.1s to 3600s, as 5s or 500ms".into())
}

/// Prints when each verdict was first reached, and with which certainty.
pub fn run(path: &Path, limit: Option<f64>) -> Done {
    let records = replay::read(path).map_err(|e| Failure::Text(format!("cannot read {}: {e}", path.display())))?;
    let limits = limit.map_or_else(Limits::default, Limits::with_limit);
    let mut known = BTreeMap::new();
    let mut lines = Vec::new();
    replay::replay(&records, &limits, &mut |scene, verdicts| {
        for v in verdicts {
            let before = known.entry(v.key).or_insert(None);
            if before.is_none_or(|sure| sure < v.sure) {
                *before = Some(v.sure);
                let threads: Vec<String> = v.threads.iter().map(|id| format!("{}/{}", id.pid, id.tid)).collect();
                let rule = v.key.rule();
                lines.push(format!(
                    "{:8.2} s  {rule:11} {:7} {}  {:?}",
                    scene.facts.now,
                    v.sure,
                    threads.join(" "),
                    v.why
                ));
            }
        }
    });
    let mut out = std::io::stdout().lock();
    for line in &lines {
        writeln!(out, "{line}")?;
    }
    if lines.is_empty() {
        writeln!(out, "silent")?;
    }
    Ok(ExitCode::SUCCESS)
}
