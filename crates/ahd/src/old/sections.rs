//! Sections that a program marks in its source: entered, left by an exit, nested, overlapping, in many threads at once.
//!
//! Owns: reading the records of `orbit-section` from outside, one for each copy of it in the process, and judging by them (RMK, section 5). Promises: trusts nothing in a
//! record; what one look reads is bounded. A section's history holds the CPU time of its executions by exit; one that
//! exceeds the check value in two looks hangs, and so does one in which the thread has not run for the limit. The
//! clock is read here, not in the program: what executions took is as good as [`crate::old::executions`] can tell.

use crate::Ahd;
use crate::event::{Edge, Event, Hang, Kind, Times, Unit};
use crate::old::blocked::{Case, TOLD_TOGETHER};
use crate::old::describe::{place, words};
use crate::old::executions::Executions;
use crate::old::history::History;
use crate::old::progress::{Counted, Meter};
use orbit_inspect::waits::{Ends, FutexKind, Owner, Wait};
use orbit_inspect::{Maps, Memory, Sure};
use orbit_section::layout::{EXITS, MAGIC, NAME, NAMES_AT, SECTIONS, SLOTS, SLOTS_AT, Slot};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Ticks between two searches for a record in a process that has none yet.
const SEARCH_EVERY: u64 = 8;
/// Ticks between two searches in one that has made none in [`SEARCHES`], or has one: a library loaded later may bring another.
const SEARCH_SELDOM: u64 = SEARCH_EVERY * 16;
/// A process that has made none in so many searches is asked less often.
const SEARCHES: u32 = 50;
/// Records of a process that are read.
const RECORDS: usize = 16;
/// Bytes of a cell: the entry count and those of the exits.
const CELL: usize = 32;
/// Bytes of a slot in front of its cells.
const CELLS_AT: usize = 64;
/// Processes at the other end whose stacks are shown.
const PEERS: usize = 8;
/// A second look must find so much more CPU time.
const MORE: Duration = Duration::from_millis(20);

/// A section that a thread is in.
#[derive(Clone, Copy, Debug)]
struct Active {
    /// CPU time of the thread when it was first seen inside.
    run: u64,
    began: Instant,
    /// For how long the thread has not run inside, as far as that counts.
    still: Duration,
    /// The last look by which it had run inside, or it was met there, later by the time since in which nobody looked.
    rest: Instant,
    /// When and at what CPU time it exceeded the check value.
    exceeded: Option<(Instant, u64)>,
    /// When its wait is judged next.
    judge: Duration,
    told: bool,
}

/// One thread in one section.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    seq: u32,
    exits: [u32; EXITS],
    active: Option<Active>,
}

/// What one copy of the section library keeps.
#[derive(Debug)]
struct Record {
    base: u64,
    /// The numbers that its sections have in [`Marks`].
    sections: Vec<usize>,
}

/// The marks of one process.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    records: Vec<Record>,
    searches: u32,
    names: Vec<String>,
    executions: Vec<Executions>,
    /// By thread and section.
    places: BTreeMap<(i32, usize), Place>,
}

/// What holds up a thread inside a section.
pub(crate) struct HeldUp {
    /// A sentence.
    pub(crate) why: String,
    pub(crate) sure: Sure,
    /// The other threads involved: process, thread, what it does.
    pub(crate) others: Vec<(i32, i32, String)>,
    /// The ring, if it is one.
    pub(crate) cycle: Vec<Edge>,
}

/// What a look at a thread needs.
#[derive(Clone, Copy)]
struct Moment {
    /// CPU time so far and since the last look.
    run: u64,
    ran: u64,
    counted: Duration,
    gap: Duration,
    now: Instant,
    /// It was told to hang, and that is not over.
    told: bool,
}

/// What became of a thread in a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// It may hang.
    Suspect(Kind),
    /// It was told to hang and has left.
    Over,
}

/// A thread in a section that something is to be said of.
pub(crate) struct Finding {
    tid: i32,
    section: usize,
    found: Found,
}

impl Marks {
    /// Looks for records: there is one for each copy of the library.
    fn find(&mut self, pid: i32, tick: u64) {
        let soon = self.records.is_empty() && self.searches < SEARCHES;
        if self.records.len() >= RECORDS || tick % if soon { SEARCH_EVERY } else { SEARCH_SELDOM } != 1 {
            return;
        }
        self.searches = self.searches.saturating_add(1);
        let file = format!("/memfd:{NAME}");
        let Ok(maps) = Maps::of_file(pid, &file) else { return };
        for m in maps.iter().filter(|m| m.offset == 0) {
            if self.records.len() < RECORDS && !self.records.iter().any(|r| r.base == m.start) {
                self.records.push(Record { base: m.start, sections: Vec::new() });
            }
        }
    }

    /// Reads the records and takes down who entered and left what; answers whom to suspect. `moment` says who a thread is that calls itself so,
    /// and how it fares.
    fn read(
        &mut self,
        pid: i32,
        tick: u64,
        window: usize,
        moment: impl Fn(i32) -> Option<(i32, Moment)>,
        check: impl Fn(&Executions) -> u64,
        limit: Duration,
    ) -> Vec<Finding> {
        let mut suspects = Vec::new();
        self.find(pid, tick);
        let memory = Memory::of(pid);
        let word = |b: &[u8], at: usize| b.get(at..at + 4).map_or(0, |w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]]));
        // CPU time so far, of the threads that are there.
        let mut alive = BTreeMap::new();
        for record in &mut self.records {
            let base = record.base;
            let head = memory.bytes::<20>(base).filter(|h| h[..8] == MAGIC.to_ne_bytes());
            let Some(head) = head else {
                // Another program by now, or none.
                *self = Marks::default();
                return Vec::new();
            };
            let sections = (word(&head, 12) as usize).min(SECTIONS);
            let slots = (word(&head, 16) as usize).min(SLOTS);
            while record.sections.len() < sections {
                let at = base + (NAMES_AT + record.sections.len() * 64) as u64;
                let name = memory.bytes::<64>(at).unwrap_or([0; 64]);
                let len = name.iter().position(|&b| b == 0).unwrap_or(64);
                record.sections.push(self.names.len());
                self.names.push(String::from_utf8_lossy(&name[..len]).into_owned());
                self.executions.push(Executions::new(window, Instant::now()));
            }
            for slot in 0..slots {
                let bytes = memory.vec(base + (SLOTS_AT + slot * size_of::<Slot>()) as u64, CELLS_AT + sections * CELL);
                let Some((tid, m)) = moment(word(&bytes, 0) as i32) else {
                    continue;
                };
                alive.insert(tid, m.run);
                for (cell, &section) in record.sections.iter().enumerate().take(sections) {
                    let at = CELLS_AT + cell * CELL;
                    let seq = word(&bytes, at);
                    let exits = std::array::from_fn(|e| word(&bytes, at + 4 + 4 * e));
                    if seq == 0 {
                        continue;
                    }
                    let place = self.places.entry((tid, section)).or_insert(Place { seq, exits, active: None });
                    if let Some(found) = place.follow(seq, exits, m, &mut self.executions[section], &check, limit) {
                        suspects.push(Finding { tid, section, found });
                    }
                }
            }
        }
        self.places.retain(|(tid, _), _| alive.contains_key(tid));
        let over: Vec<i32> = suspects.iter().filter(|f| f.found == Found::Over).map(|f| f.tid).collect();
        for tid in over {
            // What the thread used in that section is not to be told of those around it.
            suspects.retain(|f| f.tid != tid || f.found == Found::Over);
            let run = alive[&tid];
            for a in self.places.range_mut((tid, 0)..=(tid, usize::MAX)).filter_map(|(_, q)| q.active.as_mut()) {
                (a.run, a.exceeded) = (run, None);
            }
        }
        suspects
    }
}

impl Marks {
    /// Whether the thread was told to hang in a section, and has not left it.
    pub(crate) fn told(&self, tid: i32) -> bool {
        self.places.range((tid, 0)..=(tid, usize::MAX)).any(|(_, q)| q.active.is_some_and(|a| a.told))
    }

    /// The section that a thread entered last and has not left, as far as it was seen.
    pub(crate) fn innermost(&self, tid: i32) -> Option<&str> {
        let open = self.places.range((tid, 0)..=(tid, usize::MAX)).filter(|(_, q)| q.active.is_some());
        let last = open.max_by_key(|((_, section), q)| (q.active.map(|a| a.began), q.seq, *section))?;
        self.names.get(last.0.1).map(String::as_str)
    }
}

impl Place {
    /// One look: what was left goes into the history, what is entered is measured.
    fn follow(
        &mut self,
        seq: u32,
        exits: [u32; EXITS],
        m: Moment,
        executions: &mut Executions,
        check: &impl Fn(&Executions) -> u64,
        limit: Duration,
    ) -> Option<Found> {
        // An exit is counted before the section is left: with none left, that one is seen next time.
        if seq / 2 != self.seq / 2 {
            let times = std::array::from_fn(|e| exits[e].wrapping_sub(self.exits[e]));
            let seen = self.active.map_or(0, |a| m.run.saturating_sub(m.ran).saturating_sub(a.run));
            // Of a look that came late it is not known how much of the time was theirs.
            let since = m.ran.min(m.counted.as_nanos() as u64);
            executions.left(&times, seen, since, m.now);
            self.exits = exits;
        }
        let same = seq == self.seq;
        self.seq = seq;
        let over = !same && self.active.is_some_and(|a| a.told);
        if seq & 1 == 0 {
            self.active = None;
            return over.then_some(Found::Over);
        }
        let fresh = Active {
            run: m.run,
            began: m.now,
            still: Duration::ZERO,
            rest: m.now,
            exceeded: None,
            judge: limit,
            told: false,
        };
        if !same {
            self.active = None;
        }
        let a = self.active.get_or_insert(fresh);
        // What was told is over by another sign, and it is still inside.
        a.told &= m.told;
        if m.ran > 0 {
            (a.still, a.rest) = (Duration::ZERO, m.now);
            a.judge = limit;
        } else {
            a.rest = (a.rest + m.gap).min(m.now);
            a.still += m.counted.min(m.now.saturating_duration_since(a.rest));
        }
        if a.told || over {
            return over.then_some(Found::Over);
        }
        if m.run - a.run.min(m.run) >= check(executions) {
            let (_, at) = *a.exceeded.get_or_insert((m.now, m.run));
            return (m.run - at.min(m.run) >= MORE.as_nanos() as u64).then_some(Found::Suspect(Kind::Busy));
        }
        (a.still >= a.judge).then_some(Found::Suspect(Kind::Blocked))
    }
}

/// Said of a measure where the usual amount is not known.
pub(crate) fn allowed_only(check: u64) -> String {
    format!(", allowed {:.0} ms (what it usually uses is not known yet)", check as f64 / 1e6)
}

/// CPU time that one execution may use. With no execution to go by that is the limit for waits: a first one may be long.
pub(crate) fn allowed(h: &History, factor: f64, floor: u64, limit: Duration) -> u64 {
    let first = if h.usual().is_none() { limit.as_nanos() as u64 } else { 0 };
    h.check_value(factor, floor).max(first)
}

impl Ahd {
    /// Looks at the marks of all processes; answers what is to be said of whom.
    pub(crate) fn look_at_sections(&mut self, counted: Duration, gap: Duration, now: Instant) -> Vec<(i32, Finding)> {
        let (factor, floor, limit, window) =
            (self.config.factor, self.config.floor.as_nanos() as u64, self.config.limit, self.config.window);
        let mut all = Vec::new();
        for (&pid, p) in &mut self.processes {
            let threads = &p.threads;
            let inner = &p.inner;
            let moment = |id: i32| {
                let tid = inner.as_ref().map_or(Some(id), |ids| ids.get(&id).copied())?;
                let t = threads.get(&tid)?;
                Some((tid, Moment { run: t.sched.run, ran: t.ran, counted, gap, now, told: t.told.is_some() }))
            };
            let check = |x: &Executions| x.allowed(factor, floor, limit, now);
            let mut suspects = p.marks.read(pid, self.ticks, window, moment, check, limit);
            // The innermost section: it was entered last; as far as that was not seen, it is entered more often, or was first
            // entered, and so named, later.
            let places = &p.marks.places;
            let rank = |tid: i32, section: usize| {
                places.get(&(tid, section)).map(|q| (q.active.map(|a| a.began), q.seq, section))
            };
            suspects.sort_by_key(|f| std::cmp::Reverse(rank(f.tid, f.section)));
            let within = |f: &Finding| {
                let (tid, of) = (f.tid, rank(f.tid, f.section));
                let open = places.range((tid, 0)..=(tid, usize::MAX)).filter_map(|(key, q)| Some((key.1, q.active?)));
                open.filter(move |(section, _)| rank(tid, *section) > of)
            };
            let used = |tid: i32, a: &Active| threads.get(&tid).map_or(0, |t| t.sched.run.saturating_sub(a.run));
            suspects.retain(|f| match f.found {
                Found::Over => true,
                // A wait is the innermost section's: those around it wait with it.
                Found::Suspect(Kind::Blocked) => within(f).next().is_none(),
                // What was used for the most part in one execution of a section further in is that one's: it may use less, or is not
                // known yet.
                Found::Suspect(Kind::Busy) => {
                    let own =
                        places.get(&(f.tid, f.section)).and_then(|q| q.active.as_ref()).map_or(0, |a| used(f.tid, a));
                    !within(f).any(|(_, a)| used(f.tid, &a) >= own / 2)
                }
            });
            all.extend(suspects.into_iter().map(|f| (pid, f)));
            let exceeded = places.iter().filter(|(_, q)| q.active.is_some_and(|a| a.exceeded.is_some() && !a.told));
            for (tid, _) in exceeded.map(|(key, _)| key) {
                if let Some(t) = p.threads.get_mut(tid).filter(|t| t.meter.is_none()) {
                    t.meter = Meter::open(&mut self.source, &mut self.meters, *tid, t.sched.run);
                }
            }
        }
        all
    }

    /// Says it: first what is over, then the suspects: those that were never judged, then those whose turn has been due for longest.
    /// Whoever gets none in this look is found again in the next.
    pub(crate) fn judge_sections(&mut self, found: Vec<(i32, Finding)>, now: Instant, hand: &mut dyn FnMut(Event)) {
        let mut suspects = Vec::new();
        for (pid, f) in found {
            match f.found {
                Found::Over => self.left_section(pid, f.tid, now),
                Found::Suspect(kind) => suspects.push((self.due(pid, &f, kind), pid, f.tid, f.section, kind)),
            }
        }
        self.hand_over(hand);
        suspects.sort_by_key(|(due, ..)| *due);
        self.ends = Some(Ends::default());
        let mut cases = Vec::new();
        for (i, (_, pid, tid, section, kind)) in suspects.into_iter().enumerate() {
            if i > 0 && self.spent() {
                break;
            }
            cases.extend(self.judge_section(pid, tid, section, kind));
            self.hand_over(hand);
            if cases.len() == TOLD_TOGETHER {
                self.tell_all(std::mem::take(&mut cases), hand);
            }
        }
        self.tell_all(cases, hand);
        self.ends = None;
    }

    /// What a suspect's turn goes by: the least is first.
    fn due(&self, pid: i32, f: &Finding, kind: Kind) -> (bool, std::cmp::Reverse<Duration>) {
        let place = self.processes.get(&pid).and_then(|p| p.marks.places.get(&(f.tid, f.section)));
        let active = place.and_then(|q| q.active).filter(|_| kind == Kind::Blocked);
        let (again, overdue) =
            active.map_or((false, Duration::MAX), |a| (a.judge > self.config.limit, a.still.saturating_sub(a.judge)));
        (again, std::cmp::Reverse(overdue))
    }

    /// A thread that was told to spin has left its section.
    pub(crate) fn left_section(&mut self, pid: i32, tid: i32, now: Instant) {
        let thread = self.processes.get_mut(&pid).and_then(|p| p.threads.get_mut(&tid));
        if let Some((Kind::Busy, told)) = thread.and_then(|t| t.told.take_if(|t| t.0 == Kind::Busy)) {
            self.events.push(Event::Recovered { pid, tid, kind: Kind::Busy, after: now - told });
        }
    }

    /// Tells a busy hang; answers a blocked one, to be told with others.
    fn judge_section(&mut self, pid: i32, tid: i32, section: usize, kind: Kind) -> Option<Case> {
        let started = Instant::now();
        let p = self.processes.get_mut(&pid)?;
        let status = p.dir.status(tid)?;
        let key = (tid, section);
        let (factor, floor, limit) = (self.config.factor, self.config.floor.as_nanos() as u64, self.config.limit);
        let executions = p.marks.executions.get(section);
        let check_busy = executions.map_or(0, |x| x.allowed(factor, floor, limit, started));
        let usual = executions.and_then(Executions::usual);
        let name = p.marks.names.get(section).cloned().unwrap_or_default();
        // One that was told, in whatever way, is not told again before that is over.
        let run = p.threads.get(&tid).filter(|t| t.told.is_none()).map(|t| t.sched.run)?;
        let a = p.marks.places.get_mut(&key).and_then(|place| place.active.as_mut())?;
        if status.tracer != 0 {
            // A debugger's time is not the program's: measure anew.
            (a.run, a.exceeded, a.still, a.rest) = (run, None, Duration::ZERO, started);
            return None;
        }
        a.judge = a.still + Duration::from_secs(1);
        let (active, enabled) = (*a, if kind == Kind::Busy { self.config.busy } else { self.config.blocked });
        if !enabled {
            return None;
        }
        let held = match kind {
            Kind::Busy => None,
            // It may have got on since the look began, while others had their turn: then what it waits for now is another thing.
            Kind::Blocked => Some(self.held_up(pid, tid).filter(|_| self.rests(pid, tid).is_some())?),
        };
        let progress = run - active.run.min(run);
        let mut counted = Counted { progress, check: check_busy, usual, unit: Unit::CpuNs };
        let p = self.processes.get_mut(&pid)?;
        if let Some(a) = p.marks.places.get_mut(&key).and_then(|place| place.active.as_mut()) {
            a.told = true;
        }
        let t = p.threads.get_mut(&tid)?;
        t.told = Some((kind, started));
        if kind == Kind::Busy {
            counted = t.counted(&p.dir, progress, check_busy, usual);
        }
        self.remember_call(pid, tid);
        if let Some(HeldUp { why, sure, others, cycle }) = held {
            let mut who = vec![(pid, tid, "waits".to_owned())];
            who.extend(others);
            let mut hang = Hang::blocked((pid, tid), limit, why, sure, cycle);
            hang.section = Some(name);
            return Some(Case { hang, who, rest: active.rest });
        }
        let threads = self.stacks.involve(vec![(pid, tid, "spins".to_owned())], false);
        let ms = |ns: u64| ns as f64 / 1e6;
        let at = threads.first().map_or_else(String::new, |t| place(&t.stack));
        let usual = usual.map_or_else(|| allowed_only(check_busy), |u| format!(", usually {:.3} ms", ms(u)));
        let why = format!("thread {tid} spins in section {name}, in {at}: {:.0} ms of CPU{usual}", ms(progress));
        let times = Times::of(active.began, active.exceeded.map_or(started, |(at, _)| at));
        self.report(Hang {
            kind,
            pid,
            tid,
            comm: threads.first().map_or_else(String::new, |t| t.comm.clone()),
            section: Some(name),
            progress: counted.progress,
            usual: counted.usual,
            check_value: counted.check,
            unit: counted.unit,
            since: times.since,
            latency: times.latency,
            why,
            sure: Sure::Likely,
            threads,
            cycle: Vec::new(),
        });
        None
    }

    /// What holds up a thread inside a section, with the others involved; nothing if that is the machine, or a tracer.
    pub(crate) fn held_up(&mut self, pid: i32, tid: i32) -> Option<HeldUp> {
        let p = self.processes.get_mut(&pid)?;
        if p.dir.status(tid)?.state != b'S' {
            return None;
        }
        let wait = self.wait_of(pid, tid)?;
        // Whom it waits for may let it go on yet.
        let waits = |others| {
            let why = format!("thread {tid} {}", words(&wait));
            Some(HeldUp { why, sure: Sure::Likely, others, cycle: Vec::new() })
        };
        match &wait {
            Wait::Running
            | Wait::Stopped
            | Wait::Traced { .. }
            | Wait::Disk { .. }
            | Wait::Fault { .. }
            | Wait::Ended
            | Wait::Hidden(_) => None,
            Wait::Futex(f) => {
                let (FutexKind::Mutex { owner } | FutexKind::RwLock { writer: owner }) = f.kind else {
                    return waits(Vec::new());
                };
                let Owner::Thread { pid: op, tid: ot } = owner else {
                    return waits(Vec::new());
                };
                self.held_by((pid, tid), &wait, (op, ot), f.sure, "holds up others")
            }
            Wait::FileLock { owner: Some(o), .. } => {
                self.held_by((pid, tid), &wait, (*o, *o), Sure::Certain, "holds the lock")
            }
            Wait::Pipe { peers, .. } | Wait::Socket { peers, .. } | Wait::Child { pids: peers } => {
                if self.at_work((pid, tid), peers) {
                    return None;
                }
                // Only watched ones are shown: a stack costs a stop.
                let shown: Vec<i32> = peers
                    .iter()
                    .copied()
                    .filter(|&p| p != pid && self.processes.contains_key(&p))
                    .take(PEERS)
                    .collect();
                let does = |p: i32| {
                    let wait = self.wait_of(p, p);
                    (p, p, wait.as_ref().map_or_else(|| "has ended".to_owned(), words))
                };
                waits(shown.into_iter().map(does).collect())
            }
            _ => waits(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executions_go_to_their_exits_and_a_long_one_is_suspected_in_the_second_look() {
        let ms = 1_000_000;
        let mut place = Place::default();
        let mut executions = Executions::new(50, Instant::now());
        let check = |x: &Executions| (4 * x.usual().unwrap_or(0)).max(120 * ms);
        let limit = Duration::from_secs(5);
        let counted = Duration::from_millis(150);
        let clock = std::cell::Cell::new(Instant::now());
        let at = |run: u64, ran: u64| {
            clock.set(clock.get() + counted);
            Moment { run, ran, counted, gap: Duration::ZERO, now: clock.get(), told: false }
        };
        let mut exits = [0; EXITS];
        exits[3] = 5;
        assert!(place.follow(10, exits, at(50 * ms, 50 * ms), &mut executions, &check, limit).is_none());
        assert_eq!(executions.usual(), Some(10 * ms), "five executions shared 50 ms");
        assert!(place.follow(11, exits, at(60 * ms, 10 * ms), &mut executions, &check, limit).is_none());
        assert!(place.follow(11, exits, at(200 * ms, 140 * ms), &mut executions, &check, limit).is_none());
        assert_eq!(
            place.follow(11, exits, at(270 * ms, 70 * ms), &mut executions, &check, limit),
            Some(Found::Suspect(Kind::Busy))
        );
        exits[3] = 6;
        // Its exit is counted, and it has not left.
        assert!(place.follow(11, exits, at(271 * ms, ms), &mut executions, &check, limit).is_some());
        assert!(place.follow(12, exits, at(280 * ms, 9 * ms), &mut executions, &check, limit).is_none());
        assert_eq!(executions.usual(), Some(220 * ms), "the long one counts as one");
        place.follow(13, exits, at(280 * ms, 0), &mut executions, &check, limit);
        let blocked = (0..80).filter(|_| {
            place.follow(13, exits, at(280 * ms, 0), &mut executions, &check, limit)
                == Some(Found::Suspect(Kind::Blocked))
        });
        assert!(blocked.count() > 0);
    }
}
