//! Whether a thread of Python's gets back to its main loop, though it waits now and then.
//!
//! CPython runs one thread of a process at a time. A thread that spins hands the interpreter's lock over when another one asks for it, and waits to have it
//! back: from outside that is a wait like any other, and would end its burst each time. So a breakpoint counts how often the thread comes
//! out of the call by which its events come in ([`Points::events`]). Owns: that breakpoint, one a thread, on suspicion only: it is there from the
//! first look in which the thread used [`BUSY`] and waited, to the one that sees it come out; then for ever longer there is none, so that
//! a healthy server pays next to nothing. Where there are no breakpoints to be had a wait ends a burst as for everybody else.

use crate::learn::Points;
use crate::proc::Call;
use orbit_inspect::Maps;
use orbit_linux::perf::{Access, Counter, Kind};

/// CPU time between two looks, ns, that makes a thread a suspect.
const BUSY: u64 = 10_000_000;
/// Looks without a breakpoint at most, after one that saw the thread come out.
const MOST_REST: u32 = 16;

/// What is known of one thread.
#[derive(Debug, Default)]
pub(crate) struct Passes {
    /// Counts how often it comes out of this call.
    counter: Option<(Counter, i64, u64)>,
    /// Looks until there may be a breakpoint again, and the last number of those.
    rest: u32,
    last: u32,
}

impl Passes {
    /// Whether its passes are counted.
    pub(crate) fn counted(&self) -> bool {
        self.counter.is_some()
    }

    /// Whether it has come back to its loop since they are: it came out of its call, or sleeps in it. Nothing if they are not counted.
    pub(crate) fn came_back(&self, call: Option<&Call>) -> Option<bool> {
        let (counter, nr, pc) = self.counter.as_ref()?;
        Some(counter.read() > 0 || call.is_some_and(|c| c.nr == *nr && c.pc == *pc))
    }

    /// It has waited, and used so much CPU time, since the last look: whether it may not have come back to its loop all the same. Then its
    /// burst goes on.
    pub(crate) fn may_be_away(
        &mut self,
        (pid, tid): (i32, i32),
        points: &Points,
        ran: u64,
        call: Option<&Call>,
    ) -> bool {
        match self.came_back(call) {
            Some(false) => return true,
            Some(true) => {
                self.counter = None;
                self.last = (2 * self.last).clamp(1, MOST_REST);
                self.rest = self.last;
            }
            None if self.rest > 0 => self.rest -= 1,
            None => {
                if ran >= BUSY
                    && let Some((nr, pc)) = points.events()
                {
                    let kind = Kind::Breakpoint { addr: pc as usize, len: 1, access: Access::Execute };
                    self.counter =
                        has_python(pid).then(|| Counter::open_thread(tid, kind).ok()).flatten().map(|c| (c, nr, pc));
                    if self.counter.is_none() {
                        self.rest = MOST_REST;
                    }
                }
            }
        }
        false
    }

    /// It is no suspect any more.
    pub(crate) fn let_go(&mut self) {
        self.counter = None;
    }
}

/// Whether there is an interpreter in the process; one may come later, as a plug-in.
fn has_python(pid: i32) -> bool {
    let of_python = |path: &str| path.rsplit('/').next().is_some_and(|file| file.contains("python"));
    Maps::of(pid).is_ok_and(|maps| maps.iter().any(|m| m.exec && of_python(&m.path)))
}
