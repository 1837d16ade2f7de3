//! Busy hangs: threads that use CPU without getting back to where they usually wait.
//!
//! Owns: the decision. A thread that has a main loop (see [`crate::old::learn`]) and used more CPU time without one voluntary wait than
//! its check value is examined (see [`crate::old::exam`]), twice; only if it ran both times and made none of its usual
//! calls it hangs. Refuses: threads without a main loop, threads that somebody traces.

use crate::Ahd;
use crate::event::{Event, Hang, Kind, Times};
use crate::old::describe::place;
use crate::old::exam::{self, Look, Usual};
use crate::old::learn::Habit;
use crate::old::passes::Waits;
use crate::old::proc::Call;
use crate::old::progress::Meter;
use crate::old::sections::allowed_only;
use crate::old::thread::{Burst, Since, Thread};
use crate::old::watch::ONCE;
use orbit_inspect::stacks::Frame;
use orbit_inspect::{Memory, Sure};
use std::time::{Duration, Instant};

/// A thread that is busy without hanging is examined less often, up to so many times its check value apart.
const MOST_EASE: u64 = 2;
/// Where threads may not be traced there is no examination, but so much more patience.
const BLIND: u64 = 4;
/// So much more also for a thread that makes other calls while it is examined.
const WORKS: u64 = 4;
/// Page faults that show that it takes new memory: an answer of 100 MB is built so, and takes as long as the machine's memory is
/// slow. Such a one has as much CPU time as the limit for waits.
const FAULTS: u64 = 4;
/// Bursts of so much CPU time, ns, count as an exit of their own.
const LONG: u64 = 30_000_000;
/// No wait point has this address.
const LONG_EXIT: u64 = u64::MAX - 1;
/// After a hang was told the thread is looked at again each time it used this much more, if its turn comes.
const AGAIN: Duration = Duration::from_secs(1);
/// Looks again at threads that were told take at most this part of the time, all together,
const BACK_SHARE: u32 = 20;
/// and each at most so long: one that is back in its loop shows it as soon as it has a CPU.
const BACK: Duration = Duration::from_millis(100);

impl Ahd {
    /// A thread that used much CPU since the last look, or did before.
    pub(crate) fn suspect(&mut self, pid: i32, tid: i32, since: Since, now: Instant) {
        if self.named.told(pid, tid) {
            return;
        }
        let Some(p) = self.processes.get_mut(&pid) else {
            return;
        };
        // That hang is over once the section is left.
        if p.marks.told(tid) {
            return;
        }
        let Some(t) = p.threads.get_mut(&tid) else {
            return;
        };
        let Some(status) = p.dir.status_again(tid, &mut t.status) else {
            return;
        };
        let limit = self.config.limit;
        let waited = t.waits.replace(status.waits).map(|w| status.waits.saturating_sub(w));
        if status.tracer != 0 {
            t.burst = None;
            return;
        }
        // To be stopped, by whomever, counts as a wait too: what was told to spin gets on once it is seen at one of its own.
        let asked = matches!(t.told, Some((Kind::Busy, _))) || t.passes.counted();
        let call = (asked && status.state == b'S').then(|| p.dir.call(tid).ok().flatten()).flatten();
        // Never put on a CPU, and on one now: it ran all the time since the last look.
        let unbroken = waited.is_none() && since.slices == 0 && since.run > 0 && status.state == b'R';
        let over = match t.told {
            Some((Kind::Busy, _)) => t
                .passes
                .came_back(call.as_ref())
                .unwrap_or_else(|| status.state == b'S' && got_on(t, call.as_ref(), limit)),
            _ if waited == Some(0) || unbroken => false,
            _ => match t.passes.waited((pid, tid), &t.points, since.run, call.as_ref()) {
                Waits::Away => false,
                Waits::Back => true,
                Waits::Unsure => {
                    t.burst = None;
                    true
                }
            },
        };
        if over {
            // It has waited since: a burst is over. With nothing known from before, the burst begins here.
            // The last of these runs goes on: with few others the mean would be its own.
            if let Some(n) = waited.filter(|n| *n >= 3) {
                t.history.add(t.points.exit(), since.run / n);
                // All of it was since the last look, so it was no single one: the last of them may be the beginning of a hang.
                t.burst.take_if(|b| b.run + since.run >= t.sched.run);
            }
            t.ease = 1;
            end(&mut self.events, pid, t, now);
            let fresh = Burst { run: t.sched.run, began: now, exceeded: None, examine: 0 };
            t.burst = (since.run > 0).then_some(fresh);
            return;
        }
        let floor = match t.points.habit() {
            Some(Habit::Events) => self.config.floor,
            Some(Habit::Pool) => self.config.pool_floor.max(self.config.floor),
            Some(Habit::Other) | None => return self.look_whether_it_stays(pid, tid, now),
        };
        let check = t.history.check_value(self.config.factor, floor.as_nanos() as u64);
        let run = t.sched.run;
        let before = if unbroken { since.run } else { 0 };
        let seen = now.checked_sub(Duration::from_nanos(before)).unwrap_or(now);
        let began = Burst { run: run - before, began: seen, exceeded: None, examine: 0 };
        let burst = t.burst.get_or_insert(began);
        let progress = run.saturating_sub(burst.run);
        if progress >= check / 2 && t.meter.is_none() {
            t.meter = Meter::open(&mut self.source, &mut self.meters, tid, run);
        }
        let enough = (check * t.ease).max(burst.examine);
        if progress < enough {
            self.look_again(Duration::from_nanos(enough - progress));
            return;
        }
        let first = *burst.exceeded.get_or_insert(now);
        let told = t.told.is_some();
        if p.replaced() {
            self.renew(pid);
            return;
        }
        if status.state != b'R' || !(if told { self.may_look_back() } else { self.may_examine(pid, tid) }) {
            return;
        }
        let start = Instant::now();
        self.examine(pid, tid, check, first);
        if told {
            self.looked_back = (pid, tid);
            self.look_back_from = Instant::now() + start.elapsed() * BACK_SHARE;
        }
        self.did_stop(pid, tid);
    }

    fn examine(&mut self, pid: i32, tid: i32, check: u64, first: Instant) {
        self.stacks.prepare(pid);
        let Some(p) = self.processes.get_mut(&pid) else {
            return;
        };
        let Ok(file) = p.dir.file(format_args!("task/{tid}/schedstat")) else {
            return;
        };
        let Some(t) = p.threads.get_mut(&tid) else {
            return;
        };
        let points = t.points.clone();
        let counted_passes = t.passes.counted();
        let calls = |nr| if counted_passes { points.takes_events(nr) } else { points.waits_in(nr) };
        let places = match points.events().filter(|_| counted_passes) {
            Some((_, place)) => vec![place],
            None => points.places(),
        };
        let usual = Usual { calls: &calls, places: &places };
        let faults = p.dir.faults(tid);
        let told = t.told.is_some();
        let mut look = exam::look(tid, &file, if told { BACK } else { exam::PATIENCE }, &usual);
        if let (Look::Spins { .. } | Look::Kernel | Look::Away, false) = (&look, told) {
            look = self.stacks.foresee((pid, tid), || exam::look(tid, &file, exam::PATIENCE, &usual));
        }
        let Some(burst) = t.burst.as_mut() else {
            return;
        };
        let progress = t.sched.run.saturating_sub(burst.run);
        let (inside, away) = (matches!(look, Look::Kernel), matches!(look, Look::Away));
        let (calls, sure) = match look {
            Look::Waits => {
                t.ease = (t.ease * 2).min(MOST_EASE);
                end(&mut self.events, pid, t, Instant::now());
                return;
            }
            Look::Starved | Look::Left => return,
            Look::Spins { calls } => (Some(calls), Sure::Likely),
            // It comes to an end, in all likelihood, but not soon; or it may wait elsewhere by now.
            Look::Kernel | Look::Away => (None, Sure::Guess),
            Look::Refused(e) => {
                if !self.troubled {
                    self.troubled = true;
                    let text = format!(
                        "threads of {pid} cannot be examined ({e}): needs CAP_SYS_PTRACE, or the same user{ONCE}"
                    );
                    self.events.push(Event::Trouble { pid, text });
                }
                if progress < check * BLIND {
                    return;
                }
                (None, Sure::Guess)
            }
        };
        // One long job makes calls, or takes new memory: more patience before it is said to hang.
        let grows = p.dir.faults(tid).saturating_sub(faults) >= FAULTS;
        let patience = match (grows, inside || away || calls.is_some_and(|n| n > 0)) {
            (true, _) => (check * WORKS).max(self.config.limit.as_nanos() as u64),
            (false, true) => check * WORKS,
            (false, false) => 0,
        };
        if progress < patience {
            burst.examine = progress + check;
            return;
        }
        burst.examine = progress + AGAIN.as_nanos() as u64;
        if t.told.is_some() {
            return;
        }
        let does = match (inside, away) {
            (true, _) => "is inside the kernel",
            (false, true) => "is busy",
            (false, false) => "spins",
        };
        let threads = self.stacks.involve(vec![(pid, tid, does.into())], false);
        let stack = threads.first().map_or(&[][..], |t| &t.stack);
        let leaves = on_its_way_out(stack);
        let (check, usual) = match leaves {
            Some(_) => (check.max(self.config.limit.as_nanos() as u64), None),
            None => (check, t.history.usual()),
        };
        if progress < check {
            (burst.examine, burst.exceeded) = (check, None);
            return;
        }
        t.told = Some((Kind::Busy, Instant::now()));
        t.passes.begin_anew((pid, tid), &t.points);
        let began = burst.began;
        let counted = t.counted(&p.dir, progress, check, usual);
        let ms = |ns: u64| ns as f64 / 1e6;
        let makes_call = stack.first().is_some_and(|f| called_at(pid, f.address));
        let in_call = inside && makes_call;
        let doing = match stack.first().filter(|_| inside) {
            Some(f) if in_call => format!("is inside a system call, of {f}, made by {}", place(stack)),
            Some(_) => format!(
                "is inside the kernel again and again, in no long system call (page faults, signals, short calls), in {}",
                place(stack)
            ),
            None if inside => "is inside the kernel".into(),
            None => format!("{does} in {}", place(stack)),
        };
        let mut why =
            format!("thread {tid} {doing}: {:.0} ms of CPU without getting back to its main loop", ms(progress));
        match (&leaves, usual) {
            (Some(function), _) => why += &allowed_once(check, function),
            (None, Some(u)) => why += &format!(", usually {:.3} ms", ms(u)),
            (None, None) => why += &allowed_only(check),
        }
        match calls {
            None if inside && !in_call => why += "; nearly all of it lately inside the kernel",
            None if inside => {
                why += "; nearly all of it lately inside the kernel, in one long call or one after the other"
            }
            None if away => {
                why +=
                    "; by breakpoints it has not come back there lately, and it had too little of a CPU to be followed"
            }
            Some(0) => why += "; it made no system call while it was looked at",
            Some(_) if counted_passes => {
                why += "; it makes system calls, but by a breakpoint there it has not come back to the one its events come in by"
            }
            Some(_) => why += "; it makes system calls, but none it usually waits in",
            None => why += "; it may not be traced, so it was not examined",
        }
        let comm = threads.first().map_or_else(String::new, |t| t.comm.clone());
        let times = Times::of(began, first);
        self.report(Hang {
            kind: Kind::Busy,
            pid,
            tid,
            comm,
            section: None,
            progress: counted.progress,
            usual: counted.usual,
            check_value: counted.check,
            unit: counted.unit,
            since: times.since,
            latency: times.latency,
            why,
            sure,
            threads,
            cycle: Vec::new(),
        });
    }
}

/// Whether this sleep shows that a thread which was told to spin got on: it is where it usually waits, or rests for good.
fn got_on(t: &Thread, call: Option<&Call>, limit: Duration) -> bool {
    let loops = matches!(t.points.habit(), Some(Habit::Events | Habit::Pool));
    call.is_some_and(|c| !loops || t.points.waits_in(c.nr) || t.still >= limit)
}

/// The function by which a thread ends its process, if it is in one.
fn on_its_way_out(stack: &[Frame]) -> Option<String> {
    // Of glibc and of Python.
    const LEAVES: [&str; 7] =
        ["exit", "__GI_exit", "__run_exit_handlers", "_dl_fini", "Py_FinalizeEx", "_Py_Finalize", "finalize_modules"];
    // The compiler may have split them.
    let name = |f: &Frame| f.function.as_deref().and_then(|name| name.split('.').next()).map(str::to_owned);
    stack.iter().rev().filter_map(name).find(|name| LEAVES.contains(&name.as_str()))
}

/// Said of the measure there: what a process does once has no usual amount.
fn allowed_once(check: u64, function: &str) -> String {
    let ms = check as f64 / 1e6;
    format!(", allowed {ms:.0} ms (it is on its way out, in {function}: what is done once has no usual amount)")
}

/// Whether a thread whose program counter is here has just made, or is making, a system call: another one than that by which a signal's handler
/// comes back, which is over at once.
fn called_at(pid: i32, pc: u64) -> bool {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    const SIGRETURN: u32 = libc::SYS_rt_sigreturn as u32;
    // The number is loaded into the register just before.
    let code = Memory::of(pid).bytes::<6>(pc.wrapping_sub(6)).unwrap_or_default();
    code.ends_with(&SYSCALL) && !code.starts_with(&SIGRETURN.to_le_bytes())
}

/// A burst is over.
fn end(events: &mut Vec<Event>, pid: i32, t: &mut Thread, now: Instant) {
    t.stay = None;
    t.meter = None;
    if let Some(b) = t.burst.take() {
        let progress = t.sched.run.saturating_sub(b.run);
        if progress > 0 {
            // Among many short jobs the mean would not show the few long ones.
            let exit = if progress >= LONG { LONG_EXIT } else { t.points.exit() };
            t.history.add(exit, progress);
        }
    }
    if let Some((Kind::Busy, told)) = t.told {
        t.told = None;
        events.push(Event::Recovered { pid, tid: t.tid, kind: Kind::Busy, after: now - told });
    }
}
