//! Busy hangs inside sections by name.
//!
//! Owns: which threads are suspected, what is watched of a suspect, and the decision. Where
//! sections lie inside each other, the innermost that the thread does not leave is reported.

use super::probes::when;
use crate::Sections;
use orbit_ahd::facts::Id;
use orbit_ahd::stacks::place;
use orbit_ahd::{Event, Hang, Involved, Kind, Sure, Times, Unit, Watcher};
use orbit_linux::perf::Counter;
use orbit_linux::status::Status;
use orbit_uprobe::EXITS;
use std::time::{Duration, Instant};

/// CPU time without a voluntary wait after which a stack is taken; twice as much each time nothing
/// was found, up to [`MAX_SAMPLE_DELAY`] times.
const SAMPLE_AFTER_CPU: Duration = Duration::from_millis(60);
const MAX_SAMPLE_DELAY: u64 = 8;
/// CPU time after which it is taken even if the thread waited in between.
const SAMPLE_AFTER_CPU_WITH_WAITS: Duration = Duration::from_secs(1);
/// CPU time that the thread must have used between two samples.
const MIN_CPU_BETWEEN_SAMPLES: Duration = Duration::from_millis(20);
/// Breakpoints of a thread that is healthy count so long at most: each hit costs it some
/// microseconds.
const MAX_BREAKPOINT_TIME: Duration = Duration::from_millis(2);
/// The exit of executions whose exit was not seen.
const UNSEEN_EXIT: u64 = EXITS as u64;

/// A thread found inside a function, to see whether it leaves it.
#[derive(Debug)]
pub(super) struct Stage {
    section: usize,
    /// Shows that another execution begins; nothing if the probes show it.
    counter: Option<Counter>,
    probed: bool,
    /// Where the return address of the execution lies, if that is what the counter watches.
    returns_by: Option<u64>,
    /// CPU time from which on it is known to be inside, and up to which.
    run: u64,
    until: u64,
    began: Instant,
    exceeded: Option<(Instant, u64)>,
    /// CPU time at the last stack, once it is reported.
    pub(super) reported_at: Option<u64>,
}

/// What is thought of a thread.
#[derive(Debug, Default)]
pub(super) struct Suspect {
    /// CPU time when it was last known to be outside, or in a new execution; and waits by then.
    pub(super) since: u64,
    pub(super) waits: Option<u64>,
    pub(super) ease: u64,
    /// CPU time at the last stack.
    pub(super) sampled_at: u64,
    pub(super) stage: Option<Stage>,
    /// Sections around that one which it was found in too long: judged again if it leaves that one.
    pub(super) around: Vec<Stage>,
    /// The section that it was last seen to leave, and its CPU time then.
    pub(super) left: Option<(usize, u64)>,
    /// How long it must have been still for its wait to be judged (again).
    pub(super) judge: Duration,
}

impl Sections {
    /// Whether a stack shows that a thread is inside a section.
    fn inside(&self, pid: i32, section: usize, threads: &[Involved], returns_by: Option<u64>) -> bool {
        let spot = self.spots.get(&(pid, section));
        threads.first().zip(spot).is_some_and(|(t, s)| s.on_stack(&t.stack, returns_by))
    }

    /// A thread that ran: does it use more inside a section than it may?
    pub(super) fn watch_busy(&mut self, watcher: &mut Watcher, id: Id, run: u64, s: &mut Suspect, now: Instant) {
        let Id { pid, tid } = id;
        // By probes.
        let probed = self.probed(pid, tid);
        for &(n, from) in &probed {
            let (check, _) = self.may_use(watcher, (pid, n));
            let used = run.saturating_sub(from);
            let inner = probed
                .iter()
                .any(|&(m, later)| later > from && self.is_rather(watcher, pid, m, run - later.min(run), n, used));
            let Some(seen) = self.spots.get_mut(&(pid, n)).and_then(|p| p.seen.get_mut(&tid)) else {
                continue;
            };
            if s.stage.is_none() && used >= check && !inner {
                let (at, first) = *seen.exceeded.get_or_insert((now, run));
                if run - first.min(run) >= MIN_CPU_BETWEEN_SAMPLES.as_nanos() as u64 {
                    seen.exceeded = None;
                    let stage = Stage {
                        section: n,
                        counter: None,
                        probed: true,
                        returns_by: None,
                        run: from,
                        until: from,
                        began: when(&seen.record, now),
                        exceeded: Some((at, first)),
                        reported_at: None,
                    };
                    self.judge_stage(watcher, id, run, s, stage, now);
                    return;
                }
            }
        }
        if let Some(stage) = s.stage.take() {
            self.follow_stage(watcher, id, run, s, stage, now);
            return;
        }
        let waits = s.waits;
        if run.saturating_sub(s.since) < SAMPLE_AFTER_CPU.as_nanos() as u64 * s.ease {
            return;
        }
        let Some(status) = status_of(id) else {
            return;
        };
        s.waits = status.voluntary_switches();
        s.since = run;
        let often = run.saturating_sub(s.sampled_at) >= SAMPLE_AFTER_CPU_WITH_WAITS.as_nanos() as u64;
        if waits != status.voluntary_switches() {
            s.ease = 1;
        }
        if status.is_traced() || status.state() != Some('R') || waits != status.voluntary_switches() && !often {
            return;
        }
        s.sampled_at = run;
        let stack = watcher.stacks().involve(vec![(pid, tid, String::new())], false);
        // Being stopped counts as a wait of the thread's own.
        watcher.note_stop(id);
        s.waits = status_of(id).and_then(|status| status.voluntary_switches());
        s.ease = (s.ease * 2).min(MAX_SAMPLE_DELAY);
        // From the innermost outwards; one that is entered again and again may be called by one
        // that never ends.
        for section in stack.first().map(|t| self.all(pid, &t.stack)).unwrap_or_default() {
            if self.tastes == 0 || probed.iter().any(|(p, _)| *p == section) {
                continue;
            }
            self.tastes -= 1;
            if self.begin_stage(watcher, id, s, section, &stack, now) {
                return;
            }
        }
    }

    /// Counts from now on whether a thread, which this stack shows inside a section, enters it
    /// anew; `false` if it does at once.
    fn begin_stage(
        &mut self,
        watcher: &mut Watcher,
        id: Id,
        s: &mut Suspect,
        section: usize,
        threads: &[Involved],
        now: Instant,
    ) -> bool {
        let Id { pid, tid } = id;
        let (Some(spot), Some(thread)) = (self.spots.get(&(pid, section)), threads.first()) else {
            return false;
        };
        let loops = spot.shape.loops;
        let returns_by = if loops { spot.returns_by(&thread.stack) } else { None };
        let counter = match spot.counter(tid, returns_by) {
            Ok(c) => c,
            Err(e) => {
                if !self.breakpoint_failure_reported && e.raw_os_error() != Some(libc::ESRCH) {
                    self.breakpoint_failure_reported = true;
                    let name = &self.sections[section].name;
                    let text = format!(
                        "whether thread {tid} leaves section {name} cannot be seen ({e}): busy hangs in sections by \
                         name are found \
                         only while they are probed"
                    );
                    self.events.push(Event::Trouble { pid, text });
                }
                return false;
            }
        };
        std::thread::sleep(MAX_BREAKPOINT_TIME);
        let run = watcher.threads(pid).iter().find(|t| t.id == id).map_or(0, |t| t.run);
        if counter.read() > 0 {
            // A healthy one.
            return false;
        }
        // It has not entered since the probes saw it enter last: so it is inside since then.
        let since = self.same_execution(pid, tid, section).filter(|r| !loops && r.entries == r.opened);
        s.stage = Some(Stage {
            section,
            counter: Some(counter),
            probed: false,
            returns_by,
            run: since.map_or(run, |r| r.run.min(run)),
            until: run,
            began: since.map_or(now, |r| when(&r, now)),
            exceeded: None,
            reported_at: None,
        });
        true
    }

    /// Whether a section that was entered inside another one, and used so much of what that used,
    /// is rather the one that hangs: it will exceed its own check value soon.
    fn is_rather(
        &self,
        watcher: &Watcher,
        pid: i32,
        inner: usize,
        inner_used: u64,
        outer: usize,
        outer_used: u64,
    ) -> bool {
        let (check, usual) = self.may_use(watcher, (pid, inner));
        // Of one whose executions are not known yet the check value is only patience.
        inner_used >= outer_used / 2 && (usual.is_none() || check <= 2 * self.may_use(watcher, (pid, outer)).0)
    }

    /// A thread that was found inside: is it in the same execution still, and for too long?
    fn follow_stage(
        &mut self,
        watcher: &mut Watcher,
        id: Id,
        run: u64,
        s: &mut Suspect,
        mut stage: Stage,
        now: Instant,
    ) {
        let Id { pid, .. } = id;
        let passed = stage.counter.as_ref().is_some_and(|c| c.read() > 0);
        let used = run.saturating_sub(stage.run);
        if passed {
            self.left_named(watcher, id, stage, run, s);
            return;
        }
        if let Some(at) = stage.reported_at {
            if run.saturating_sub(at) >= SAMPLE_AFTER_CPU_WITH_WAITS.as_nanos() as u64 {
                stage.reported_at = Some(run);
                if !self.still_inside(watcher, id, &stage) {
                    self.left_named(watcher, id, stage, run, s);
                    return;
                }
                stage.until = run;
            }
            s.stage = Some(stage);
            return;
        }
        stage.until = run;
        let (check, _) = self.may_use(watcher, (pid, stage.section));
        if used < check {
            s.stage = Some(stage);
            return;
        }
        let (_, first) = *stage.exceeded.get_or_insert((now, run));
        if run.saturating_sub(first) < MIN_CPU_BETWEEN_SAMPLES.as_nanos() as u64 {
            s.stage = Some(stage);
            return;
        }
        self.judge_stage(watcher, id, run, s, stage, now);
    }

    /// Whether a thread has a section's function on its stack.
    fn still_inside(&mut self, watcher: &mut Watcher, id: Id, stage: &Stage) -> bool {
        let Id { pid, tid } = id;
        // One that sleeps is not stopped, and asked again later.
        if status_of(id).is_none_or(|s| s.state() != Some('R')) {
            return true;
        }
        let stack = watcher.stacks().involve(vec![(pid, tid, String::new())], false);
        watcher.note_stop(id);
        self.inside(pid, stage.section, &stack, stage.returns_by)
    }

    /// A thread has exceeded the check value: the stack decides.
    fn judge_stage(
        &mut self,
        watcher: &mut Watcher,
        id: Id,
        run: u64,
        s: &mut Suspect,
        mut stage: Stage,
        now: Instant,
    ) {
        let Id { pid, tid } = id;
        let key = (pid, stage.section);
        let used = run.saturating_sub(stage.run);
        let Some(status) = status_of(id) else {
            return;
        };
        if status.is_traced() {
            // A debugger's time is not the program's.
            s.since = run;
            s.around.clear();
            return;
        }
        // One that happens to sleep is not stopped; what is seen of it may be too little.
        let gentle = status.state() != Some('R');
        let threads = watcher.stacks().involve(vec![(pid, tid, "spins".into())], gentle);
        if !gentle {
            watcher.note_stop(id);
        }
        let inside = self.inside(pid, stage.section, &threads, stage.returns_by);
        let same = self.same_execution(pid, tid, stage.section);
        let passed = match &stage.counter {
            None => same.is_none(),
            Some(c) => c.read() > 0,
        };
        // Without a stack nothing is known either.
        let unseen = gentle || threads.first().is_none_or(|t| t.stack.is_empty());
        if unseen && !inside && !passed {
            s.stage = (!stage.probed).then_some(stage);
            return;
        }
        let proven = !stage.probed || self.proven(key, same.as_ref(), &threads);
        if !inside || passed || !proven {
            if stage.probed && !passed {
                self.doubt(tid, key);
                if inside && self.begin_stage(watcher, id, s, stage.section, &threads, now) {
                    return;
                }
            }
            // It was inside for so long only if it is, or has just entered anew.
            stage.until = if inside { stage.until } else { stage.run };
            self.left_named(watcher, id, stage, run, s);
            return;
        }
        stage.until = run;
        if self.hangs_further_in(watcher, id, s, &stage, &threads, now) {
            s.around.push(stage);
            return;
        }
        s.around.clear();
        let (check, usual) = self.may_use(watcher, key);
        let go = self.spots.get(&key).is_some_and(|p| p.function.go);
        let first = stage.exceeded.map_or(now, |(at, _)| at);
        let times = Times::of(stage.began, first);
        stage.reported_at = Some(run);
        if stage.probed {
            // Without it it is seen a little later that it gets on.
            stage.counter = self.spots.get(&key).and_then(|p| p.counter(tid, None).ok());
        }
        let name = self.sections[stage.section].name.clone();
        s.stage = Some(stage);
        if watcher.is_reported(id) {
            return;
        }
        // A goroutine may have come from another thread meanwhile.
        let sure = if go { Sure::Guess } else { Sure::Likely };
        self.report(watcher, spins(id, name, used, (check, usual), times, sure, threads));
    }

    /// Whether the thread may rather hang in a section inside of this one: then that is watched
    /// first.
    fn hangs_further_in(
        &mut self,
        watcher: &mut Watcher,
        id: Id,
        s: &mut Suspect,
        stage: &Stage,
        threads: &[Involved],
        now: Instant,
    ) -> bool {
        let Id { pid, tid } = id;
        let probed = self.probed(pid, tid);
        // Only what it left during this very execution shows that it is not the one that never
        // ends.
        let left = s.left.filter(|(_, run)| *run >= stage.run).map(|(section, _)| section);
        let on_stack = threads.first().map(|t| self.all(pid, &t.stack)).unwrap_or_default();
        for inner in on_stack.into_iter().take_while(|&m| m != stage.section).filter(|m| left != Some(*m)) {
            let Some(&(_, from)) = probed.iter().find(|(p, _)| *p == inner) else {
                return self.begin_stage(watcher, id, s, inner, threads, now);
            };
            // While this one was not probed nobody has asked that yet.
            let used = |since: u64| stage.until.saturating_sub(since);
            if !stage.probed && self.is_rather(watcher, pid, inner, used(from), stage.section, used(stage.run)) {
                return self.begin_stage(watcher, id, s, inner, threads, now);
            }
        }
        false
    }

    /// An execution that was watched is over; one around it that was put aside is judged again.
    fn left_named(&mut self, watcher: &mut Watcher, id: Id, stage: Stage, run: u64, s: &mut Suspect) {
        let Id { pid, .. } = id;
        if let Some(spot) = self.spots.get_mut(&(pid, stage.section)) {
            // What is certain: it was seen late that it is over.
            if stage.until > stage.run {
                spot.history.add(UNSEEN_EXIT, stage.until - stage.run);
            }
        }
        if stage.reported_at.is_some() {
            self.over(watcher, id);
        }
        s.since = run;
        s.left = Some((stage.section, run));
        s.stage = s.around.pop();
    }
}

fn status_of(id: Id) -> Option<Status> {
    Status::of_thread(id.pid, id.tid).ok().filter(|status| status.state().is_some())
}

/// The hang of a thread that has used so much CPU in a section, `may` being what it may use and
/// what it usually does.
fn spins(
    id: Id,
    section: String,
    used: u64,
    may: (u64, Option<u64>),
    times: Times,
    sure: Sure,
    threads: Vec<Involved>,
) -> Hang {
    let Id { pid, tid } = id;
    let (check_value, usual) = may;
    let ms = |ns: u64| ns as f64 / 1e6;
    let at = threads.first().map_or_else(String::new, |t| place(&t.stack));
    let usual_words = usual.map_or_else(String::new, |u| match u {
        0..1000 => format!(", usually {u} ns"),
        u => format!(", usually {:.3} ms", ms(u)),
    });
    let why = format!(
        "thread {tid} spins in section {section}, in {at}: {:.0} ms of CPU without leaving it{usual_words}",
        ms(used)
    );
    Hang {
        kind: Kind::Busy,
        pid,
        tid,
        comm: String::new(),
        section: Some(section),
        progress: used,
        usual,
        check_value,
        unit: Unit::CpuNs,
        since: times.since,
        latency: times.latency,
        why,
        sure,
        threads,
        cycle: Vec::new(),
        runtime: Vec::new(),
    }
}
