//! The watcher: one look after the other at all watched processes.
//!
//! Owns: which processes are watched, the reading of counters and the clock. Promises: a tick that finds nothing
//! suspicious reads `schedstat` of each thread and little else; looks are spaced out if they cost more than a hundredth
//! of the time. What makes a hang is decided in [`crate::old::busy`] and [`crate::old::blocked`].

mod budget;

use crate::Config;
use crate::event::{Event, Hang, Kind};
use crate::old::describe::Stacks;
use crate::old::named::Sections;
use crate::old::proc::{Call, Own, gone};
use crate::old::progress::Source;
use crate::old::shares::Shares;
use crate::old::thread::{Process, Since};
use orbit_inspect::rings::RingWatch;
use orbit_inspect::waits::Ends;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Threads whose wait is looked at in one tick: bounds the price of programs with thousands of restless threads.
const LOOKS_A_TICK: usize = 48;
/// Ticks between two searches for new children and new programs.
const CHILDREN_EVERY: u64 = 3;
/// Threads of a process that are asked for children in one search.
const PARENTS: usize = 64;
/// CPU time that a stop may cost a thread, ns.
const STIRS: u64 = 10_000_000;
/// A look out of turn is this part of a period after the last one, at least.
const SOONEST: u32 = 4;
/// A running thread's clock is behind by up to this: the time from one tick of the machine's to the next, and some.
const BEHIND: Duration = Duration::from_millis(5);
/// CPU time for suspects in one look, and time, well below what the module may take for one. Those whose turn did not come get it in the next.
const SUSPECTS: Duration = Duration::from_millis(300);
const SUSPECTS_MOST: Duration = Duration::from_secs(2);
/// Of the time that a look took beside its own work at most this counts as time in which the watcher was there: no more is waited for in one.
const ATTENDED: Duration = Duration::from_secs(3);
/// Looks are never further apart than this.
const SLOWEST: Duration = Duration::from_secs(1);

/// What follows the first process that cannot be looked into.
pub(crate) const ONCE: &str = "; nothing more is said of others like it";

/// The looks at waits that are left in a tick.
struct Looks {
    left: usize,
    /// The first thread that got none.
    passed_over: Option<(i32, i32)>,
}

/// Watches processes for hangs. Use from one thread at a time; may be moved between threads.
#[derive(Debug)]
pub struct Ahd {
    pub(crate) config: Config,
    pub(crate) processes: BTreeMap<i32, Process>,
    pub(crate) stacks: Stacks,
    pub(crate) named: Sections,
    pub(crate) rings: Option<RingWatch>,
    /// A thread came to rest in a futex since the last scan for rings.
    pub(crate) ring_due: bool,
    pub(crate) next_scan: Instant,
    /// CPU time that holders got while others waited for them.
    pub(crate) shares: Shares,
    last: Option<Instant>,
    /// The watcher's own counters.
    own: Own,
    /// When the time for suspects in this look is over, and at what CPU time.
    until: (Instant, Duration),
    /// It was over before all had their turn.
    unfinished: Cell<bool>,
    /// Time of the last look, and how much of it the watcher was there: at work, or waiting for what it had begun, but not for a CPU.
    took: Duration,
    attended: Duration,
    /// Where examinations begin: with the first thread that got none in the last look; and that of this one.
    examine_from: (i32, i32),
    not_examined: Option<(i32, i32)>,
    examined: bool,
    /// The last thread that was examined after it was told, and when the next one may be.
    pub(crate) looked_back: (i32, i32),
    pub(crate) look_back_from: Instant,
    /// Who holds what, while it is looked at for many threads at a time.
    pub(crate) ends: Option<Ends>,
    /// The same for the waits judged one after the other, and since when.
    pub(crate) kept_ends: Option<(Instant, Ends)>,
    /// Threads whose stacks were taken in this look while they slept, and the calls they slept in.
    pub(crate) stopped: BTreeMap<i32, Call>,
    /// When waits are judged again.
    pub(crate) judge_from: Instant,
    /// Rings that were told, by the thread that they were told of, of which one has ended.
    pub(crate) broken: BTreeSet<i32>,
    /// Time from the last look to one out of turn.
    soon: Option<Duration>,
    /// Where looks at waits begin: with the first thread that got none in the last tick.
    look_from: (i32, i32),
    pub(crate) ticks: u64,
    pub(crate) source: Source,
    /// Suspects whose progress is counted, as of the last tick.
    pub(crate) meters: usize,
    /// CPU time of an ordinary tick, smoothed.
    price: Duration,
    /// That a process cannot be looked into was told since any is watched: others may be as many as a foreign program makes.
    pub(crate) troubled: bool,
    pub(crate) events: Vec<Event>,
}

impl Ahd {
    /// A watcher of nothing yet.
    pub fn new(config: Config) -> Ahd {
        Ahd {
            config,
            processes: BTreeMap::new(),
            stacks: Stacks::default(),
            named: Sections::default(),
            rings: None,
            ring_due: false,
            next_scan: Instant::now(),
            shares: Shares::default(),
            last: None,
            own: Own::default(),
            until: (Instant::now(), Duration::ZERO),
            unfinished: Cell::new(false),
            took: Duration::ZERO,
            attended: Duration::ZERO,
            examine_from: (0, 0),
            not_examined: None,
            examined: false,
            looked_back: (0, 0),
            look_back_from: Instant::now(),
            ends: None,
            stopped: BTreeMap::new(),
            kept_ends: None,
            judge_from: Instant::now(),
            broken: BTreeSet::new(),
            soon: None,
            look_from: (0, 0),
            ticks: 0,
            source: Source::default(),
            meters: 0,
            price: Duration::ZERO,
            troubled: false,
            events: Vec::new(),
        }
    }

    /// Watches a process from now on; nothing happens if it is watched already.
    ///
    /// # Errors
    /// `ESRCH` or `ENOENT` if there is none, `EACCES` if it may not be looked into.
    pub fn add(&mut self, pid: i32) -> std::io::Result<()> {
        if self.processes.contains_key(&pid) {
            return Ok(());
        }
        let kept: usize = self.processes.values().map(|p| p.threads.len()).sum();
        let process = Process::new(pid, &self.config, kept)?;
        let comm = process.dir.comm(pid);
        self.troubled &= !self.processes.is_empty();
        self.processes.insert(pid, process);
        self.rings = None;
        self.events.push(Event::Joined { pid, comm });
        Ok(())
    }

    /// The watched processes, sorted.
    pub fn pids(&self) -> Vec<i32> {
        self.processes.keys().copied().collect()
    }

    /// Time to wait until the next [`Ahd::tick`]; none before the first.
    pub fn pause(&self) -> Duration {
        let spacing = self.soon.unwrap_or_else(|| self.spacing());
        self.last.map_or(Duration::ZERO, |l| spacing.saturating_sub(l.elapsed()))
    }

    /// Time to wait until the next [`Ahd::tick`], if that is to be before its turn: a thread may have used its check value by then.
    pub fn soon(&self) -> Option<Duration> {
        self.soon.map(|_| self.pause())
    }

    /// A suspect will have used its check value after so much CPU time more: then is the next look, if that is before its turn.
    pub(crate) fn look_again(&mut self, after: Duration) {
        let after = (after + BEHIND).max(self.config.period / SOONEST);
        if after < self.config.period && self.spacing() == self.config.period {
            self.soon = Some(self.soon.map_or(after, |soon| soon.min(after)));
        }
    }

    /// Time between two looks.
    fn spacing(&self) -> Duration {
        if self.unfinished.get() {
            return self.config.period;
        }
        self.config.period.max((self.price * 100).min(SLOWEST))
    }

    /// Hands on what was found so far.
    pub(crate) fn hand_over(&mut self, hand: &mut dyn FnMut(Event)) {
        self.events.drain(..).for_each(hand);
    }

    /// Looks once at everything and answers what happened; see [`Ahd::look`].
    pub fn tick(&mut self) -> Vec<Event> {
        let mut all = Vec::new();
        self.look(&mut |event| all.push(event));
        all
    }

    /// Looks once at everything and hands over what happened, each event as soon as it is known: what was found is not lost with a look
    /// that fails later. Blocks for some microseconds a thread; where threads are suspected, for 300 ms of CPU, 2 s at
    /// most, and the time it takes to examine the last of them (at most 1 s): the rest has its turn in the next look.
    pub fn look(&mut self, hand: &mut dyn FnMut(Event)) {
        let now = Instant::now();
        let (cpu, delayed) = (cpu_time(), self.delay());
        let passed = self.last.map_or(Duration::ZERO, |l| now - l);
        self.last = Some(now);
        self.soon = None;
        self.stopped.clear();
        self.ticks += 1;
        if self.ticks % CHILDREN_EVERY == 1 {
            if self.config.children {
                self.adopt();
            }
            let new: Vec<i32> = self.processes.values_mut().filter_map(|p| p.replaced().then_some(p.pid)).collect();
            for pid in new {
                self.renew(pid);
            }
        }
        let window = self.config.window;
        let mut ended = Vec::new();
        let mut kept = 0;
        let mut fared: Vec<(i32, i32, Since)> = Vec::new();
        for (&pid, p) in &mut self.processes {
            if !p.keep_up(window, kept) {
                ended.push(pid);
                continue;
            }
            kept += p.threads.len();
            let tids: Vec<i32> = p.threads.keys().copied().collect();
            fared.extend(tids.into_iter().filter_map(|t| Some((pid, t, p.read(t)?))));
        }
        for pid in ended {
            self.left_ring(pid);
            self.processes.remove(&pid);
            self.stacks.forget(pid);
            self.rings = None;
            self.events.extend(self.named.forget(pid, &self.config.sections));
            self.events.push(Event::Left { pid });
        }
        // A watcher that was held up itself has seen nothing meanwhile; one that was at work, or waited for its examiner, was not held up.
        let counted = passed.min(self.spacing() * 2 + self.attended);
        let gap = passed.saturating_sub(self.spacing() * 2 + self.took);
        self.until = (now + SUSPECTS_MOST, cpu + SUSPECTS);
        self.unfinished.set(false);
        let mut looks = Looks { left: LOOKS_A_TICK, passed_over: None };
        let mut suspects = Vec::new();
        let from = fared.partition_point(|&(pid, tid, _)| (pid, tid) < self.look_from);
        let (before, after) = fared.split_at(from);
        for &(pid, tid, since) in after.iter().chain(before) {
            if self.note(pid, tid, since, (passed, counted, gap), &mut looks, now) {
                suspects.push((pid, tid, since));
            }
        }
        self.break_rings(now);
        self.look_from = looks.passed_over.unwrap_or(self.look_from);
        // What is found costs what it costs: looks are spaced out by what those cost that find nothing.
        let mut apart = Duration::ZERO;
        if self.config.blocked && self.rings_due(now) {
            let before = cpu_time();
            self.look_for_rings(now, hand);
            apart += cpu_time().saturating_sub(before);
        }
        let found = self.look_at_sections(counted, gap, now);
        self.hand_over(hand);
        if !found.is_empty() {
            let before = cpu_time();
            self.judge_sections(found, now, hand);
            apart += cpu_time().saturating_sub(before);
        }
        self.look_at_named(now, hand);
        let spent = cpu_time().saturating_sub(cpu + apart);
        self.price = (self.price * 7 + spent) / 8;
        // Before the examinations, which are waited for.
        if self.config.blocked {
            self.judge_waits(passed, hand);
        }
        if self.config.busy && !suspects.is_empty() {
            self.meters =
                self.processes.values().flat_map(|p| p.threads.values()).filter(|t| t.meter.is_some()).count();
            self.examined = false;
            for (pid, tid, since) in self.in_turn(suspects) {
                self.suspect(pid, tid, since, now);
                self.hand_over(hand);
            }
            self.examine_from = self.not_examined.take().unwrap_or(self.examine_from);
        }
        self.hand_over(hand);
        self.took = now.elapsed();
        let waited = delayed.zip(self.delay()).map_or(self.took, |(before, after)| after.saturating_sub(before));
        self.attended = self.took.saturating_sub(waited).min(ATTENDED).max(cpu_time().saturating_sub(cpu));
    }

    /// Takes down how a thread fared; `true` if it may spin. The time since the last look: all, what counts of it, what nobody saw.
    fn note(
        &mut self,
        pid: i32,
        tid: i32,
        since: Since,
        (passed, counted, gap): (Duration, Duration, Duration),
        looks: &mut Looks,
        now: Instant,
    ) -> bool {
        let Some(p) = self.processes.get_mut(&pid) else {
            return false;
        };
        let Some(t) = p.threads.get_mut(&tid) else {
            return false;
        };
        let ran = since.run > 0 || since.slices > 0;
        if ran {
            (t.still, t.rest) = (Duration::ZERO, now);
            t.judge = Duration::ZERO;
            t.unseen = true;
            t.stirred = true;
        } else {
            t.rest = (t.rest + gap).min(now);
            // One that was met in this very look has not been still since the last one, as far as is known.
            t.still += counted.min(now.saturating_duration_since(t.rest));
        }
        let told = t.told.filter(|&(kind, _)| kind == Kind::Blocked);
        if t.stirred && (told.is_some() || t.involved.is_some()) {
            // Taking its stack made it run too; then it sleeps in the same call again.
            let call = p.dir.call(tid).unwrap_or_default();
            let back = call.zip(t.told_in).is_some_and(|(call, told_in)| call.same(&told_in));
            t.stirred = call.is_none() && since.run < STIRS;
            if t.in_ring && call.is_none() && p.dir.status(tid).is_none_or(|status| status.state == b'Z') {
                // Nobody has waited for its process yet.
                self.broken.extend(t.involved);
            }
            if !back && !t.stirred {
                (t.in_ring, t.involved) = (false, None);
                if let Some((_, told)) = told {
                    t.told = None;
                    self.events.push(Event::Recovered { pid, tid, kind: Kind::Blocked, after: now - told });
                }
            }
        }
        // Where a thread that rests now does so; the first of these looks teach its habits.
        let resting = !ran && t.unseen;
        let learning = ran && t.points.wants(t.sched.slices) && since.run * 2 < passed.as_nanos() as u64;
        if (resting || learning) && looks.left == 0 {
            looks.passed_over.get_or_insert((pid, tid));
            // It may rest in a futex.
            self.ring_due |= resting;
        } else if resting || learning {
            looks.left -= 1;
            if resting {
                t.unseen = false;
            }
            match p.dir.call(tid) {
                Ok(Some(call)) => {
                    t.found_in(Some(call));
                    t.points.seen(&call, &t.sched, &p.dir);
                    if resting && call.nr == libc::SYS_futex {
                        self.ring_due = true;
                    }
                }
                Ok(None) => {}
                Err(e) if gone(&e) => {}
                // Of one that has ended and was not waited for the kernel shows that to nobody but root.
                Err(_) if p.dir.status(tid).is_none_or(|status| matches!(status.state, b'Z' | b'X')) => {}
                Err(e) if !self.troubled => {
                    self.troubled = true;
                    let text = format!(
                        "what the threads of {pid} wait for cannot be seen ({e}): needs the same user, or CAP_SYS_PTRACE{ONCE}"
                    );
                    self.events.push(Event::Trouble { pid, text });
                }
                Err(_) => {}
            }
        }
        let passed = passed.as_nanos() as u64;
        let slept = passed.saturating_sub(since.run).saturating_sub(since.wait);
        let busy = since.run > 0 && (since.run * 4 >= passed || slept * 4 < passed);
        // One that was told to spin is watched until it gets on.
        if t.burst.is_some() || busy || matches!(t.told, Some((Kind::Busy, _))) {
            return true;
        }
        if since.slices > 0 && since.run > 0 {
            t.history.add(t.points.exit(), since.run / since.slices);
        }
        t.waits = None;
        t.meter = None;
        t.passes.let_go();
        t.status.let_go();
        false
    }

    /// Another program has taken the place of this one: what was learnt is of no use.
    pub(crate) fn renew(&mut self, pid: i32) {
        self.stacks.forget(pid);
        self.events.extend(self.named.forget(pid, &self.config.sections));
        self.rings = None;
        if let Some(p) = self.processes.get_mut(&pid) {
            p.renew(self.config.window);
        }
    }

    /// Takes a hang into the events, if the process it was seen in is the one that is watched: its id may be another's by now.
    pub(crate) fn report(&mut self, mut hang: Hang) {
        let (pid, tid) = (hang.pid, hang.tid);
        if hang.section.is_none()
            && let Some(n) = hang.threads.first().and_then(|t| self.named.innermost(pid, &t.stack))
        {
            hang.section = Some(self.config.sections[n].name.clone());
        }
        let Some(p) = self.processes.get(&pid) else {
            return;
        };
        if hang.section.is_none() {
            hang.section = p.marks.innermost(tid).map(str::to_owned);
        }
        if p.dir.status(tid).is_some() {
            self.events.push(Event::Hang(Box::new(hang)));
        }
    }

    /// Time for which the calling thread has waited for a CPU, where the kernel counts it.
    fn delay(&mut self) -> Option<Duration> {
        Some(Duration::from_nanos(self.own.sched()?.wait))
    }

    /// Watches the children of watched processes too.
    fn adopt(&mut self) {
        let mut found = Vec::new();
        for p in self.processes.values_mut() {
            for t in p.threads.values_mut().take(PARENTS) {
                found.extend(p.dir.children(t.tid, &mut t.children));
            }
        }
        for pid in found {
            // A child may have ended by now, or belong to another user: then it is not watched.
            let _ = self.add(pid);
        }
    }
}

/// CPU time of the calling thread.
pub(crate) fn cpu_time() -> Duration {
    // SAFETY: all-zero bytes are a valid timespec.
    let mut t: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: `t` is a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}
