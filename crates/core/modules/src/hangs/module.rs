//! The detector as a module of the reliability microkernel: `ahd`.
//!
//! Owns: the detector's input (settings, guarded programs) and its output. It scans at every event
//! of the pin P_PERI, in the process that the core gave it, and reports each [`Event`] as one
//! line of JSON, at once. Promises: a program that is no longer guarded has left, and is not
//! scanned any more, and with the last one what they made; a report has at most `MAX_REPORT_BYTES`.
//! Knows nothing after it was loaded again: threads' habits are learnt anew, and a hang that
//! continues is reported again.

use super::{Detection, Settings};
use orbit_ahd::{Config, Event, Hang, json};
use orbit_named::Named;
use orbit_rmk::{Context, Filter, Module, ModuleOptions};
use serde_json::{Value, json};
use std::io;
use std::time::Duration;

/// Bytes of one report. Beyond, stacks are cut to their innermost frames, and the report says so.
const MAX_REPORT_BYTES: usize = 8 << 20;
/// Frames that are left of each stack then.
const CUT_STACK_FRAMES: usize = 8;
/// Threads that are left of a hang then.
const CUT_HANG_THREADS: usize = 1000;

/// Longest wait for probes to go at a time.
const MAX_WAIT_FOR_PROBES: Duration = Duration::from_millis(10);

/// The module. Its settings are made by [`options`].
pub struct Detector {
    settings: Result<Settings, String>,
    detection: Detection,
    guarded: Vec<i32>,
    /// Those that have left, while probes are taken away from them; and that this is so.
    leaving: Vec<Event>,
    waits: bool,
    /// When the last scan ended, on the clock of events, ns.
    scanned_at: u64,
}

/// How it is best installed. One scan takes less than a millisecond, with many suspects 300 ms of
/// CPU and the time of the last of them: only one of more than 20 s is taken for an endless loop.
/// Reading a large program's debug information takes memory: 512 MiB.
pub fn options(settings: &Settings) -> ModuleOptions {
    ModuleOptions {
        settings: written(settings).to_string().into_bytes(),
        deadline: Duration::from_secs(20),
        memory: 512 << 20,
        ..ModuleOptions::default()
    }
}

impl Module for Detector {
    const NAME: &'static str = "ahd";
    const PINS: &'static [&'static str] = &["P_PERI"];

    fn create(settings: &[u8]) -> Detector {
        let settings = read(settings);
        let detection = Detection::new(settings.as_ref().unwrap_or(&Settings::default()));
        Detector { settings, detection, guarded: Vec::new(), leaving: Vec::new(), waits: false, scanned_at: 0 }
    }

    fn start(&mut self, context: &mut Context) {
        match &self.settings {
            Ok(_) => {
                let often = Filter::everyone().interval(self.detection.period());
                context.subscr_event("P_PERI", orbit_rmk::Kind::Period, often);
            }
            Err(why) => context.fail(why),
        }
    }

    fn event(&mut self, context: &mut Context, event: &orbit_rmk::Event) {
        if self.waits {
            if !self.detection.settle(MAX_WAIT_FOR_PROBES) {
                return;
            }
            self.waits = false;
            self.report_leaving(context);
        }
        // Periods that passed during a long scan, or while scans are spaced out, need none.
        if event.time < self.scanned_at || self.detection.pause() > self.detection.period() / 2 {
            return;
        }
        self.scan(context);
        // One extra scan a period at most, so that changes of guarded programs and settings do not
        // wait.
        if let Some(pause) = self.detection.soon() {
            std::thread::sleep(pause);
            self.scan(context);
        }
        self.scanned_at = orbit_rmk::now();
    }

    fn guarded(&mut self, context: &mut Context, pids: &[u32]) {
        let now: Vec<i32> = pids.iter().filter_map(|pid| i32::try_from(*pid).ok()).collect();
        if now.is_empty() {
            for event in self.detection.finish() {
                context.report(line(event));
            }
        }
        let mut let_go = std::mem::take(&mut self.guarded);
        if now.is_empty() && !let_go.is_empty() {
            // Children too that were found just now: nobody could have them guarded yet, to let
            // them go.
            let_go = self.detection.pids();
        }
        for pid in let_go {
            if !now.contains(&pid) && self.detection.remove(pid) {
                self.leaving.push(Event::Left { pid });
            }
        }
        for &pid in &now {
            if let Err(e) = self.detection.add(pid)
                && !gone(&e)
            {
                // Without the second its files of mode 0400 would not open next.
                let text = format!(
                    "process {pid} cannot be inspected ({e}): needs the same user, or CAP_SYS_PTRACE and \
                     CAP_DAC_READ_SEARCH"
                );
                context.report(line(Event::Trouble { pid, text }));
            }
        }
        self.guarded = now;
        for event in self.detection.take_events() {
            context.report(line(event));
        }
        // Once all have left the guard may end this process.
        self.waits = self.guarded.is_empty() && !self.detection.settle(MAX_WAIT_FOR_PROBES);
        if !self.waits {
            self.report_leaving(context);
        }
    }
}

impl Detector {
    fn report_leaving(&mut self, context: &mut Context) {
        for event in self.leaving.drain(..) {
            context.report(line(event));
        }
    }

    /// One scan. Each event leaves at once: it is reported even if the scan never ends.
    fn scan(&mut self, context: &mut Context) {
        self.detection.scan(&mut |event| {
            context.report(line(event));
            context.hand_over();
        });
    }
}

/// An event as one line.
fn line(event: Event) -> String {
    let text = json::value(&event).to_string();
    match event {
        Event::Hang(hang) if text.len() > MAX_REPORT_BYTES => json::of_hang(&cut(*hang)).to_string(),
        _ => text,
    }
}

/// A hang of many threads with less of each.
fn cut(mut hang: Hang) -> Hang {
    hang.threads.truncate(CUT_HANG_THREADS);
    hang.cycle.truncate(CUT_HANG_THREADS);
    hang.runtime.truncate(CUT_HANG_THREADS);
    for thread in &mut hang.threads {
        if thread.stack.len() > CUT_STACK_FRAMES || thread.python.len() > CUT_STACK_FRAMES {
            thread.note = Some("cut: the report has too many threads".into());
        }
        thread.stack.truncate(CUT_STACK_FRAMES);
        thread.python.truncate(CUT_STACK_FRAMES);
    }
    hang
}

fn written(settings: &Settings) -> Value {
    // Every field by name: one that is added and not sent would be lost without a word.
    let Settings { config, sections, section_cost } = settings;
    let Config { limit, factor, floor, children, busy, blocked, record } = config;
    json!({
        "limit": ns(*limit), "factor": factor, "floor": ns(*floor), "children": children, "busy": busy,
        "blocked": blocked, "record": record, "section_cost": section_cost,
        "sections": sections.iter().map(|s| json!([s.name, s.function.to_string()])).collect::<Vec<_>>(),
    })
}

/// Empty settings are the usual ones.
fn read(settings: &[u8]) -> Result<Settings, String> {
    if settings.is_empty() {
        return Ok(Settings::default());
    }
    let value: Value = serde_json::from_slice(settings).map_err(|e| format!("its settings are no JSON: {e}"))?;
    let wrong = |name: &str| format!("its settings have no sound `{name}`: {value}");
    let time = |name: &str| value[name].as_u64().map(Duration::from_nanos).ok_or_else(|| wrong(name));
    let flag = |name: &str| value[name].as_bool().ok_or_else(|| wrong(name));
    let number = |name: &str| value[name].as_f64().ok_or_else(|| wrong(name));
    let sections = value["sections"].as_array().and_then(|all| all.iter().map(named).collect());
    Ok(Settings {
        config: Config {
            limit: time("limit")?,
            factor: number("factor")?,
            floor: time("floor")?,
            children: flag("children")?,
            busy: flag("busy")?,
            blocked: flag("blocked")?,
            record: value["record"].as_str().map(Into::into),
        },
        sections: sections.ok_or_else(|| wrong("sections"))?,
        section_cost: number("section_cost")?,
    })
}

/// Whether the error says that the process has ended.
fn gone(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

fn named(value: &Value) -> Option<Named> {
    Some(Named { name: value[0].as_str()?.to_owned(), function: value[1].as_str()?.parse().ok()? })
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_the_way() {
        let settings = Settings {
            config: Config {
                limit: Duration::from_millis(700),
                factor: 2.5,
                children: false,
                record: Some("/tmp/x".into()),
                ..Config::default()
            },
            sections: vec![Named { name: "a b".into(), function: "libx.so:ns::g".parse().expect("a function") }],
            section_cost: 0.5,
        };
        assert_eq!(read(&options(&settings).settings), Ok(settings));
        assert_eq!(read(b""), Ok(Settings::default()));
        assert!(read(b"{}").is_err_and(|why| why.contains("`limit`")));
        assert!(read(b"rubbish").is_err());
    }
}
