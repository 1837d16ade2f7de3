//! The detector that judges facts: sense, facts, rules, reports, explanations, in this order, once a scan.
//!
//! Owns: the main loop's one turn, and the recording of it. Which processes are watched is its caller's to say.

use crate::event::Event;
use crate::explain::{Explainer, involved, kind};
use crate::facts::{Id, Record};
use crate::judge::judge;
use crate::limits::Limits;
use crate::replay::{Scene, Writer};
use crate::report::{News, Reports};
use crate::sense::Sensor;
use std::path::Path;
use std::time::Duration;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Judged {
    sensor: Sensor,
    scene: Scene,
    reports: Reports,
    explainer: Explainer,
    limits: Limits,
    recording: Option<Writer>,
    trouble: Option<String>,
}

impl Judged {
    /// With nothing watched yet; `record` is a file that all records are written to.
    pub(crate) fn new(limits: Limits, record: Option<&Path>) -> Judged {
        let (recording, trouble) = match record.map(Writer::create) {
            Some(Err(e)) => (None, Some(format!("nothing is recorded: {e}"))),
            Some(Ok(writer)) => (Some(writer), None),
            None => (None, None),
        };
        Judged {
            sensor: Sensor::default(),
            scene: Scene::default(),
            reports: Reports::default(),
            explainer: Explainer::default(),
            limits,
            recording,
            trouble,
        }
    }

    /// Time to wait until the next turn.
    pub(crate) fn pause(&self) -> Duration {
        self.sensor.pause()
    }

    /// One scan of these processes; hands over what is new.
    pub(crate) fn turn(&mut self, pids: &[i32], hand: &mut dyn FnMut(Event)) {
        self.sensor.watch(pids);
        let Judged { sensor, scene, recording, trouble, .. } = self;
        sensor.scan(&mut |record| take(scene, recording, trouble, &record));
        if let (Some(text), Some(pid)) = (self.trouble.take(), pids.first()) {
            hand(Event::Trouble { pid: *pid, text });
        }
        let verdicts = judge(&self.scene.facts, &self.scene.history, &self.limits);
        for news in self.reports.take(verdicts, &self.scene.facts) {
            match news {
                News::Hang { verdict, before } => {
                    let mut stopped = Vec::new();
                    let known = (&self.scene.facts, &self.scene.history);
                    let event = self.explainer.explain(&verdict, before, known, &mut |id: Id| stopped.push(id));
                    for id in stopped {
                        let record = self.sensor.stopping(id.pid, id.tid);
                        take(&mut self.scene, &mut self.recording, &mut self.trouble, &record);
                    }
                    hand(event);
                }
                News::Over { verdict, after } => {
                    let first = involved(&verdict, &self.scene.facts, &self.scene.history).first().copied();
                    let Some(Id { pid, tid }) = first else { continue };
                    let after = Duration::try_from_secs_f64(after).unwrap_or_default();
                    hand(Event::Recovered { pid, tid, kind: kind(&verdict), after });
                }
            }
        }
    }

    /// Forgets a process that is watched no more.
    pub(crate) fn forget(&mut self, pid: i32) {
        self.explainer.forget(pid);
    }
}

fn take(scene: &mut Scene, recording: &mut Option<Writer>, trouble: &mut Option<String>, record: &Record) {
    if let Some(writer) = recording
        && let Err(e) = writer.put(record)
    {
        *trouble = Some(format!("the recording ends: {e}"));
        *recording = None;
    }
    scene.history.take(&mut scene.facts, record);
}
