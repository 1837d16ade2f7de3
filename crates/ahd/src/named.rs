//! Sections by name: functions of a program that was not changed for it.
//!
//! Owns: the decision, from three sources. *Stacks* say who is inside: a thread is looked at once it used [`SUSPECT`] of CPU
//! without a wait ([`OFTEN`] with waits), or has not run for the limit. *Breakpoints* say that it is still the same
//! execution: the processor's debug registers count, for the suspected thread alone, whether it enters the function anew; without one
//! entry all CPU time since was used inside. *Uprobes*, as far as their cost allows, say how much an execution usually
//! uses, by exit, and when the present one began. Promises: a thread is told only if a stack taken at the end has the function on it,
//! and no entry was seen since the time that is counted from. Refuses: threads that somebody traces; waits at a thread's usual place.

use crate::Ahd;
use crate::describe::place;
use crate::history::History;
use crate::report::{Event, Hang, Involved, Kind, SectionUse, Unit};
use crate::sections::allowed;
use orbit_inspect::functions::{self, Function, Missing, Wanted};
use orbit_inspect::stacks::Frame;
use orbit_inspect::{Maps, Sure};
use orbit_linux::perf::{self, Access, Counter};
use orbit_uprobe::code::{Shape, shape};
use orbit_uprobe::{Duty, EXITS, Error, Record, State, Tally, Target};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// CPU time without a voluntary wait after which a stack is taken; twice as much each time nothing was found, up to
/// [`MOST_EASE`] times.
const SUSPECT: Duration = Duration::from_millis(60);
const MOST_EASE: u64 = 8;
/// CPU time with waits in between after which it is taken.
const OFTEN: Duration = Duration::from_secs(1);
/// A second look must find so much more CPU time.
const MORE: Duration = Duration::from_millis(20);
/// Breakpoints of a thread that is healthy count so long at most: each hit costs it some microseconds.
const TASTE: Duration = Duration::from_millis(2);
/// Threads that are tasted in one tick.
const TASTES: usize = 4;
/// Debug registers of a thread.
const REGISTERS: usize = 4;
/// Time between two looks at what a process has mapped; one tick while a function is in none.
const SEARCH_EVERY: Duration = Duration::from_millis(600);
/// A function that is in no process after this time, and so many searches, is told to be missing: looks may be far apart at first.
const MISSING: Duration = Duration::from_secs(2);
const SEARCHES: u32 = 4;
/// The exit of executions whose exit was not seen.
const UNSEEN: u64 = EXITS as u64;
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

/// What one thread did in a function when it was last looked at.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    window: u64,
    record: Record,
    /// When and at what CPU time it exceeded the check value.
    exceeded: Option<(Instant, u64)>,
}

/// A function in a process.
#[derive(Debug)]
struct Spot {
    function: Function,
    shape: Shape,
    /// Its number with the prober.
    duty: Option<u64>,
    /// CPU time that the process used since.
    cpu: u64,
    history: History,
    seen: BTreeMap<i32, Seen>,
}

/// A thread found inside a function, to see whether it leaves it.
#[derive(Debug)]
struct Stage {
    section: usize,
    counters: Vec<Counter>,
    /// Not the counters but the probes say that it is the same execution.
    probed: bool,
    /// CPU time from which on it is known to be inside.
    run: u64,
    began: Instant,
    exceeded: Option<(Instant, u64)>,
    /// CPU time at the last stack, once it is told.
    told: Option<u64>,
}

/// What is thought of a thread.
#[derive(Debug, Default)]
struct Suspect {
    /// CPU time when it was last known to be outside, or in a new execution; and waits by then.
    since: u64,
    waits: Option<u64>,
    ease: u64,
    /// CPU time at the last stack.
    looked: u64,
    stage: Option<Stage>,
    /// The section that it was last seen to leave.
    left: Option<usize>,
    /// How long it must have been still for its wait to be judged (again).
    judge: Duration,
}

/// All sections by name.
#[derive(Debug, Default)]
pub(crate) struct Sections {
    duty: Option<Duty>,
    /// Files mapped at the last search, by process.
    mapped: BTreeMap<i32, Vec<(u64, u64)>>,
    spots: BTreeMap<(i32, usize), Spot>,
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

    /// Whether a section's function is on a stack.
    fn on_stack(&self, pid: i32, section: usize, stack: &[Frame]) -> bool {
        self.spots.get(&(pid, section)).is_some_and(|s| (0..stack.len()).any(|i| s.is(stack, i)))
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
            let hits = tally.hits.entries + tally.hits.exits;
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
        let shape = shape(&function.code, function.size != 0);
        let target = Target { pid: key.0, file: function.file.clone(), start: function.offset, shape: shape.clone() };
        let duty = self.duty.as_mut().map(|d| d.watch(target));
        let history = History::new(window);
        self.spots.insert(key, Spot { function, shape, duty, cpu: 0, history, seen: BTreeMap::new() });
    }
}

impl Spot {
    /// Whether a frame of a stack is the function's.
    fn is(&self, stack: &[Frame], i: usize) -> bool {
        let (f, function) = (&stack[i], &self.function);
        // All but the innermost are return addresses, which may lie behind the function.
        let at = if i == 0 { f.address } else { f.address.wrapping_sub(1) };
        let named = || !f.inlined && f.function.as_deref() == Some(&function.name);
        function.holds(at) || function.size == 0 && named()
    }

    /// Counters of a thread that passes where an execution ends or another begins.
    fn counters(&self, tid: i32) -> std::io::Result<Vec<Counter>> {
        let open = |addr: u64| {
            let kind = perf::Kind::Breakpoint { addr: addr as usize, len: 8, access: Access::Execute };
            Counter::open_thread(tid, kind)
        };
        self.watched().into_iter().map(open).collect()
    }

    /// What an execution of its may use, and what it usually uses.
    fn learn(&mut self, tid: i32, tally: &Tally, record: Record) {
        let seen = self.seen.entry(tid).or_default();
        if seen.window != tally.windows {
            *seen = Seen { window: tally.windows, ..Seen::default() };
        }
        for e in 0..EXITS {
            let n = record.exits[e].saturating_sub(seen.record.exits[e]);
            let used = record.used[e].saturating_sub(seen.record.used[e]);
            if let Some(each) = used.checked_div(n) {
                self.history.add(e as u64, each);
            }
        }
        if record.time != seen.record.time || record.sp == 0 {
            seen.exceeded = None;
        }
        seen.record = record;
    }

    /// Addresses at which passing shows that an execution has ended or another begun.
    fn watched(&self) -> Vec<u64> {
        let at = |offset: u64| self.function.address + offset;
        // Where passing the entry need not be an entry, the exits tell; a function without any is never left.
        if self.shape.loops && self.shape.whole && self.shape.exits.len() <= REGISTERS {
            return self.shape.exits.iter().map(|e| at(e.offset)).collect();
        }
        vec![at(self.shape.entry.offset)]
    }
}

impl Ahd {
    /// Looks at the sections by name.
    pub(crate) fn look_at_named(&mut self, now: Instant) {
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
        for (pid, tid) in threads {
            let Some(t) = self.processes.get(&pid).and_then(|p| p.threads.get(&tid)) else {
                continue;
            };
            let (run, ran, still) = (t.sched.run, t.ran, t.still);
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
            } else if self.config.blocked && still >= s.judge && stacks > 0 {
                stacks -= 1;
                s.judge = still + Duration::from_secs(1).max(still / 4);
                self.watch_blocked(pid, tid, still, now);
            }
            self.named.suspects.insert((pid, tid), s);
        }
    }

    /// What each process' sections cost, once nothing more will be asked.
    pub fn finish(&mut self) -> Vec<Event> {
        self.tell_what_lacks(true);
        for pid in self.pids() {
            self.events.extend(self.named.forget(pid, &self.config.sections));
        }
        std::mem::take(&mut self.events)
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
                let text = format!("function {function} of section {name} {missing}");
                self.events.push(Event::Trouble { pid, text });
            }
        }
        if self.named.told_state {
            return;
        }
        let failed = match self.named.duty.as_ref().map(Duty::state) {
            Some(State::Failed(e)) => Some(e),
            Some(State::Ready(_)) => {
                let ids: Vec<u64> = self.named.spots.values().filter_map(|s| s.duty).collect();
                let error = |id| self.named.duty.as_ref()?.tally(id)?.error;
                ids.into_iter().find_map(error)
            }
            _ => None,
        };
        if let Some(e) = failed {
            self.named.told_state = true;
            let text = match e {
                e @ Error::NotPermitted(_) => format!(
                    "{e}; without it sections by name are found by stacks and breakpoints only, and what they usually use is not learnt"
                ),
                e => format!("{e}; sections by name are found by stacks and breakpoints only"),
            };
            self.events.push(Event::Trouble { pid, text });
        }
    }

    /// Takes down what the probes have counted.
    fn read_probes(&mut self) {
        let Some(duty) = &self.named.duty else {
            return;
        };
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
        }
    }

    /// What one execution of a section may use and usually uses, ns of CPU.
    fn may_use(&self, key: (i32, usize)) -> (u64, Option<u64>) {
        let floor = self.config.floor.as_nanos() as u64;
        match self.named.spots.get(&key) {
            Some(s) => (allowed(&s.history, self.config.factor, floor, self.config.limit), s.history.usual()),
            None => (u64::MAX, None),
        }
    }

    /// The sections that a thread's probes say it is inside of, all the time since the entry: with that entry's CPU time.
    fn probed(&self, pid: i32, tid: i32) -> Vec<(usize, u64)> {
        let mut out = Vec::new();
        for ((_, n), s) in self.named.spots.range((pid, 0)..=(pid, usize::MAX)) {
            let tally = s.duty.and_then(|id| self.named.duty.as_ref()?.tally(id));
            if let (Some(t), Some(seen)) = (tally, s.seen.get(&tid))
                && t.attached
                && seen.window == t.windows
                && seen.record.sp != 0
            {
                out.push((*n, seen.record.run));
            }
        }
        out
    }

    /// Whether the probes still show the execution that they showed when they were last read.
    fn same_execution(&self, pid: i32, tid: i32, section: usize) -> bool {
        let same = || {
            let spot = self.named.spots.get(&(pid, section))?;
            let (id, seen) = (spot.duty?, spot.seen.get(&tid)?);
            let duty = self.named.duty.as_ref()?;
            let (record, tally) = (duty.record(id, tid)?, duty.tally(id)?);
            Some(tally.attached && tally.windows == seen.window && record.sp != 0 && record.time == seen.record.time)
        };
        same().unwrap_or(false)
    }

    /// A thread that ran: does it use more inside a section than it may?
    fn watch_busy(&mut self, pid: i32, tid: i32, run: u64, s: &mut Suspect, now: Instant) {
        // By probes.
        let probed = self.probed(pid, tid);
        for &(n, from) in &probed {
            let (check, _) = self.may_use((pid, n));
            let used = run.saturating_sub(from);
            // One inside it that began not much later is the one that hangs; it will exceed its check value soon.
            let inner = probed.iter().any(|&(m, later)| {
                later > from && run.saturating_sub(later) >= used / 2 && self.may_use((pid, m)).0 <= 2 * check
            });
            let Some(seen) = self.named.spots.get_mut(&(pid, n)).and_then(|p| p.seen.get_mut(&tid)) else {
                continue;
            };
            if s.stage.is_none() && used >= check && !inner {
                let (at, first) = *seen.exceeded.get_or_insert((now, run));
                if run - first.min(run) >= MORE.as_nanos() as u64 {
                    seen.exceeded = None;
                    let ago = Duration::from_nanos(monotonic().saturating_sub(seen.record.time));
                    let stage = Stage {
                        section: n,
                        counters: Vec::new(),
                        probed: true,
                        run: from,
                        began: now.checked_sub(ago).unwrap_or(now),
                        exceeded: Some((at, first)),
                        told: None,
                    };
                    self.judge_stage(pid, tid, run, s, stage, now);
                    return;
                }
            }
        }
        if let Some(stage) = s.stage.take() {
            self.follow_stage(pid, tid, run, s, stage, now);
            return;
        }
        let waits = s.waits;
        if run.saturating_sub(s.since) < SUSPECT.as_nanos() as u64 * s.ease {
            return;
        }
        let Some(status) = self.processes.get(&pid).and_then(|p| p.dir.status(tid)) else {
            return;
        };
        s.waits = Some(status.waits);
        s.since = run;
        let often = run.saturating_sub(s.looked) >= OFTEN.as_nanos() as u64;
        if waits != Some(status.waits) {
            s.ease = 1;
        }
        if status.tracer != 0 || status.state != b'R' || waits != Some(status.waits) && !often {
            return;
        }
        s.looked = run;
        let stack = self.stacks.involve(vec![(pid, tid, String::new())], false);
        // Being stopped counts as a wait of the thread's own.
        self.did_stop(pid, tid);
        s.waits = self.processes.get(&pid).and_then(|p| p.dir.status(tid)).map(|st| st.waits);
        s.ease = (s.ease * 2).min(MOST_EASE);
        // From the innermost outwards; one that is entered again and again may be called by one that never ends.
        for section in stack.first().map(|t| self.named.all(pid, &t.stack)).unwrap_or_default() {
            if self.named.tastes == 0 || probed.iter().any(|(p, _)| *p == section) {
                continue;
            }
            self.named.tastes -= 1;
            if self.begin_stage(pid, tid, s, section, now) {
                return;
            }
        }
    }

    /// Counts from now on whether a thread leaves a section; `false` if it does at once.
    fn begin_stage(&mut self, pid: i32, tid: i32, s: &mut Suspect, section: usize, now: Instant) -> bool {
        let Some(spot) = self.named.spots.get(&(pid, section)) else {
            return false;
        };
        let counters = match spot.counters(tid) {
            Ok(c) => c,
            Err(e) => {
                if !self.named.told_breakpoints && e.raw_os_error() != Some(libc::ESRCH) {
                    self.named.told_breakpoints = true;
                    let name = &self.config.sections[section].name;
                    let text = format!(
                        "whether thread {tid} leaves section {name} cannot be seen ({e}): busy hangs in sections by name are found \
                         only while they are probed"
                    );
                    self.events.push(Event::Trouble { pid, text });
                }
                return false;
            }
        };
        std::thread::sleep(TASTE);
        let entered: u64 = counters.iter().map(Counter::read).sum();
        let run = self.processes.get(&pid).and_then(|p| p.threads.get(&tid)).map_or(0, |t| t.sched.run);
        if entered > 0 {
            // A healthy one.
            return false;
        }
        s.stage = Some(Stage { section, counters, probed: false, run, began: now, exceeded: None, told: None });
        true
    }

    /// A thread that was found inside: is it in the same execution still, and for too long?
    fn follow_stage(&mut self, pid: i32, tid: i32, run: u64, s: &mut Suspect, mut stage: Stage, now: Instant) {
        let passed = stage.counters.iter().any(|c| c.read() > 0);
        let used = run.saturating_sub(stage.run);
        if passed {
            self.left_named(pid, tid, &stage, used, now);
            s.since = run;
            s.left = Some(stage.section);
            return;
        }
        if let Some(at) = stage.told {
            if run.saturating_sub(at) >= OFTEN.as_nanos() as u64 {
                stage.told = Some(run);
                if !self.still_inside(pid, tid, stage.section) {
                    self.left_named(pid, tid, &stage, used, now);
                    s.since = run;
                    return;
                }
            }
            s.stage = Some(stage);
            return;
        }
        let (check, _) = self.may_use((pid, stage.section));
        if used < check {
            s.stage = Some(stage);
            return;
        }
        let (_, first) = *stage.exceeded.get_or_insert((now, run));
        if run.saturating_sub(first) < MORE.as_nanos() as u64 {
            s.stage = Some(stage);
            return;
        }
        self.judge_stage(pid, tid, run, s, stage, now);
    }

    /// Whether a thread has a section's function on its stack.
    fn still_inside(&mut self, pid: i32, tid: i32, section: usize) -> bool {
        // One that sleeps is not stopped, and asked again later.
        if self.processes.get(&pid).and_then(|p| p.dir.status(tid)).is_none_or(|s| s.state != b'R') {
            return true;
        }
        let stack = self.stacks.involve(vec![(pid, tid, String::new())], false);
        self.did_stop(pid, tid);
        stack.first().is_some_and(|t| self.named.on_stack(pid, section, &t.stack))
    }

    /// A thread has exceeded the check value: the stack decides.
    fn judge_stage(&mut self, pid: i32, tid: i32, run: u64, s: &mut Suspect, mut stage: Stage, now: Instant) {
        let key = (pid, stage.section);
        let used = run.saturating_sub(stage.run);
        let Some(status) = self.processes.get(&pid).and_then(|p| p.dir.status(tid)) else {
            return;
        };
        if status.tracer != 0 {
            // A debugger's time is not the program's.
            s.since = run;
            return;
        }
        // One that happens to sleep is not stopped; what is seen of it may be too little.
        let gentle = status.state != b'R';
        let threads = self.stacks.involve(vec![(pid, tid, "spins".into())], gentle);
        if !gentle {
            self.did_stop(pid, tid);
        }
        let inside = threads.first().is_some_and(|t| self.named.on_stack(pid, stage.section, &t.stack));
        let passed = match stage.probed {
            true => !self.same_execution(pid, tid, stage.section),
            false => stage.counters.iter().any(|c| c.read() > 0),
        };
        if gentle && !inside && !passed {
            s.stage = (!stage.probed).then_some(stage);
            return;
        }
        if !inside || passed {
            self.left_named(pid, tid, &stage, used, now);
            s.since = run;
            return;
        }
        if self.hangs_further_in(pid, tid, s, stage.section, &threads, now) {
            return;
        }
        let (check, usual) = self.may_use(key);
        let go = self.named.spots.get(&key).is_some_and(|p| p.function.go);
        let first = stage.exceeded.map_or(now, |(at, _)| at);
        let since = stage.began.elapsed();
        stage.told = Some(run);
        if stage.probed {
            // Without them it is seen a little later that it gets on.
            let counters = self.named.spots.get(&key).map(|p| p.counters(tid));
            stage.counters = counters.and_then(Result::ok).unwrap_or_default();
        }
        let name = self.config.sections[stage.section].name.clone();
        s.stage = Some(stage);
        let free = self.processes.get_mut(&pid).and_then(|p| p.threads.get_mut(&tid)).filter(|t| t.told.is_none());
        let Some(t) = free else {
            return;
        };
        t.told = Some((Kind::Busy, now));
        let ms = |ns: u64| ns as f64 / 1e6;
        let at = threads.first().map_or_else(String::new, |t| place(&t.stack));
        let usual_words = usual.map_or_else(String::new, |u| format!(", usually {:.3} ms", ms(u)));
        let why = format!(
            "thread {tid} spins in section {name}, in {at}: {:.0} ms of CPU without leaving it{usual_words}",
            ms(used)
        );
        self.tell_named(
            pid,
            tid,
            threads,
            Hang {
                kind: Kind::Busy,
                pid,
                tid,
                comm: String::new(),
                section: Some(name),
                progress: used,
                usual,
                check_value: check,
                unit: Unit::CpuNs,
                since,
                latency: first.elapsed(),
                why,
                // A goroutine may have come from another thread meanwhile.
                sure: if go { Sure::Guess } else { Sure::Likely },
                threads: Vec::new(),
                cycle: Vec::new(),
            },
        );
    }

    /// Whether the thread may rather hang in a section inside of this one, of which nothing is known yet: then that is watched first.
    fn hangs_further_in(
        &mut self,
        pid: i32,
        tid: i32,
        s: &mut Suspect,
        section: usize,
        threads: &[Involved],
        now: Instant,
    ) -> bool {
        let probed = self.probed(pid, tid);
        let on_stack = threads.first().map(|t| self.named.all(pid, &t.stack)).unwrap_or_default();
        let mut inner = on_stack.into_iter().take_while(|&m| m != section);
        let unknown = inner.find(|m| s.left != Some(*m) && !probed.iter().any(|(p, _)| p == m));
        unknown.is_some_and(|m| self.begin_stage(pid, tid, s, m, now))
    }

    fn tell_named(&mut self, pid: i32, tid: i32, threads: Vec<Involved>, mut hang: Hang) {
        self.remember_call(pid, tid);
        hang.comm = threads.first().map_or_else(String::new, |t| t.comm.clone());
        hang.threads = threads;
        self.report(hang);
    }

    /// An execution that was watched is over.
    fn left_named(&mut self, pid: i32, tid: i32, stage: &Stage, used: u64, now: Instant) {
        if let Some(spot) = self.named.spots.get_mut(&(pid, stage.section)) {
            spot.history.add(UNSEEN, used);
        }
        if stage.told.is_some() {
            self.left_section(pid, tid, now);
        }
    }

    /// A thread that has not run for long: is it inside a section?
    fn watch_blocked(&mut self, pid: i32, tid: i32, still: Duration, now: Instant) {
        let Some(p) = self.processes.get(&pid) else {
            return;
        };
        let Some(t) = p.threads.get(&tid).filter(|t| t.told.is_none()) else {
            return;
        };
        let call = p.dir.call(tid).ok().flatten();
        if p.dir.status(tid).is_none_or(|s| s.tracer != 0 || s.state != b'S')
            || call.is_some_and(|c| t.points.usual(&c))
        {
            return;
        }
        // Without stopping it: some calls would end early.
        let threads = self.stacks.involve(vec![(pid, tid, "waits".into())], true);
        let Some(section) = threads.first().and_then(|t| self.named.innermost(pid, &t.stack)) else {
            return;
        };
        let Some((why, others)) = self.held_up(pid, tid) else {
            return;
        };
        let threads = if others.is_empty() {
            threads
        } else {
            let mut who = vec![(pid, tid, "waits".to_owned())];
            who.extend(others);
            self.stacks.involve(who, true)
        };
        if let Some(t) = self.processes.get_mut(&pid).and_then(|p| p.threads.get_mut(&tid)) {
            t.told = Some((Kind::Blocked, now));
        }
        let hang = Hang {
            kind: Kind::Blocked,
            pid,
            tid,
            comm: String::new(),
            section: Some(self.config.sections[section].name.clone()),
            progress: still.as_nanos() as u64,
            usual: None,
            check_value: self.config.limit.as_nanos() as u64,
            unit: Unit::WaitNs,
            since: still,
            latency: now.elapsed(),
            why,
            sure: Sure::Certain,
            threads: Vec::new(),
            cycle: Vec::new(),
        };
        self.tell_named(pid, tid, threads, hang);
    }
}

/// The clock that the kernel half reads, ns.
fn monotonic() -> u64 {
    // SAFETY: all-zero bytes are a valid timespec.
    let mut t: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: `t` is a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
