//! `--replay FILE`: judges a recording, with no process in sight; of a folder all, with several
//! limits.

use super::show;
use orbit_ahd::facts::Record;
use orbit_ahd::{Event, Limits, Sure, replay};
use orbit_console::out::{Done, Failure};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

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
pub const LIMITS: [f64; 5] = [0.2, 0.5, 1.0, 2.0, 5.0];
/// A program that hangs says so a little late: a verdict so much before its mark counts as on the
/// hang, s.
const EARLY_VERDICT_SECONDS: f64 = 0.2;

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
                    Some(mark) if now < mark - EARLY_VERDICT_SECONDS => early |= is_sure,
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

    /// Half of the delays are at most the first, all at most the second, s.
    fn half_and_all(&mut self) -> (f64, f64) {
        self.delays.sort_by(f64::total_cmp);
        let at = |n: usize| self.delays.get(n).copied().unwrap_or(0.0);
        (at(self.delays.len() / 2), at(self.delays.len().saturating_sub(1)))
    }

    fn value(&mut self, limit: f64) -> Value {
        let (middle, longest) = self.half_and_all();
        json!({
            "limit_s": limit, "hangs": self.hangs, "found": self.found, "above_guess": self.sure,
            "delay_p50_s": middle, "delay_max_s": longest, "healthy": self.healthy, "guesses": self.guesses,
            "alarms": self.alarms, "early": self.early,
        })
    }

    fn line(&mut self, limit: f64) -> String {
        let (middle, longest) = self.half_and_all();
        format!(
            "{limit:6.1} s  {:3} of {:3} ({:3} above a guess)  {middle:6.1} / {longest:5.1} s  {:3} of {:3} guesses, \
             {:2} above; {} before the mark",
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
fn sweep(folder: &Path, limit: Option<f64>, json: bool) -> Done {
    let limits = limit.map_or_else(|| LIMITS.to_vec(), |limit| vec![limit]);
    let mut out = std::io::stdout().lock();
    if !json {
        writeln!(out, "   LIMIT  HANGS FOUND                    DELAY P50 / MAX  HEALTHY PROGRAMS")?;
    }
    for (limit, mut found) in limits.iter().zip(judge_all(folder, &limits)?) {
        if json { writeln!(out, "{}", found.value(*limit))? } else { writeln!(out, "{}", found.line(*limit))? }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what watching would have reported, in the same words and with the time in the recording,
/// or as its events; there are no stacks in a recording. Of a folder it prints what each of several
/// limits finds.
pub fn run(path: &Path, limit: Option<f64>, json: bool) -> Done {
    if path.is_dir() {
        return sweep(path, limit, json);
    }
    let records = replay::read(path).map_err(|e| Failure::Text(format!("cannot read {}: {e}", path.display())))?;
    let limits = limit.map_or_else(Limits::default, Limits::with_limit);
    let command = |of: i32| {
        let commands = records.iter().rev().filter_map(|r| match r {
            Record::Process { p, cmd, .. } if *p == of => Some(cmd.trim_end()),
            _ => None,
        });
        commands.into_iter().next().unwrap_or("")
    };
    let mut out = anstream::stdout().lock();
    let (mut any, mut written) = (false, Ok(()));
    replay::events(&records, &limits, &mut |t, event| {
        any = true;
        let at = Duration::try_from_secs_f64(t).unwrap_or_default();
        let written_now = match &event {
            event if json => show::json_replayed(&mut out, event, command(pid(event)), at),
            event => write!(out, "{t:.1} s: ").and_then(|()| show::text(&mut out, event)),
        };
        if written.is_ok() {
            written = written_now;
        }
    });
    written?;
    if !any && !json {
        writeln!(out, "nothing to report in {:.1} s", records.iter().rev().find_map(time).unwrap_or(0.0))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The process that an event is about.
fn pid(event: &Event) -> i32 {
    match event {
        Event::Hang(hang) => hang.pid,
        Event::Joined { pid, .. }
        | Event::Left { pid }
        | Event::Recovered { pid, .. }
        | Event::Learnt { pid, .. }
        | Event::Sections { pid, .. }
        | Event::Trouble { pid, .. } => *pid,
    }
}

/// When a scan ended, s.
fn time(record: &Record) -> Option<f64> {
    if let Record::Tick { t, .. } = record { Some(*t) } else { None }
}
