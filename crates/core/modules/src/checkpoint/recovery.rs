//! The module `recovery`: application crash recovery (the paper's Table 1).
//!
//! Owns: what is done about a thread that a signal would kill. It has the pin P_SIG hold such
//! threads of the guarded programs, asks P_MEM which checkpoints there are (`tac` takes them), and
//! lets keep's pure judge decide: the newest, an older one, or the program's true end. Knows
//! nothing after it was loaded again: a crash then counts as the first. While it is down, a held
//! thread waits for 5 s at most.

use orbit_keep::ladder::{Bounds, Facts, Ladder, Rung, Step};
use orbit_rmk::{Command, Context, Event, Filter, Kind, Module, Reply, Verdict};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// See the module's head. It has no settings.
#[derive(Default)]
pub struct Recovery {
    programs: BTreeMap<u32, Program>,
    asked: BTreeMap<u64, Asked>,
}

struct Program {
    /// P_SIG was asked to hold its threads.
    is_asked: bool,
    ladder: Ladder,
    crashes: u64,
    crash: Option<Crash>,
}

#[derive(Clone, Copy)]
struct Crash {
    ticket: u64,
    tid: u32,
    signal: u64,
    address: u64,
    ip: u64,
    at: Instant,
}

/// What a command was for.
enum Asked {
    Hold(u32),
    List(u32),
    Restore(u32, Duration),
    Decide(u32),
}

impl Program {
    fn new() -> Program {
        // Without a log there is no input to drop, and a program that runs already has an allocator
        // of its own.
        let bounds = Bounds { rungs: vec![Rung::Newest, Rung::Older], ..Bounds::default() };
        Program { is_asked: false, ladder: Ladder::new(bounds), crashes: 0, crash: None }
    }

    fn judge(&mut self, ages_ns: &[u64]) -> Step {
        let (Some(crash), now) = (self.crash, Instant::now()) else { return Step::GiveUp("no thread is held") };
        let newest = ages_ns.first().and_then(|age| now.checked_sub(Duration::from_nanos(*age))).unwrap_or(now);
        let checkpoints = vec![0; ages_ns.len()];
        self.ladder.judge(&Facts {
            at: now,
            ip: crash.ip,
            is_late: false,
            is_hang: false,
            last_input: None,
            may_drop: false,
            is_shown: false,
            checkpoints,
            newest,
        })
    }
}

impl Recovery {
    fn give_up(&mut self, context: &mut Context, pid: u32, why: &str) {
        let Some(crash) = self.programs.get(&pid).and_then(|program| program.crash) else { return };
        context.report(format!("process {pid}: given up, it dies of signal {}: {why}", crash.signal));
        let pass = Command::SignalDecide { ticket: crash.ticket, verdict: Verdict::Pass };
        self.asked.insert(context.issue_cmd("P_SIG", pass), Asked::Decide(pid));
    }

    fn listed(&mut self, context: &mut Context, pid: u32, ages_ns: &[u64]) {
        let Some(program) = self.programs.get_mut(&pid) else { return };
        let nth = match program.judge(ages_ns) {
            Step::Replay(nth) => nth,
            Step::GiveUp(why) => return self.give_up(context, pid, why),
            Step::Environment(_) | Step::Drop(..) => return self.give_up(context, pid, "this rung needs a log"),
        };
        let age = Duration::from_nanos(ages_ns.get(nth).copied().unwrap_or(0));
        let ticket = context.issue_cmd("P_MEM", Command::CheckpointRestore { pid, nth: nth as u32 });
        self.asked.insert(ticket, Asked::Restore(pid, age));
    }

    fn restored(&mut self, context: &mut Context, pid: u32, age: Duration, reply: &Reply) {
        let Reply::Restored { pages, stopped_ns, left } = reply else { return };
        let Some(crash) = self.programs.get_mut(&pid).and_then(|program| program.crash.take()) else { return };
        let (all, stopped) = (crash.at.elapsed().as_secs_f64() * 1e3, *stopped_ns as f64 / 1e6);
        let left = if left.is_empty() { String::new() } else { format!("; not put back: {}", left.join("; ")) };
        context.report(format!(
            "process {pid}: signal {} at address {:#x} in thread {}: put back to a checkpoint {:.1} s old in {all:.2} \
             ms, {pages} pages, \
             stood still for {stopped:.2} ms{left}",
            crash.signal,
            crash.address,
            crash.tid,
            age.as_secs_f64(),
        ));
    }
}

impl Module for Recovery {
    const NAME: &'static str = "recovery";
    const PINS: &'static [&'static str] = &["P_SIG", "P_MEM"];

    fn create(_settings: &[u8]) -> Recovery {
        Recovery::default()
    }

    fn start(&mut self, context: &mut Context) {
        context.subscr_event("P_SIG", Kind::SignalFatal, Filter::guarded().without_children());
    }

    fn event(&mut self, context: &mut Context, event: &Event) {
        let [ticket, signal, address, ip] = event.values;
        let program = self.programs.entry(event.pid).or_insert_with(Program::new);
        program.crashes += 1;
        program.crash = Some(Crash { ticket, tid: event.tid, signal, address, ip, at: Instant::now() });
        let asked = context.issue_cmd("P_MEM", Command::CheckpointList { pid: event.pid });
        self.asked.insert(asked, Asked::List(event.pid));
    }

    fn reply(&mut self, context: &mut Context, ticket: u64, reply: &Result<Reply, String>) {
        match (self.asked.remove(&ticket), reply) {
            (Some(Asked::List(pid)), Ok(Reply::Checkpoints { ages_ns })) => self.listed(context, pid, ages_ns),
            (Some(Asked::Restore(pid, age)), Ok(reply)) => self.restored(context, pid, age, reply),
            (Some(Asked::List(pid) | Asked::Restore(pid, _)), Err(why)) => self.give_up(context, pid, why),
            (Some(Asked::Hold(pid) | Asked::Decide(pid)), Err(why)) => {
                context.report(format!("process {pid}: its crashes are not recovered from: {why}"));
            }
            _ => {}
        }
    }

    fn guarded(&mut self, context: &mut Context, pids: &[u32]) {
        let gone: Vec<u32> = self.programs.keys().copied().filter(|pid| !pids.contains(pid)).collect();
        for pid in gone {
            if let Some(program) = self.programs.remove(&pid) {
                let (transient, deterministic) = program.ladder.causes();
                context.report(format!(
                    "process {pid}: {} crashes, at {transient} places transient, at {deterministic} not",
                    program.crashes
                ));
            }
        }
        for &pid in pids {
            let program = self.programs.entry(pid).or_insert_with(Program::new);
            if !std::mem::replace(&mut program.is_asked, true) {
                self.asked.insert(context.issue_cmd("P_SIG", Command::FatalHold { pid }), Asked::Hold(pid));
            }
        }
    }
}
