//! One turn after the other: sense, facts, rules, reports, explanations.
//!
//! Owns: [`Watcher`], which watches a set of processes, and the recording of what it saw.

use crate::config::Config;
use crate::event::{Event, Hang, Kind};
use crate::explain::{Explainer, kind, over};
use crate::facts::{Facts, Id, Record};
use crate::history::takes_events;
use crate::judge::{judge, may_end_soon};
use crate::limits::Limits;
use crate::members::Members;
use crate::replay::{Scene, Writer};
use crate::report::{News, Reports};
use crate::sense::{self, Sensor};
use crate::stacks::Stacks;
use crate::wakers::chain_end;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

/// A scan may be so much before its turn, so that a caller with a period of its own misses none.
const EARLY_SCAN: Duration = Duration::from_millis(10);

/// Threads of a process of which it is said that their loop is known.
const LEARNT_SAID: usize = 8;

/// Watches processes for hangs. Use from one thread at a time; may be moved between threads.
#[derive(Debug)]
pub struct Watcher {
    config: Config,
    limits: Limits,
    members: Members,
    sensor: Sensor,
    scene: Scene,
    reports: Reports,
    explainer: Explainer,
    recording: Option<Writer>,
    trouble: Option<String>,
    /// Processes that run another program since that was asked last.
    replaced: Vec<i32>,
    /// Threads of which it was said that their loop is known, by process.
    learnt: BTreeMap<i32, BTreeSet<i32>>,
}

/// A thread as the last scan saw it.
#[derive(Clone, Copy, Debug)]
pub struct ThreadNow {
    /// Which one.
    pub id: Id,
    /// CPU time, ns.
    pub run: u64,
    /// CPU time of that since the scan before, ns.
    pub ran: u64,
    /// For how long it has not run, s; 0 if it is not asleep.
    pub still: f64,
    /// Whether it waits where it usually waits for work.
    pub is_at_home: bool,
}

impl Watcher {
    /// A watcher of nothing yet.
    pub fn new(config: Config) -> Watcher {
        let (recording, trouble) = match config.record.as_deref().map(Writer::create) {
            Some(Err(e)) => (None, Some(format!("nothing is recorded: {e}"))),
            Some(Ok(writer)) => (Some(writer), None),
            None => (None, None),
        };
        Watcher {
            limits: config.limits(),
            config,
            members: Members::default(),
            sensor: Sensor::default(),
            scene: Scene::default(),
            reports: Reports::default(),
            explainer: Explainer::default(),
            recording,
            trouble,
            replaced: Vec::new(),
            learnt: BTreeMap::new(),
        }
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Watches a process from now on; nothing happens if it is watched already.
    ///
    /// # Errors
    /// `ESRCH` or `ENOENT` if there is none, `EACCES` if it may not be seen.
    pub fn add(&mut self, pid: i32) -> io::Result<()> {
        self.members.add(pid).map(|_| ())
    }

    /// Watches a process no more. `false`: it was not watched, or has ended, which the next scan
    /// reports.
    pub fn remove(&mut self, pid: i32) -> bool {
        if !std::path::Path::new(&format!("/proc/{pid}/task")).exists() {
            return false;
        }
        let was_there = self.members.remove(pid);
        if was_there {
            self.forget(pid);
        }
        was_there
    }

    /// The watched processes, sorted.
    pub fn pids(&self) -> Vec<i32> {
        self.members.pids()
    }

    /// Time between two scans of a program that costs little to scan.
    pub fn period(&self) -> Duration {
        sense::PERIOD
    }

    /// Time to wait until the next [`Watcher::scan`].
    pub fn pause(&self) -> Duration {
        self.sensor.pause()
    }

    /// Time to wait until the next scan, if that is to be before its turn.
    pub fn soon(&self) -> Option<Duration> {
        Some(self.pause()).filter(|pause| *pause < self.period() / 2)
    }

    /// Scans once, if it is time to, and hands over what happened, each event as soon as it is
    /// known. Blocks for some microseconds a thread that ran; where a hang is found, for the time
    /// it takes to read the program's debug information as well.
    pub fn scan(&mut self, hand: &mut dyn FnMut(Event)) {
        self.members.events.drain(..).for_each(&mut *hand);
        if self.pause() > EARLY_SCAN {
            return;
        }
        if self.config.children {
            self.members.adopt();
        }
        self.sensor.watch(&self.members.pids());
        let Watcher { sensor, scene, recording, trouble, members, explainer, .. } = self;
        let limits = &self.limits;
        let mut forget = Vec::new();
        let ended = sensor.scan(&mut |record| {
            if let Record::Thread(sight) = &record
                && sight.exec != 0
            {
                forget.push(sight.p);
            }
            take(scene, recording, trouble, &record);
        });
        ended.into_iter().for_each(|pid| members.ended(pid));
        self.replaced.extend(&forget);
        forget.iter().for_each(|pid| self.reports.forget(*pid));
        forget
            .extend(members.events.iter().filter_map(|e| if let Event::Left { pid } = e { Some(*pid) } else { None }));
        for pid in forget {
            explainer.forget(pid);
            self.learnt.remove(&pid);
        }
        members.events.drain(..).for_each(&mut *hand);
        if let (Some(text), Some(pid)) = (trouble.take(), members.pids().first()) {
            hand(Event::Trouble { pid: *pid, text });
        }
        for (pid, text) in sensor.take_troubles() {
            hand(Event::Trouble { pid, text });
        }
        for (id, habit) in &scene.history.threads {
            let said = self.learnt.entry(id.pid).or_default();
            if said.len() < LEARNT_SAID && habit.is_learnt(limits) && said.insert(id.tid) {
                hand(Event::Learnt { pid: id.pid, tid: id.tid });
            }
        }
        let mut verdicts = judge(&scene.facts, &scene.history, limits);
        sensor.scan_soon(verdicts.is_empty() && scene.history.is_section_due(limits));
        verdicts.retain(|v| if kind(v) == Kind::Busy { self.config.busy } else { self.config.blocked });
        for news in self.reports.take(verdicts, &self.scene.facts) {
            match news {
                News::Hang { verdict, before } => {
                    let mut stopped = Vec::new();
                    let known = (&self.scene.facts, &self.scene.history);
                    let event = self.explainer.explain(&verdict, before, known, &mut |id: Id| stopped.push(id));
                    stopped.into_iter().for_each(|id| self.note_stop(id));
                    if let Event::Hang(hang) = &event {
                        if hang.sure > verdict.sure {
                            self.reports.proven(verdict.key, hang.sure);
                        }
                        self.reports.begins_with(verdict.key, Id { pid: hang.pid, tid: hang.tid });
                    }
                    hand(event);
                }
                News::Over { verdict, after } => {
                    over(&verdict, after, (&self.scene.facts, &self.scene.history)).into_iter().for_each(&mut *hand);
                }
            }
        }
    }

    /// Scans once and answers what happened; see [`Watcher::scan`].
    pub fn tick(&mut self) -> Vec<Event> {
        let mut all = Vec::new();
        self.scan(&mut |event| all.push(event));
        all
    }

    /// What was found outside of a scan.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.members.events)
    }

    /// Processes that run another program since this was asked last.
    pub fn take_replaced(&mut self) -> Vec<i32> {
        std::mem::take(&mut self.replaced)
    }

    /// The threads of a process, as the last scan saw them.
    pub fn threads(&self, pid: i32) -> Vec<ThreadNow> {
        let Scene { facts, history } = &self.scene;
        let of = |(tid, run, ran)| {
            let id = Id { pid, tid };
            let still = facts.threads.get(&id).filter(|t| t.sleeps() && ran == 0).map_or(0.0, |t| facts.now - t.since);
            let is_at_home = history.threads.get(&id).is_some_and(|habit| habit.at_home);
            ThreadNow { id, run, ran, still, is_at_home }
        };
        self.sensor.threads(pid).map(of).collect()
    }

    /// Whether a hang that this thread is part of was reported and is not over.
    pub fn is_reported(&self, id: Id) -> bool {
        self.reports.includes(id)
    }

    /// The holder of the lock that this sleeping thread waits for, if it is known. `None` if a
    /// running thread may end the wait, or if it waits for events: a thread without work waits
    /// indefinitely.
    pub fn hopeless_wait(&self, id: Id) -> Option<Option<Id>> {
        let facts: &Facts = &self.scene.facts;
        let thread = facts.threads.get(&id).filter(|t| t.sleeps() && t.wait.is_some())?;
        if takes_events(&thread.sight) || may_end_soon(facts, thread, &self.limits) {
            return None;
        }
        Some(chain_end(facts, thread).map(|end| end.id).filter(|end| *end != id))
    }

    /// Takes stacks; threads stopped for that are to be noted with [`Watcher::note_stop`].
    pub fn stacks(&mut self) -> &mut Stacks {
        self.explainer.stacks()
    }

    /// Notes that a thread was stopped by the watcher itself: that it runs for a moment is no
    /// progress.
    pub fn note_stop(&mut self, id: Id) {
        let record = self.sensor.stopping(id.pid, id.tid);
        take(&mut self.scene, &mut self.recording, &mut self.trouble, &record);
    }

    /// A hang that was found by other means than the rules is reported: no rule reports this thread
    /// again until it is over.
    pub fn claim(&mut self, hang: &Hang) {
        self.reports.claim(Id { pid: hang.pid, tid: hang.tid });
    }

    /// What was claimed is over; whether it was claimed.
    pub fn unclaim(&mut self, id: Id) -> bool {
        self.reports.unclaim(id)
    }

    /// Forgets a process that is watched no more.
    fn forget(&mut self, pid: i32) {
        self.explainer.forget(pid);
        self.reports.forget(pid);
        self.learnt.remove(&pid);
        let ids: Vec<Id> = self.scene.facts.threads.keys().filter(|id| id.pid == pid).copied().collect();
        let t = self.sensor.now();
        for id in ids {
            let record = Record::Gone { t, p: id.pid, i: id.tid };
            take(&mut self.scene, &mut self.recording, &mut self.trouble, &record);
        }
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
