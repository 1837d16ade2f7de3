//! A function that is a section, in one process.
//!
//! Owns: where it begins and ends, whether a frame is its, what its executions use by what the probes count, and the breakpoints that
//! show that one has ended.

use super::History;
use orbit_inspect::functions::Function;
use orbit_inspect::stacks::Frame;
use orbit_linux::perf::{self, Access, Counter};
use orbit_uprobe::code::Shape;
use orbit_uprobe::{EXITS, Record, Tally};
use std::collections::BTreeMap;
use std::time::Instant;

/// Debug registers of a thread.
const REGISTERS: usize = 4;

/// What one thread did in a function when it was last looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) window: u64,
    pub(super) record: Record,
    /// When and at what CPU time it exceeded the check value.
    pub(super) exceeded: Option<(Instant, u64)>,
}

/// A function in a process.
#[derive(Debug)]
pub(super) struct Spot {
    pub(super) function: Function,
    pub(super) shape: Shape,
    /// Its number with the prober.
    pub(super) duty: Option<u64>,
    /// CPU time that the process used since.
    pub(super) cpu: u64,
    pub(super) history: History,
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

    /// Counters of a thread that passes where an execution ends or another begins.
    pub(super) fn counters(&self, tid: i32) -> std::io::Result<Vec<Counter>> {
        let open = |addr: u64| {
            let kind = perf::Kind::Breakpoint { addr: addr as usize, len: 8, access: Access::Execute };
            Counter::open_thread(tid, kind)
        };
        self.watched().into_iter().map(open).collect()
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
