//! The detector as a module of the reliability microkernel: `ahd`.
//!
//! Owns: what the detector is told (settings, guarded programs) and how it tells. It looks at every event of the pin P_PERI, in
//! the process that the core gave it, and reports each [`Event`] as one line of JSON, at once. Promises: a program that is no longer
//! guarded has left, and is not looked at any more, and with the last one what they made; a report has at most `MOST` bytes. Knows nothing after it was loaded again: threads'
//! habits are learnt anew, and a hang that goes on is told again.

use crate::config::Method;
use crate::event::{Event, Hang};
use crate::old::proc::gone;
use crate::{Ahd, Config, Named, Watcher, json};
use orbit_rmk::{Context, Filter, Module, ModuleOptions};
use serde_json::{Value, json};
use std::time::Duration;

/// Bytes of one report. Beyond, stacks are cut to their innermost frames, and the report says so.
const MOST: usize = 8 << 20;
/// Frames that are left of each stack then.
const FRAMES: usize = 8;
/// Threads that are left of a hang then.
const THREADS: usize = 1000;

/// Longest wait for probes to go at a time.
const SETTLE: Duration = Duration::from_millis(10);

/// The module. Its settings are made by [`options`].
pub struct Detector {
    config: Result<Config, String>,
    ahd: Watcher,
    guarded: Vec<i32>,
    /// Those that have left, while probes are taken away from them; and that this is so.
    leaving: Vec<Event>,
    waits: bool,
    /// When the last look ended, on the clock of events.
    looked: u64,
}

/// How it is best installed. One look takes less than a millisecond, with many suspects 300 ms of CPU and the time of the last of them: only one of
/// more than 20 s is taken for an endless loop. Reading a large program's debug information takes memory: 512 MiB.
pub fn options(config: &Config) -> ModuleOptions {
    ModuleOptions {
        settings: written(config).to_string().into_bytes(),
        deadline: Duration::from_secs(20),
        memory: 512 << 20,
        ..ModuleOptions::default()
    }
}

impl Module for Detector {
    const NAME: &'static str = "ahd";
    const PINS: &'static [&'static str] = &["P_PERI"];

    fn create(settings: &[u8]) -> Detector {
        let config = read(settings);
        let ahd = Watcher::new(config.clone().unwrap_or_default());
        Detector { config, ahd, guarded: Vec::new(), leaving: Vec::new(), waits: false, looked: 0 }
    }

    fn start(&mut self, context: &mut Context) {
        match &self.config {
            Ok(config) => {
                let often = Filter::everyone().interval(config.period);
                context.subscr_event("P_PERI", orbit_rmk::Kind::Period, often);
            }
            Err(why) => context.fail(why),
        }
    }

    fn event(&mut self, context: &mut Context, event: &orbit_rmk::Event) {
        if self.waits {
            if !self.ahd.settle(SETTLE) {
                return;
            }
            self.waits = false;
            self.tell_leaving(context);
        }
        // Periods that passed during a long look, or while looks are spaced out, ask for none.
        if event.time < self.looked || self.ahd.pause() > self.ahd.period() / 2 {
            return;
        }
        self.look(context);
        // One look out of turn a period, that guarded programs and settings are not kept waiting.
        if let Some(pause) = self.ahd.soon() {
            std::thread::sleep(pause);
            self.look(context);
        }
        self.looked = orbit_rmk::now();
    }

    fn guarded(&mut self, context: &mut Context, pids: &[u32]) {
        let now: Vec<i32> = pids.iter().filter_map(|pid| i32::try_from(*pid).ok()).collect();
        if now.is_empty() {
            for event in self.ahd.finish() {
                context.report(line(event));
            }
        }
        let mut let_go = std::mem::take(&mut self.guarded);
        if now.is_empty() && !let_go.is_empty() {
            // Children too that were found just now: nobody could have them guarded yet, to let them go.
            let_go = self.ahd.pids();
        }
        for pid in let_go {
            if !now.contains(&pid) && self.ahd.remove(pid) {
                self.leaving.push(Event::Left { pid });
            }
        }
        for &pid in &now {
            if let Err(e) = self.ahd.add(pid)
                && !gone(&e)
            {
                let text = format!("process {pid} cannot be looked into ({e}): needs the same user, or CAP_SYS_PTRACE");
                context.report(line(Event::Trouble { pid, text }));
            }
        }
        self.guarded = now;
        for event in self.ahd.take_events() {
            context.report(line(event));
        }
        // Once all have left the guard may end this process.
        self.waits = self.guarded.is_empty() && !self.ahd.settle(SETTLE);
        if !self.waits {
            self.tell_leaving(context);
        }
    }
}

impl Detector {
    fn tell_leaving(&mut self, context: &mut Context) {
        for event in self.leaving.drain(..) {
            context.report(line(event));
        }
    }

    /// One look. Each event leaves at once: should the look never end, it was told all the same.
    fn look(&mut self, context: &mut Context) {
        self.ahd.look(&mut |event| {
            context.report(line(event));
            context.hand_over();
        });
    }
}

impl Ahd {
    /// Watches a process no more; what its sections cost is told with the next events. `false`: it was not watched, or has ended,
    /// which the next look tells.
    pub fn remove(&mut self, pid: i32) -> bool {
        if self.processes.get(&pid).is_none_or(|p| p.dir.count().is_none()) {
            return false;
        }
        self.processes.remove(&pid);
        self.stacks.forget(pid);
        self.rings = None;
        self.events.extend(self.named.forget(pid, &self.config.sections));
        true
    }
}

/// An event as one line.
fn line(event: Event) -> String {
    let text = json::value(&event).to_string();
    match event {
        Event::Hang(hang) if text.len() > MOST => json::of_hang(&cut(*hang)).to_string(),
        _ => text,
    }
}

/// A hang of many threads with less of each.
fn cut(mut hang: Hang) -> Hang {
    hang.threads.truncate(THREADS);
    hang.cycle.truncate(THREADS);
    for thread in &mut hang.threads {
        if thread.stack.len() > FRAMES || thread.python.len() > FRAMES {
            thread.note = Some("cut: the report has too many threads".into());
        }
        thread.stack.truncate(FRAMES);
        thread.python.truncate(FRAMES);
    }
    hang
}

fn written(config: &Config) -> Value {
    // Every field by name: one that is added and not sent would be lost without a word.
    let Config {
        period,
        floor,
        pool_floor,
        factor,
        window,
        limit,
        children,
        busy,
        busy_limit,
        blocked,
        sections,
        section_cost,
        method,
        record,
    } = config;
    json!({
        "period": ns(*period), "floor": ns(*floor), "pool_floor": ns(*pool_floor), "factor": factor, "window": window,
        "limit": ns(*limit), "children": children, "busy": busy, "busy_limit": busy_limit.map(ns), "blocked": blocked,
        "sections": sections.iter().map(|s| json!([s.name, s.function.to_string()])).collect::<Vec<_>>(),
        "section_cost": section_cost, "judge": *method == Method::Judge, "record": record,
    })
}

/// Empty settings are the usual ones.
fn read(settings: &[u8]) -> Result<Config, String> {
    if settings.is_empty() {
        return Ok(Config::default());
    }
    let value: Value = serde_json::from_slice(settings).map_err(|e| format!("its settings are no JSON: {e}"))?;
    let wrong = |name: &str| format!("its settings have no sound `{name}`: {value}");
    let time = |name: &str| value[name].as_u64().map(Duration::from_nanos).ok_or_else(|| wrong(name));
    let flag = |name: &str| value[name].as_bool().ok_or_else(|| wrong(name));
    Ok(Config {
        period: time("period")?,
        floor: time("floor")?,
        pool_floor: time("pool_floor")?,
        factor: value["factor"].as_f64().ok_or_else(|| wrong("factor"))?,
        window: value["window"].as_u64().ok_or_else(|| wrong("window"))? as usize,
        limit: time("limit")?,
        children: flag("children")?,
        busy: flag("busy")?,
        busy_limit: value["busy_limit"].as_u64().map(Duration::from_nanos),
        blocked: flag("blocked")?,
        sections: value["sections"]
            .as_array()
            .and_then(|all| all.iter().map(named).collect())
            .ok_or_else(|| wrong("sections"))?,
        section_cost: value["section_cost"].as_f64().ok_or_else(|| wrong("section_cost"))?,
        method: if flag("judge")? { Method::Judge } else { Method::Examine },
        record: value["record"].as_str().map(Into::into),
    })
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
        let config = Config {
            period: Duration::from_millis(33),
            factor: 2.5,
            children: false,
            busy_limit: Some(Duration::from_secs(9)),
            method: Method::Judge,
            record: Some("/tmp/x".into()),
            sections: vec![Named { name: "a b".into(), function: "libx.so:ns::g".parse().expect("a function") }],
            ..Config::default()
        };
        assert_eq!(read(&options(&config).settings), Ok(config));
        assert_eq!(read(b""), Ok(Config::default()));
        assert!(read(b"{}").is_err_and(|why| why.contains("period")));
        assert!(read(b"rubbish").is_err());
    }
}
