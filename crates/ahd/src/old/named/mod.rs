//! Sections by name: functions of a program that was not changed for it.
//!
//! Owns: the decision, from three sources. *Stacks* say who is inside: a thread is looked at once it used [`busy::SUSPECT`] of CPU
//! without a wait ([`busy::OFTEN`] with waits), or has not run for the limit. *Breakpoints* say that it is still the same
//! execution: the processor's debug registers count, for the suspected thread alone, whether it enters the function anew; without one
//! entry all CPU time since was used inside. *Uprobes*, as far as their cost allows, say how much an execution usually
//! uses, by exit, and when the present one began; a stack or a breakpoint has to prove the latter ([`probes`]). Promises: a thread is told only if a
//! stack taken at the end has the function on it, and no entry was seen since the time that is counted from. Refuses: threads that somebody traces; waits at a thread's usual place.

mod blocked;
mod busy;
mod callers;
mod probes;
mod spot;

use crate::Ahd;
use crate::event::{Event, Hang, Involved, SectionUse};
use crate::old::history::History;
use crate::old::sections::allowed;
use busy::Suspect;
use callers::{Callers, as_in_file};
use orbit_inspect::functions::{self, Function, Missing, Wanted};
use orbit_inspect::stacks::Frame;
use orbit_inspect::waits::Ends;
use orbit_inspect::{Maps, Memory};
use orbit_uprobe::code::shape;
use orbit_uprobe::{Duty, Error, State, Target};
use spot::Spot;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Threads that are tasted in one tick.
const TASTES: usize = 4;
/// Time between two looks at what a process has mapped; one tick while a function is in none.
const SEARCH_EVERY: Duration = Duration::from_millis(600);
/// A function that is in no process after this time, and so many searches, is told to be missing: looks may be far apart at first.
const MISSING: Duration = Duration::from_secs(2);
const SEARCHES: u32 = 4;
/// Stacks of waiting threads taken in one tick.
const WAITING_A_TICK: usize = 16;

/// A section by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// What it is called in reports.
    pub name: String,
    /// The function.
    pub function: Wanted,
}

/// What is lost by an error of the prober's.
fn unprobed(e: &Error, what: &str) -> String {
    match e {
        Error::NotPermitted(_) => format!(
            "{e}; without it {what} found by stacks and breakpoints only, and what executions usually use is not learnt"
        ),
        _ => format!("{e}; {what} found by stacks and breakpoints only"),
    }
}

/// All sections by name.
#[derive(Debug, Default)]
pub(crate) struct Sections {
    duty: Option<Duty>,
    /// Files mapped at the last search, by process.
    mapped: BTreeMap<i32, Vec<(u64, u64)>>,
    spots: BTreeMap<(i32, usize), Spot>,
    callers: Callers,
    suspects: BTreeMap<(i32, i32), Suspect>,
    missing: BTreeMap<usize, Missing>,
    began: Option<Instant>,
    /// When the functions were searched for last, and how often so far.
    searched: Option<Instant>,
    searches: u32,
    told_missing: Vec<usize>,
    told_state: bool,
    /// Threads for which breakpoints may be set in this tick.
    tastes: usize,
    told_breakpoints: bool,
}

impl Sections {
    /// The section whose function is innermost on a stack, if there is one.
    pub(crate) fn innermost(&self, pid: i32, stack: &[Frame]) -> Option<usize> {
        self.all(pid, stack).first().copied()
    }

    /// Whether a thread was told to spin in a section that it has not left since.
    pub(crate) fn told(&self, pid: i32, tid: i32) -> bool {
        let stage = self.suspects.get(&(pid, tid)).and_then(|s| s.stage.as_ref());
        stage.is_some_and(|s| s.told.is_some())
    }

    /// The sections whose functions are on a stack, the innermost first.
    fn all(&self, pid: i32, stack: &[Frame]) -> Vec<usize> {
        let mut out = Vec::new();
        for i in 0..stack.len() {
            for ((_, n), _) in self.spots.range((pid, 0)..=(pid, usize::MAX)).filter(|(_, s)| s.is(stack, i)) {
                if !out.contains(n) {
                    out.push(*n);
                }
            }
        }
        out
    }

    /// A process has ended or become another program; what its sections cost.
    pub(crate) fn forget(&mut self, pid: i32, named: &[Named]) -> Option<Event> {
        let used = self.used(pid, named);
        let keys: Vec<(i32, usize)> = self.spots.range((pid, 0)..=(pid, usize::MAX)).map(|(k, _)| *k).collect();
        for k in keys {
            self.drop_spot(k);
        }
        self.suspects.retain(|(p, _), _| *p != pid);
        self.mapped.remove(&pid);
        used
    }

    fn drop_spot(&mut self, key: (i32, usize)) {
        if let Some(id) = self.spots.remove(&key).and_then(|s| s.duty)
            && let Some(d) = &mut self.duty
        {
            d.leave(id);
        }
    }

    /// What the sections of a process cost so far.
    fn used(&self, pid: i32, named: &[Named]) -> Option<Event> {
        let mut list = Vec::new();
        for ((_, n), s) in self.spots.range((pid, 0)..=(pid, usize::MAX)) {
            let tally = s.duty.and_then(|id| self.duty.as_ref()?.tally(id)).unwrap_or_default();
            let hits = tally.hits.all();
            list.push(SectionUse {
                section: named[*n].name.clone(),
                function: s.function.name.clone(),
                file: s.function.module.clone(),
                hits,
                ns_per_hit: if hits == 0 { 0.0 } else { tally.spent / hits as f64 },
                cpu_ns: s.cpu,
                share: if s.cpu == 0 { 0.0 } else { tally.spent / s.cpu as f64 },
                windows: tally.windows,
            });
        }
        (!list.is_empty()).then_some(Event::Sections { pid, list })
    }

    /// Starts to probe a function.
    fn add(&mut self, key: (i32, usize), function: Function, window: usize) {
        let memory = Memory::of(key.0);
        let read = |at: u64, len: usize| memory.vec(at, len);
        let shape = shape(&function.code, function.size != 0, function.address, &read);
        let start = function.offset;
        let target = |file| Target { pid: key.0, file, start, shape: shape.clone(), callers: true };
        let changed = || "its code in memory is not that of its file".to_owned();
        let (duty, lacks) = match (&mut self.duty, self.callers.open(&function)) {
            // A probe would have the kernel run the file's instruction there.
            (Some(_), Ok(_)) if !as_in_file(&memory, &function) => (None, Some(Error::Failed(changed()))),
            (Some(duty), Ok(file)) => (Some(duty.watch(target(file))), None),
            // It has ended, most likely.
            (_, Err(e)) if e.kind() == std::io::ErrorKind::NotFound => (None, None),
            (_, Err(e)) => (None, Some(Error::Failed(format!("opening {}: {e}", function.file.display())))),
            (None, Ok(_)) => (None, None),
        };
        let history = History::new(window);
        let spot = Spot {
            function,
            shape,
            duty,
            lacks,
            told_lacking: false,
            cpu: 0,
            history,
            executions: 0,
            seen: BTreeMap::new(),
        };
        self.spots.insert(key, spot);
    }
}

impl Ahd {
    /// Looks at the sections by name.
    pub(crate) fn look_at_named(&mut self, now: Instant, hand: &mut dyn FnMut(Event)) {
        if self.config.sections.is_empty() {
            return;
        }
        if self.named.began.is_none() {
            self.named.began = Some(now);
            let percent = self.config.section_cost;
            let bound = percent / 100.0 / self.config.sections.len() as f64;
            self.named.duty = Some(Duty::start((percent > 0.0).then_some(bound)));
        }
        let sections = self.config.sections.len();
        let lacks = |n| !self.named.spots.keys().any(|(_, of)| *of == n);
        if self.named.searched.is_none_or(|last| now - last >= SEARCH_EVERY) || (0..sections).any(lacks) {
            self.named.searched = Some(now);
            self.named.searches += 1;
            self.search_functions();
        }
        let waited = self.named.began.is_some_and(|b| now - b > MISSING) && self.named.searches >= SEARCHES;
        self.tell_what_lacks(waited);
        self.read_probes();
        self.named.tastes = TASTES;
        let threads: Vec<(i32, i32)> = self
            .processes
            .values()
            .flat_map(|p| p.threads.values().map(move |t| (p.pid, t.tid)))
            .filter(|(pid, _)| self.named.spots.range((*pid, 0)..=(*pid, usize::MAX)).next().is_some())
            .collect();
        let suspects = std::mem::take(&mut self.named.suspects);
        self.named.suspects = suspects.into_iter().filter(|(k, _)| threads.binary_search(k).is_ok()).collect();
        let mut stacks = WAITING_A_TICK;
        self.ends = Some(Ends::default());
        for (pid, tid) in threads {
            let Some(t) = self.processes.get(&pid).and_then(|p| p.threads.get(&tid)) else {
                continue;
            };
            let (run, ran, still) = (t.sched.run, t.ran, t.still);
            let waits = self.config.blocked && t.told.is_none();
            // Taken out while it is worked on: the rest of the watcher is needed too.
            let mut s = self.named.suspects.remove(&(pid, tid)).unwrap_or_else(|| Suspect {
                since: run,
                looked: run,
                ease: 1,
                judge: self.config.limit,
                ..Suspect::default()
            });
            if ran > 0 {
                s.judge = self.config.limit;
                if self.config.busy {
                    self.watch_busy(pid, tid, run, &mut s, now);
                }
            } else if waits && still >= s.judge && stacks > 0 && (stacks == WAITING_A_TICK || !self.spent()) {
                stacks -= 1;
                s.judge = still + Duration::from_secs(1).max(still / 4);
                self.watch_blocked(pid, tid, now);
            }
            self.named.suspects.insert((pid, tid), s);
            self.hand_over(hand);
        }
        self.ends = None;
    }

    /// What each process' sections cost, once nothing more will be asked.
    pub fn finish(&mut self) -> Vec<Event> {
        self.tell_what_lacks(true);
        for pid in self.pids() {
            self.events.extend(self.named.forget(pid, &self.config.sections));
        }
        std::mem::take(&mut self.events)
    }

    /// Waits, this long at most, until no probes are left, after [`Ahd::finish`]; whether that is so. Before that this process had better not
    /// be ended.
    pub fn settle(&self, most: Duration) -> bool {
        self.named.duty.as_ref().is_none_or(|duty| duty.settle(most))
    }

    /// Finds the functions in what the processes have mapped by now.
    fn search_functions(&mut self) {
        for pid in self.pids() {
            let Ok(maps) = Maps::of(pid) else {
                continue;
            };
            let files: Vec<(u64, u64)> = maps.iter().filter(|m| m.exec && m.ino != 0).map(|m| (m.dev, m.ino)).collect();
            // One that ends, or is in the middle of exec, has nothing mapped: that says nothing.
            if files.is_empty() || self.named.mapped.get(&pid) == Some(&files) {
                continue;
            }
            for n in 0..self.config.sections.len() {
                let key = (pid, n);
                let stays =
                    |s: &Spot| maps.at(s.function.address).is_some_and(|m| (m.dev, m.ino) == s.function.identity);
                match self.named.spots.get(&key).map(stays) {
                    Some(true) => continue,
                    Some(false) => self.named.drop_spot(key),
                    None => {}
                }
                match functions::find(pid, &maps, &self.config.sections[n].function) {
                    Ok(f) => self.named.add(key, f, self.config.window),
                    Err(missing) => {
                        self.named.missing.insert(n, missing);
                    }
                }
            }
            self.named.mapped.insert(pid, files);
        }
    }

    /// Says what is not there: a function (if it was `waited` for long enough), or the means to probe.
    fn tell_what_lacks(&mut self, waited: bool) {
        let Some(pid) = self.processes.keys().next().copied() else {
            return;
        };
        for n in 0..self.config.sections.len() {
            let found = self.named.spots.keys().any(|(_, of)| *of == n);
            if found || !waited || self.named.told_missing.contains(&n) {
                continue;
            }
            if let Some(missing) = self.named.missing.get(&n) {
                self.named.told_missing.push(n);
                let Named { name, function } = &self.config.sections[n];
                let again = match missing.several.is_empty() {
                    true => {
                        "; it is looked for again in each program that is run from here, and in libraries that are loaded"
                    }
                    false => "",
                };
                let text = format!("function {function} of section {name} {missing}{again}");
                self.events.push(Event::Trouble { pid, text });
            }
        }
        match self.named.duty.as_ref().map(Duty::state) {
            Some(State::Failed(e)) if !self.named.told_state => {
                self.named.told_state = true;
                self.events.push(Event::Trouble { pid, text: unprobed(&e, "sections by name are") });
            }
            Some(State::Ready(_)) => self.tell_what_is_not_probed(),
            _ => {}
        }
    }

    /// Says which function of which process cannot be probed, and why.
    fn tell_what_is_not_probed(&mut self) {
        for ((pid, n), spot) in self.named.spots.iter_mut().filter(|(_, s)| !s.told_lacking) {
            let error = || self.named.duty.as_ref()?.tally(spot.duty?)?.error;
            let Some(e) = spot.lacks.clone().or_else(error) else { continue };
            spot.told_lacking = true;
            let (name, function) = (&self.config.sections[*n].name, &spot.function.name);
            let what = unprobed(&e, "it is");
            let text = format!("function {function} of section {name} in process {pid} is not probed: {what}");
            self.events.push(Event::Trouble { pid: *pid, text });
        }
    }

    /// Takes down what the probes have counted.
    fn read_probes(&mut self) {
        let Some(duty) = &self.named.duty else {
            return;
        };
        self.named.callers.begin_tick();
        for ((pid, _), spot) in &mut self.named.spots {
            let Some(p) = self.processes.get(pid) else {
                continue;
            };
            spot.cpu += p.threads.values().map(|t| t.ran).sum::<u64>();
            let Some(id) = spot.duty else {
                continue;
            };
            duty.used(id, spot.cpu);
            let Some(tally) = duty.tally(id).filter(|t| t.windows > 0) else {
                continue;
            };
            for t in p.threads.values().filter(|t| t.ran > 0) {
                if let Some(record) = duty.record(id, t.tid) {
                    spot.learn(t.tid, &tally, record);
                }
            }
            spot.seen.retain(|tid, _| p.threads.contains_key(tid));
            for (back, behind) in self.named.callers.of(*pid, &tally.callers) {
                duty.returned(id, back, behind);
            }
        }
    }

    /// What one execution of a section may use and usually uses, ns of CPU.
    fn may_use(&self, key: (i32, usize)) -> (u64, Option<u64>) {
        let floor = self.config.floor.as_nanos() as u64;
        let Some(s) = self.named.spots.get(&key) else {
            return (u64::MAX, None);
        };
        let check = allowed(&s.history, self.config.factor, floor, self.config.limit);
        // Among few executions a rare long one need not have been.
        let young = s.executions < self.config.window as u64;
        (if young { check.max(self.config.limit.as_nanos() as u64) } else { check }, s.history.usual())
    }

    fn tell_named(&mut self, pid: i32, tid: i32, threads: Vec<Involved>, mut hang: Hang) {
        self.remember_call(pid, tid);
        hang.comm = threads.first().map_or_else(String::new, |t| t.comm.clone());
        hang.threads = threads;
        self.report(hang);
    }
}
