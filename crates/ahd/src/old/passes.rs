//! Whether a thread of Python's gets back to its main loop, though it waits now and then.
//!
//! CPython runs one thread of a process at a time. A thread that spins hands the interpreter's lock over when another one asks for it, and waits to have it
//! back: from outside that is a wait like any other, and would end its burst each time. So a breakpoint counts how often the thread comes
//! out of the call by which its events come in ([`Points::events`]). Owns: that breakpoint, one a thread, on suspicion only: it is there from the
//! first look in which the thread used [`BUSY`] and waited, until it is no suspect any more. One that comes out of its call very often has
//! it in one look of [`REST`] and some, for it is paid each time. Where there are no breakpoints to be had a wait ends a burst as for everybody else.

use crate::old::learn::Points;
use crate::old::proc::Call;
use orbit_inspect::Maps;
use orbit_linux::perf::{Access, Counter, Kind};

/// CPU time between two looks, ns, that makes a thread a suspect.
const BUSY: u64 = 10_000_000;
/// Times that it may come out of its call from one look to the next and keep the breakpoint: a hundredth of that time.
const CHEAP: u64 = 150;
/// Looks without a breakpoint after one in which it came out more often, and where there can be none.
const REST: u32 = 16;
/// Looks until a program that has no interpreter is asked again.
const NATIVE: u32 = 1024;

/// What is known of one thread.
#[derive(Debug, Default)]
pub(crate) struct Passes {
    counter: Option<Counting>,
    /// Looks until there may be a breakpoint (again).
    rest: u32,
    /// It is a thread of Python's, and whether it came back is not known of the last look.
    unsure: bool,
}

/// Counts how often a thread comes out of a call.
#[derive(Debug)]
struct Counting {
    counter: Counter,
    nr: i64,
    pc: u64,
    /// The count at the last look.
    seen: u64,
}

impl Counting {
    /// Counts from now on, if the call is known and there is a breakpoint to be had.
    fn of(tid: i32, points: &Points) -> Option<Counting> {
        let (nr, pc) = points.events()?;
        let kind = Kind::Breakpoint { addr: pc as usize, len: 1, access: Access::Execute };
        let counter = Counter::open_thread(tid, kind).ok()?;
        Some(Counting { counter, nr, pc, seen: 0 })
    }
}

/// What a thread's waits since the last look say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// They ended its burst.
    Back,
    /// It did not come back to its loop: the burst goes on.
    Away,
    /// Not known: the burst is to be forgotten, for it may be a part of a hang.
    Unsure,
}

impl Passes {
    /// Whether its passes are counted.
    pub(crate) fn counted(&self) -> bool {
        self.counter.is_some()
    }

    /// Whether it has come back to its loop since the last look: it came out of its call, or sleeps in it. Nothing if that is not counted.
    pub(crate) fn came_back(&self, call: Option<&Call>) -> Option<bool> {
        let c = self.counter.as_ref()?;
        Some(c.counter.read() > c.seen || call.is_some_and(|of| of.is(c.nr, c.pc)))
    }

    /// It has waited, and used so much CPU time, since the last look.
    pub(crate) fn waited(&mut self, (pid, tid): (i32, i32), points: &Points, ran: u64, call: Option<&Call>) -> Waits {
        match self.came_back(call) {
            Some(false) => return Waits::Away,
            Some(true) => {
                let costly = self.counter.as_mut().is_some_and(|c| {
                    let passes = c.counter.read().saturating_sub(c.seen);
                    c.seen += passes;
                    passes > CHEAP
                });
                if costly {
                    self.counter = None;
                    self.rest = REST;
                }
                return Waits::Back;
            }
            None if self.rest > 0 => self.rest -= 1,
            None if ran >= BUSY && points.events().is_some() => {
                self.unsure = has_python(pid);
                self.counter = self.unsure.then(|| Counting::of(tid, points)).flatten();
                self.rest = match (&self.counter, self.unsure) {
                    (Some(_), _) => 0,
                    (None, true) => REST,
                    (None, false) => NATIVE,
                };
            }
            None => {}
        }
        if self.unsure { Waits::Unsure } else { Waits::Back }
    }

    /// It is told to spin: what it came out of before says nothing of whether it gets back. Another thread may not have asked for the interpreter's
    /// lock so far, and do so from now on.
    pub(crate) fn begin_anew(&mut self, (pid, tid): (i32, i32), points: &Points) {
        match &mut self.counter {
            Some(c) => c.seen = c.counter.read(),
            none => *none = has_python(pid).then(|| Counting::of(tid, points)).flatten(),
        }
    }

    /// It is no suspect any more.
    pub(crate) fn let_go(&mut self) {
        self.counter = None;
    }
}

/// Whether there is an interpreter in the process; one may come later, as a plug-in.
pub(crate) fn has_python(pid: i32) -> bool {
    let of_python = |path: &str| path.rsplit('/').next().is_some_and(|file| file.contains("python"));
    Maps::of(pid).is_ok_and(|maps| maps.iter().any(|m| m.exec && of_python(&m.path)))
}
