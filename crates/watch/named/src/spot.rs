//! A function that is a section, in one process.
//!
//! Owns: where it begins and ends, whether a frame is its, what its executions use by what the
//! probes count, and the breakpoints that show that one has ended.

use orbit_ahd::section::Windows;
use orbit_inspect::functions::Function;
use orbit_inspect::stacks::Frame;
use orbit_linux::perf::{self, Access, Counter};
use orbit_uprobe::code::Shape;
use orbit_uprobe::{EXITS, Error, Record, Tally};
use std::collections::BTreeMap;
use std::time::Instant;

/// What one thread did in a function at its last sample.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) window: u64,
    pub(super) record: Record,
    /// When and at what CPU time it exceeded the check value.
    pub(super) exceeded: Option<(Instant, u64)>,
    /// The clock at the entry of an execution which is not known to last, though no exit was seen.
    pub(super) over: u64,
}

/// A function in a process.
#[derive(Debug)]
pub(super) struct Spot {
    pub(super) function: Function,
    pub(super) shape: Shape,
    /// Its number with the prober.
    pub(super) duty: Option<u64>,
    /// Why the prober was not asked, if so.
    pub(super) lacks: Option<Error>,
    /// The reason why it is not probed was reported.
    pub(super) lacking_reported: bool,
    /// CPU time that the process used since.
    pub(super) cpu: u64,
    pub(super) history: Windows,
    /// Executions that the history stands for.
    pub(super) executions: u64,
    pub(super) seen: BTreeMap<i32, Seen>,
}

impl Spot {
    /// Whether a frame of a stack is the function's.
    pub(super) fn is(&self, stack: &[Frame], i: usize) -> bool {
        let (f, function) = (&stack[i], &self.function);
        // All but the innermost are return addresses, which may lie behind the function.
        let at = if i == 0 { f.address } else { f.address.wrapping_sub(1) };
        let named = || !f.inlined && f.function.as_deref() == Some(&function.name);
        function.holds(at) || function.size == 0 && named()
    }

    /// Where the return address of the outermost activation on a stack lies, if that is certain.
    pub(super) fn returns_by(&self, stack: &[Frame]) -> Option<u64> {
        let outermost = (0..stack.len()).rev().find(|&i| self.is(stack, i))?;
        stack[outermost].cfa?.checked_sub(8)
    }

    /// Whether an activation is on a stack: the one with its return address there, if that is
    /// known.
    pub(super) fn on_stack(&self, stack: &[Frame], returns_by: Option<u64>) -> bool {
        let right = |f: &Frame| returns_by.is_none_or(|at| f.cfa == at.checked_add(8));
        (0..stack.len()).any(|i| self.is(stack, i) && right(&stack[i]))
    }

    /// Whether a stack proves that the execution of the record, which began before, lasts. It does
    /// if the thread has not entered since; or if an activation on it began where the record's did:
    /// a later one there would have begun the record anew. Where passing the entry need not be an
    /// entry, nothing is proven.
    pub(super) fn proves(&self, record: &Record, stack: &[Frame]) -> bool {
        let entry = self.function.address + self.shape.entry.offset;
        let of_record = |f: &Frame| record.entries == record.opened || f.cfa == record.sp.checked_add(8);
        // One that has not passed the entry yet is not in the record.
        !self.shape.loops
            && (0..stack.len()).any(|i| self.is(stack, i) && stack[i].address > entry && of_record(&stack[i]))
    }

    /// A counter of a thread that begins another execution: it passes the entry; or, where passing
    /// that need not be an entry, it calls from where `returns_by` was written, as whoever enters
    /// anew at the same depth does.
    pub(super) fn counter(&self, tid: i32, returns_by: Option<u64>) -> std::io::Result<Counter> {
        let (addr, access) = match returns_by {
            Some(at) => (at, Access::Write),
            None => (self.function.address + self.shape.entry.offset, Access::Execute),
        };
        Counter::open_thread(tid, perf::Kind::Breakpoint { addr: addr as usize, len: 8, access })
    }

    /// What an execution of its may use, and what it usually uses.
    pub(super) fn learn(&mut self, tid: i32, tally: &Tally, record: Record) {
        let seen = self.seen.entry(tid).or_default();
        if seen.window != tally.windows {
            *seen = Seen { window: tally.windows, ..Seen::default() };
        }
        for e in 0..EXITS {
            let n = record.exits[e].saturating_sub(seen.record.exits[e]);
            let used = record.used[e].saturating_sub(seen.record.used[e]);
            if let Some(each) = used.checked_div(n) {
                self.executions += n;
                self.history.add(e as u64, each);
            }
        }
        if record.time != seen.record.time || record.sp == 0 {
            seen.exceeded = None;
        }
        seen.record = record;
    }
}
