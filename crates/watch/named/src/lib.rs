//! Sections by name: functions of a program that was not changed for it.
//!
//! Owns: [`Sections`], which works beside an [`orbit_ahd::Watcher`]: its threads and their
//! counters, its reports. The decision comes from three sources.
//!
//! - *Stacks* say which thread is inside: one is sampled after 60 ms of CPU without a wait (1 s
//!   with waits), or when it has not run for the limit.
//! - *Breakpoints* say that it is still the same execution: the processor's debug registers count,
//!   for the suspected thread alone, whether it enters the function anew; without an entry all CPU
//!   time since was used inside.
//! - *Uprobes*, as far as their cost allows, say how much an execution usually uses, by exit, and
//!   when the present one began; a stack or a breakpoint has to prove the latter.
//!
//! Promises: a thread is reported only if a stack taken at the end has the function on it, and no
//! entry was seen since the time that is counted from. Leaves out: threads that a debugger traces;
//! waits at a thread's usual place.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]

mod blocked;
mod busy;
mod callers;
mod probes;
mod spot;

use busy::Suspect;
use callers::{Callers, as_in_file};
use orbit_ahd::facts::Id;
use orbit_ahd::section::{WINDOW, Windows};
use orbit_ahd::{Event, Kind, SectionUse, ThreadNow, Watcher};
use orbit_inspect::functions::{self, Function, Missing, Wanted};
use orbit_inspect::stacks::Frame;
use orbit_inspect::{Maps, Memory};
use orbit_uprobe::code::shape;
use orbit_uprobe::{Duty, Error, State, Target};
use spot::Spot;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Threads for which breakpoints are set in one tick.
const THREADS_A_TICK: usize = 4;
/// Time between two searches of what a process has mapped; one tick while a function is in none.
const SEARCH_INTERVAL: Duration = Duration::from_millis(600);
/// A function that is in no process after this time, and so many searches, is reported as
/// missing: searches may be far apart at first.
const MISSING_AFTER: Duration = Duration::from_secs(2);
const MISSING_AFTER_SEARCHES: u32 = 4;
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
#[derive(Debug)]
pub struct Sections {
    sections: Vec<Named>,
    /// What probes of all of them together may cost a process, in percent of the CPU time it uses;
    /// 0: no bound.
    cost: f64,
    /// Threads whose hang was reported from here.
    claimed: BTreeMap<Id, (Kind, Instant)>,
    events: Vec<Event>,
    duty: Option<Duty>,
    /// Files mapped at the last search, by process.
    mapped: BTreeMap<i32, Vec<(u64, u64)>>,
    spots: BTreeMap<(i32, usize), Spot>,
    callers: Callers,
    suspects: BTreeMap<Id, Suspect>,
    missing: BTreeMap<usize, Missing>,
    began: Option<Instant>,
    /// When the functions were searched for last, and how often so far.
    searched: Option<Instant>,
    searches: u32,
    missing_reported: Vec<usize>,
    state_reported: bool,
    /// Threads for which breakpoints may be set in this tick.
    tastes: usize,
    breakpoint_failure_reported: bool,
}

impl Sections {
    /// These sections; what probing them costs a process stays below `cost` percent of the CPU time
    /// it uses, 0 for no bound.
    pub fn new(sections: Vec<Named>, cost: f64) -> Sections {
        Sections {
            sections,
            cost,
            claimed: BTreeMap::new(),
            events: Vec::new(),
            duty: None,
            mapped: BTreeMap::new(),
            spots: BTreeMap::new(),
            callers: Callers::default(),
            suspects: BTreeMap::new(),
            missing: BTreeMap::new(),
            began: None,
            searched: None,
            searches: 0,
            missing_reported: Vec::new(),
            state_reported: false,
            tastes: 0,
            breakpoint_failure_reported: false,
        }
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

    /// A process has ended, is let go, or has become another program: what its sections cost is the
    /// answer.
    pub fn forget(&mut self, pid: i32) -> Option<Event> {
        let used = self.used(pid);
        let keys: Vec<(i32, usize)> = self.spots.range((pid, 0)..=(pid, usize::MAX)).map(|(k, _)| *k).collect();
        for k in keys {
            self.drop_spot(k);
        }
        self.suspects.retain(|id, _| id.pid != pid);
        self.claimed.retain(|id, _| id.pid != pid);
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
    fn used(&self, pid: i32) -> Option<Event> {
        let mut list = Vec::new();
        for ((_, n), s) in self.spots.range((pid, 0)..=(pid, usize::MAX)) {
            let tally = s.duty.and_then(|id| self.duty.as_ref()?.tally(id)).unwrap_or_default();
            let hits = tally.hits.all();
            list.push(SectionUse {
                section: self.sections[*n].name.clone(),
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
    fn add(&mut self, key: (i32, usize), function: Function) {
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
        let history = Windows::new(WINDOW);
        let spot = Spot {
            function,
            shape,
            duty,
            lacks,
            lacking_reported: false,
            cpu: 0,
            history,
            executions: 0,
            seen: BTreeMap::new(),
        };
        self.spots.insert(key, spot);
    }
}

impl Sections {
    /// Scans once, after the watcher has, and hands over what happened.
    pub fn scan(&mut self, watcher: &mut Watcher, hand: &mut dyn FnMut(Event)) {
        if self.sections.is_empty() {
            return;
        }
        let now = Instant::now();
        if self.began.is_none() {
            self.began = Some(now);
            let bound = self.cost / 100.0 / self.sections.len() as f64;
            self.duty = Some(Duty::start((self.cost > 0.0).then_some(bound)));
        }
        let pids = watcher.pids();
        let lacks = |n| !self.spots.keys().any(|(_, of)| *of == n);
        if self.searched.is_none_or(|last| now - last >= SEARCH_INTERVAL) || (0..self.sections.len()).any(lacks) {
            self.searched = Some(now);
            self.searches += 1;
            self.search_functions(&pids);
        }
        let waited = self.began.is_some_and(|b| now - b > MISSING_AFTER) && self.searches >= MISSING_AFTER_SEARCHES;
        self.report_lacking(pids.first().copied(), waited);
        let probed = |pid: &i32| self.spots.range((*pid, 0)..=(*pid, usize::MAX)).next().is_some();
        let threads: Vec<ThreadNow> = pids.iter().filter(|p| probed(p)).flat_map(|p| watcher.threads(*p)).collect();
        self.read_probes(&threads);
        self.tastes = THREADS_A_TICK;
        let ids: BTreeSet<Id> = threads.iter().map(|t| t.id).collect();
        self.suspects.retain(|id, _| ids.contains(id));
        let mut stacks = WAITING_A_TICK;
        let (busy, blocked) = (watcher.config().busy, watcher.config().blocked);
        let limit = watcher.config().limit;
        for thread in threads {
            // Taken out while it is worked on: the rest is needed too.
            let mut s = self.suspects.remove(&thread.id).unwrap_or_else(|| Suspect {
                since: thread.run,
                sampled_at: thread.run,
                ease: 1,
                judge: limit,
                ..Suspect::default()
            });
            let still = Duration::try_from_secs_f64(thread.still).unwrap_or_default();
            if thread.ran > 0 {
                s.judge = limit;
                if self.claimed.get(&thread.id).is_some_and(|(kind, _)| *kind == Kind::Blocked) {
                    self.over(watcher, thread.id);
                }
                if busy {
                    self.watch_busy(watcher, thread.id, thread.run, &mut s, now);
                }
            } else if blocked && still >= s.judge && stacks > 0 {
                stacks -= 1;
                s.judge = still + Duration::from_secs(1).max(still / 4);
                self.watch_blocked(watcher, &thread);
            }
            self.suspects.insert(thread.id, s);
            self.events.drain(..).for_each(&mut *hand);
        }
        self.events.drain(..).for_each(&mut *hand);
    }

    /// What the sections of these processes cost, once nothing more will be asked.
    pub fn finish(&mut self, pids: &[i32]) -> Vec<Event> {
        self.report_lacking(pids.first().copied(), true);
        for pid in pids {
            let used = self.forget(*pid);
            self.events.extend(used);
        }
        std::mem::take(&mut self.events)
    }

    /// Waits, this long at most, until no probes are left, after [`Sections::finish`]; whether that
    /// is so. Before that this process had better not be ended.
    pub fn settle(&self, most: Duration) -> bool {
        self.duty.as_ref().is_none_or(|duty| duty.settle(most))
    }

    /// Finds the functions in what the processes have mapped by now.
    fn search_functions(&mut self, pids: &[i32]) {
        for &pid in pids {
            let Ok(maps) = Maps::of(pid) else {
                continue;
            };
            let files: Vec<(u64, u64)> = maps.iter().filter(|m| m.exec && m.ino != 0).map(|m| (m.dev, m.ino)).collect();
            // One that ends, or is in the middle of exec, has nothing mapped: that says nothing.
            if files.is_empty() || self.mapped.get(&pid) == Some(&files) {
                continue;
            }
            for n in 0..self.sections.len() {
                let key = (pid, n);
                let stays =
                    |s: &Spot| maps.at(s.function.address).is_some_and(|m| (m.dev, m.ino) == s.function.identity);
                match self.spots.get(&key).map(stays) {
                    Some(true) => continue,
                    Some(false) => self.drop_spot(key),
                    None => {}
                }
                match functions::find(pid, &maps, &self.sections[n].function) {
                    Ok(f) => self.add(key, f),
                    Err(missing) => {
                        self.missing.insert(n, missing);
                    }
                }
            }
            self.mapped.insert(pid, files);
        }
    }

    /// Says what is not there: a function (if it was `waited` for long enough), or the means to
    /// probe.
    fn report_lacking(&mut self, pid: Option<i32>, waited: bool) {
        let Some(pid) = pid else {
            return;
        };
        for n in 0..self.sections.len() {
            let found = self.spots.keys().any(|(_, of)| *of == n);
            if found || !waited || self.missing_reported.contains(&n) {
                continue;
            }
            if let Some(missing) = self.missing.get(&n) {
                self.missing_reported.push(n);
                let Named { name, function } = &self.sections[n];
                let again = match missing.several.is_empty() {
                    true => {
                        "; it is searched for again in each program that is run from here, and in libraries that are \
                         loaded"
                    }
                    false => "",
                };
                let text = format!("function {function} of section {name} {missing}{again}");
                self.events.push(Event::Trouble { pid, text });
            }
        }
        match self.duty.as_ref().map(Duty::state) {
            Some(State::Failed(e)) if !self.state_reported => {
                self.state_reported = true;
                self.events.push(Event::Trouble { pid, text: unprobed(&e, "sections by name are") });
            }
            Some(State::Ready(_)) => self.report_what_is_not_probed(),
            _ => {}
        }
    }

    /// Says which function of which process cannot be probed, and why.
    fn report_what_is_not_probed(&mut self) {
        for ((pid, n), spot) in self.spots.iter_mut().filter(|(_, s)| !s.lacking_reported) {
            let error = || self.duty.as_ref()?.tally(spot.duty?)?.error;
            let Some(e) = spot.lacks.clone().or_else(error) else { continue };
            spot.lacking_reported = true;
            let (name, function) = (&self.sections[*n].name, &spot.function.name);
            let what = unprobed(&e, "it is");
            let text = format!("function {function} of section {name} in process {pid} is not probed: {what}");
            self.events.push(Event::Trouble { pid: *pid, text });
        }
    }

    /// Takes down what the probes have counted.
    fn read_probes(&mut self, threads: &[ThreadNow]) {
        let Some(duty) = &self.duty else {
            return;
        };
        self.callers.begin_tick();
        for ((pid, _), spot) in &mut self.spots {
            let own = || threads.iter().filter(|t| t.id.pid == *pid);
            spot.cpu += own().map(|t| t.ran).sum::<u64>();
            let Some(id) = spot.duty else {
                continue;
            };
            duty.used(id, spot.cpu);
            let Some(tally) = duty.tally(id).filter(|t| t.windows > 0) else {
                continue;
            };
            for t in own().filter(|t| t.ran > 0) {
                if let Some(record) = duty.record(id, t.id.tid) {
                    spot.learn(t.id.tid, &tally, record);
                }
            }
            spot.seen.retain(|tid, _| own().any(|t| t.id.tid == *tid));
            for (back, behind) in self.callers.of(*pid, &tally.callers) {
                duty.returned(id, back, behind);
            }
        }
    }

    /// What one execution of a section may use and usually uses, ns of CPU.
    fn may_use(&self, watcher: &Watcher, key: (i32, usize)) -> (u64, Option<u64>) {
        let Some(s) = self.spots.get(&key) else {
            return (u64::MAX, None);
        };
        let config = watcher.config();
        let check = s.history.check_value(config.factor, config.floor.as_nanos() as u64);
        // Among few executions a rare long one need not have been.
        let is_known = s.history.usual().is_some() && s.executions >= WINDOW as u64;
        (if is_known { check } else { check.max(config.limit.as_nanos() as u64) }, s.history.usual())
    }
}
