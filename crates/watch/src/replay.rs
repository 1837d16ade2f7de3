//! `--replay FILE`: judges a recording, with no process in sight; of a folder all, with several limits.

use orbit_ahd::facts::Record;
use orbit_ahd::{Limits, Sure, replay};
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

/// Limits that a folder of recordings is judged with, s.
pub const LIMITS: [f64; 4] = [0.5, 1.0, 2.0, 5.0];
/// A program that hangs says so a little late: a verdict so much before its mark counts as on the hang, s.
const EARLY: f64 = 0.2;

/// What one limit finds in a folder of recordings.
#[derive(Debug, Default)]
pub struct Found {
    /// Recordings of hangs.
    pub hangs: usize,
    /// Of these, found.
    pub found: usize,
    /// Of these, with more than a guess.
    pub sure: usize,
    /// From the hang to its first verdict, s.
    pub delays: Vec<f64>,
    /// Hangs with a verdict above a guess before they began.
    pub early: usize,
    /// Recordings of healthy programs.
    pub healthy: usize,
    /// Of these, with a guess at most.
    pub guesses: usize,
    /// Of these, with more than a guess.
    pub alarms: usize,
}

impl Found {
    /// Judges one recording: a hang if it has a mark.
    fn take(&mut self, records: &[Record], limits: &Limits) {
        let mark = records.iter().rev().find_map(|r| if let Record::Mark { t } = r { Some(*t) } else { None });
        let (mut first, mut sure, mut early, mut any) = (None, false, false, false);
        replay::replay(records, limits, &mut |scene, verdicts| {
            let now = scene.facts.now;
            for verdict in verdicts {
                any = true;
                let is_sure = verdict.sure > Sure::Guess;
                match mark {
                    Some(mark) if now < mark - EARLY => early |= is_sure,
                    _ => {
                        first.get_or_insert(now - mark.unwrap_or(0.0));
                        sure |= is_sure;
                    }
                }
            }
        });
        if mark.is_some() {
            self.hangs += 1;
            self.found += usize::from(first.is_some());
            self.sure += usize::from(sure);
            self.early += usize::from(early);
            self.delays.extend(first);
        } else {
            self.healthy += 1;
            self.guesses += usize::from(any && !sure);
            self.alarms += usize::from(sure);
        }
    }

    fn line(&mut self, limit: f64) -> String {
        self.delays.sort_by(f64::total_cmp);
        let middle = self.delays.get(self.delays.len() / 2).copied().unwrap_or(0.0);
        let longest = self.delays.last().copied().unwrap_or(0.0);
        format!(
            "{limit:6.1} s  {:3} of {:3} ({:3} above a guess)  {middle:6.1} / {longest:5.1} s  {:3} of {:3} guesses, {:2} above; {} before the mark",
            self.found, self.hangs, self.sure, self.guesses, self.healthy, self.alarms, self.early
        )
    }
}

/// Judges all recordings of a folder, with each of these limits, s.
///
/// # Errors
/// If the folder, or a recording in it, cannot be read, or there is none.
pub fn judge_all(folder: &Path, limits: &[f64]) -> Result<Vec<Found>, Failure> {
    let cannot = |e: std::io::Error| Failure::Text(format!("cannot read {}: {e}", folder.display()));
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if path.to_str().is_some_and(|name| name.ends_with(".jsonl") || name.ends_with(".jsonl.gz")) {
            all.push(replay::read(&path).map_err(cannot)?);
        }
    }
    if all.is_empty() {
        return Err(Failure::Text(format!("{} has no recording: they end in .jsonl or .jsonl.gz", folder.display())));
    }
    let one = |limit: &f64| {
        let mut found = Found::default();
        all.iter().for_each(|records| found.take(records, &Limits::with_limit(*limit)));
        found
    };
    Ok(limits.iter().map(one).collect())
}

/// Judges all recordings of a folder with several limits, and prints what each finds.
fn sweep(folder: &Path, limit: Option<f64>) -> Done {
    let limits = limit.map_or_else(|| LIMITS.to_vec(), |limit| vec![limit]);
    let mut out = std::io::stdout().lock();
    writeln!(out, "   LIMIT  HANGS FOUND                    DELAY P50 / MAX  HEALTHY PROGRAMS")?;
    for (limit, mut found) in limits.iter().zip(judge_all(folder, &limits)?) {
        writeln!(out, "{}", found.line(*limit))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints when each verdict was first reached, and with which certainty. Of a folder it prints what each of several limits finds.
pub fn run(path: &Path, limit: Option<f64>) -> Done {
    if path.is_dir() {
        return sweep(path, limit);
    }
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
