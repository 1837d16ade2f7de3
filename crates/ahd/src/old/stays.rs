//! Threads that spin from their first moment: no main loop is known of them, so what they usually do cannot be the measure.
//!
//! Owns: the decision for threads without a main loop, where [`crate::Config::busy_limit`] asks for it. Such a thread looks just like one
//! that computes, so it is only looked at once it used that much CPU without one voluntary wait, and then [`LOOKS`] times, with CPU time
//! in between. It is told, as a guess, if it was found in one and the same execution of one function each time, which calls at most
//! [`CALLED`] others; as likely, if its registers and stack were moreover the same as in an earlier look [`RECURRED`]
//! times: then only somebody else's write could ever free it. Promises: one stop of some 50 us a look. Refuses: threads that
//! wander over many functions, as compilers and most batch jobs do; threads that somebody traces.

use crate::Ahd;
use crate::event::{Hang, Kind, Times};
use crate::old::describe::place;
use crate::old::progress::Meter;
use crate::old::thread::Burst;
use orbit_inspect::Sure;
use orbit_inspect::stacks::Frame;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Times a thread is looked at before it is judged.
const LOOKS: u32 = 24;
/// CPU time it must have had between two of them.
const BETWEEN: Duration = Duration::from_millis(10);
/// Functions that may be called from the loop.
const CALLED: usize = 3;
/// Looks whose state an earlier one had.
const RECURRED: u32 = 3;

/// A function by where it starts, and the return addresses of the frames around it.
type Frames = Vec<(u64, u64)>;

/// What the looks at one thread have shown.
#[derive(Debug, Default)]
pub(crate) struct Stay {
    looks: u32,
    /// CPU time of the thread at the last look.
    run: u64,
    /// Frames found in all looks, outermost first: start of the function and address in it.
    common: Frames,
    /// Each look's frames, outermost first.
    seen: Vec<Frames>,
    states: BTreeSet<u64>,
    recurred: u32,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// In one loop all the time; the state recurs.
    Still,
    /// In one loop all the time.
    Loops,
    /// Here and there.
    Wanders,
}

impl Stay {
    /// Adds a look.
    fn add(&mut self, stack: &[Frame], state: Option<u64>) {
        self.looks += 1;
        if let Some(s) = state
            && !self.states.insert(s)
        {
            self.recurred += 1;
        }
        // A function inlined into another shares its address: one frame of the machine.
        let mut frames: Frames =
            stack.iter().filter(|f| !f.inlined).map(|f| (f.address.wrapping_sub(f.offset), f.address)).collect();
        frames.reverse();
        if self.seen.is_empty() {
            self.common.clone_from(&frames);
        } else {
            let same = self.common.iter().zip(&frames).take_while(|(a, b)| a == b).count();
            self.common.truncate(same);
        }
        self.seen.push(frames);
    }

    fn verdict(&self) -> Verdict {
        let at = self.common.len();
        // The function behind the common frames is the one that loops; where all looks met at one instruction, that is it.
        let loops: BTreeSet<Option<u64>> = self.seen.iter().map(|f| f.get(at).map(|f| f.0)).collect();
        let met = self.seen.iter().any(|f| f.len() == at);
        let one = if met { at > 0 } else { loops.len() == 1 };
        let called: BTreeSet<u64> = self.seen.iter().flat_map(|f| f.iter().skip(at + 1).map(|f| f.0)).collect();
        match (one && called.len() <= CALLED, self.recurred >= RECURRED) {
            (false, _) => Verdict::Wanders,
            (true, true) => Verdict::Still,
            (true, false) => Verdict::Loops,
        }
    }
}

impl Ahd {
    /// One look, if it is due, at a thread that has no main loop and has not waited since its burst began.
    pub(crate) fn look_whether_it_stays(&mut self, pid: i32, tid: i32, now: Instant) {
        let Some(limit) = self.config.busy_limit else {
            return;
        };
        let check = limit.as_nanos() as u64;
        let Some(p) = self.processes.get_mut(&pid) else {
            return;
        };
        let Some(t) = p.threads.get_mut(&tid).filter(|t| t.told.is_none()) else {
            return;
        };
        let run = t.sched.run;
        let burst = t.burst.get_or_insert(Burst { run, began: now, exceeded: None, examine: 0 });
        let progress = run.saturating_sub(burst.run);
        if progress >= check / 2 && t.meter.is_none() {
            t.meter = Meter::open(&mut self.source, &mut self.meters, tid, run);
        }
        if progress < check.max(burst.examine) {
            return;
        }
        let first = *burst.exceeded.get_or_insert(now);
        let last = t.stay.as_ref().map(|s| s.run);
        if last.is_some_and(|at| u128::from(run.saturating_sub(at)) < BETWEEN.as_nanos()) {
            return;
        }
        if last.is_none() && p.replaced() {
            self.renew(pid);
            return;
        }
        if !self.may_examine(pid, tid) {
            return;
        }
        let Some((stack, state)) = self.stacks.state(pid, tid) else {
            return;
        };
        self.did_stop(pid, tid);
        let Some(p) = self.processes.get_mut(&pid) else {
            return;
        };
        let Some(t) = p.threads.get_mut(&tid) else {
            return;
        };
        // Of a thread that does not run between two looks nothing could change: what it had before this one does not count.
        let had = t.run_now(&p.dir).unwrap_or(run);
        let stay = t.stay.get_or_insert_default();
        stay.run = had;
        stay.add(&stack, state);
        if stay.looks < LOOKS {
            return;
        }
        let (verdict, recurred) = (stay.verdict(), stay.recurred);
        t.stay = None;
        let Some(burst) = t.burst.as_mut() else {
            return;
        };
        let began = burst.began;
        burst.examine = progress + check;
        burst.exceeded = None;
        let (sure, how) = match verdict {
            Verdict::Wanders => return,
            Verdict::Loops => (Sure::Guess, "it may compute: nothing is known of what it usually does".to_owned()),
            Verdict::Still => (
                Sure::Likely,
                format!("in {recurred} of them registers and stack were as before: it cannot get on by itself"),
            ),
        };
        t.told = Some((Kind::Busy, now));
        let counted = t.counted(&p.dir, progress, check, None);
        let threads = self.stacks.involve(vec![(pid, tid, "spins".into())], false);
        self.did_stop(pid, tid);
        let why = format!(
            "thread {tid} used {:.0} ms of CPU without one wait, and was in the same loop in all of {LOOKS} looks, in {}; {how}",
            progress as f64 / 1e6,
            threads.first().map_or_else(String::new, |t| place(&t.stack)),
        );
        let times = Times::of(began, first);
        self.report(Hang {
            kind: Kind::Busy,
            pid,
            tid,
            comm: threads.first().map_or_else(String::new, |t| t.comm.clone()),
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

    /// A stop of ours counts as a wait of the thread's own: it is not.
    pub(crate) fn did_stop(&mut self, pid: i32, tid: i32) {
        if let Some(p) = self.processes.get_mut(&pid)
            && let Some(status) = p.dir.status(tid)
            && let Some(t) = p.threads.get_mut(&tid)
        {
            t.waits = Some(status.waits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stack, innermost first, of functions by their start and how far in.
    fn stack(frames: &[(u64, u64)]) -> Vec<Frame> {
        let frame = |&(start, offset): &(u64, u64)| Frame {
            address: start + offset,
            module: String::new(),
            function: None,
            file: None,
            line: None,
            offset,
            inlined: false,
            sure: Sure::Certain,
            cfa: None,
        };
        frames.iter().map(frame).collect()
    }

    fn verdict(looks: &[&[(u64, u64)]], state: impl Fn(u64) -> Option<u64>) -> Verdict {
        let mut s = Stay::default();
        for (i, look) in looks.iter().cycle().take(LOOKS as usize).enumerate() {
            s.add(&stack(look), state(i as u64));
        }
        s.verdict()
    }

    #[test]
    fn one_loop_or_many_places() {
        const MAIN: (u64, u64) = (0x1000, 5);
        let other = |n: u64| Some(n);
        assert_eq!(verdict(&[&[(0x2000, 1), MAIN], &[(0x2000, 9), MAIN]], other), Verdict::Loops);
        assert_eq!(verdict(&[&[(0x2000, 1), MAIN], &[(0x2000, 9), MAIN]], |n| Some(n % 4)), Verdict::Still);
        assert_eq!(verdict(&[&[(0x2000, 1), MAIN]], |_| None), Verdict::Loops, "one instruction");
        let calls: [&[(u64, u64)]; 3] =
            [&[(0x2000, 1), MAIN], &[(0x3000, 1), (0x2000, 9), MAIN], &[(0x4000, 7), (0x3000, 2), (0x2000, 9), MAIN]];
        assert_eq!(verdict(&calls, other), Verdict::Loops);
        let many: Vec<Vec<(u64, u64)>> = (0..8).map(|n| vec![(0x3000 + n * 0x100, 1), (0x2000, 9), MAIN]).collect();
        let many: Vec<&[(u64, u64)]> = many.iter().map(Vec::as_slice).collect();
        assert_eq!(verdict(&many, other), Verdict::Wanders);
        assert_eq!(verdict(&[&[(0x2000, 1), MAIN], &[(0x5000, 1)]], other), Verdict::Wanders, "no function in common");
    }
}
