//! What the probes of sections by name say of a thread, and whether that is proven.
//!
//! Promises: an execution that ended by no exit (an exception, `longjmp`, a jump that may lead out)
//! is not taken for one that lasts, whatever was called since from where: what the probes say holds
//! only together with a stack ([`Spot::proves`](super::spot::Spot::proves)).

use crate::Sections;
use orbit_ahd::Involved;
use orbit_linux::clock;
use orbit_uprobe::Record;
use std::time::{Duration, Instant};

impl Sections {
    /// The sections that a thread's probes say it is inside of, all the time since the entry: with
    /// that entry's CPU time. What they say has to be proven: an execution may end by no exit.
    pub(super) fn probed(&self, pid: i32, tid: i32) -> Vec<(usize, u64)> {
        let mut out = Vec::new();
        for ((_, n), s) in self.spots.range((pid, 0)..=(pid, usize::MAX)) {
            let tally = s.duty.and_then(|id| self.duty.as_ref()?.tally(id));
            if let (Some(t), Some(seen)) = (tally, s.seen.get(&tid))
                && t.attached
                && seen.window == t.windows
                && seen.record.sp != 0
                && seen.record.time != seen.over
                && s.shape.whole
            {
                out.push((*n, seen.record.run));
            }
        }
        out
    }

    /// What the probes show now, if it is the execution that they showed when they were last read.
    pub(super) fn same_execution(&self, pid: i32, tid: i32, section: usize) -> Option<Record> {
        let spot = self.spots.get(&(pid, section))?;
        let (id, seen) = (spot.duty?, spot.seen.get(&tid)?);
        let duty = self.duty.as_ref()?;
        let (record, tally) = (duty.record(id, tid)?, duty.tally(id)?);
        let same = tally.windows == seen.window && record.sp != 0 && record.time == seen.record.time;
        (tally.attached && same).then_some(record)
    }

    /// Whether a stack proves that the execution of a record lasts.
    pub(super) fn proven(&self, key: (i32, usize), record: Option<&Record>, threads: &[Involved]) -> bool {
        let all = (record, threads.first(), self.spots.get(&key));
        matches!(all, (Some(record), Some(t), Some(spot)) if spot.proves(record, &t.stack))
    }

    /// What the probes showed of a thread last is not believed any more, until they show another
    /// execution.
    pub(super) fn doubt(&mut self, tid: i32, key: (i32, usize)) {
        if let Some(seen) = self.spots.get_mut(&key).and_then(|s| s.seen.get_mut(&tid)) {
            seen.over = seen.record.time;
        }
    }
}

/// When the execution of a record began.
pub(super) fn when(record: &Record, now: Instant) -> Instant {
    // The clock that the kernel half reads.
    let ago = Duration::from_nanos(clock::monotonic_ns().saturating_sub(record.time));
    now.checked_sub(ago).unwrap_or(now)
}
