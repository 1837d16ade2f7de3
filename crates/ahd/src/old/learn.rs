//! Where a thread usually waits: its main loop, learnt from outside.
//!
//! Owns: the wait points of one thread. A wait point is a system call and the place it is made from. Promises: a thread
//! counts as having a main loop only after it was found asleep at one point in [`ENOUGH`] looks, having run in between, and
//! in half of the looks at least. Refuses: waits that batch programs do before they compute (a file, a pipe, a child).

use crate::old::proc::{Call, Dir, Sched};

/// Looks at one point that make it usual.
pub(crate) const ENOUGH: u32 = 3;
/// Looks until the share of a point is halved, so that old habits fade.
const FADE: u32 = 64;
/// CPU time, ns, below which a thread that is found again in the call it was found in before may have been in it all the while: a signal, or a stop,
/// let it begin anew,
const STIRRED: u64 = 1_000_000;
/// so many times in a row at most: more often it is what it does.
const STIRRED_MOST: u32 = 8;
/// Points kept a thread.
const MAX_POINTS: usize = 8;

/// What a wait point is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Habit {
    /// Events from outside: the loop of a server.
    Events,
    /// Work from other threads: the loop of a worker.
    Pool,
    /// Nothing can be learnt from it.
    Other,
}

#[derive(Clone, Debug)]
struct Point {
    nr: i64,
    pc: u64,
    habit: Habit,
    looks: u32,
}

/// The wait points of one thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Points {
    points: Vec<Point>,
    looks: u32,
    /// Times it had been put on a CPU at the last look: without a change it is the same wait.
    slices: u64,
    last: u64,
    /// The call of the last look, what it had run by then, and for how many looks it was but begun anew.
    call: Option<(Call, u64)>,
    stirred: u32,
}

impl Points {
    /// Whether another look is worth its price now.
    pub(crate) fn wants(&self, slices: u64) -> bool {
        slices != self.slices && (self.looks < 24 || slices.wrapping_sub(self.slices) > 64)
    }

    /// The thread was found asleep in this call.
    pub(crate) fn seen(&mut self, call: &Call, sched: &Sched, dir: &Dir) {
        if sched.slices == self.slices {
            return;
        }
        self.slices = sched.slices;
        if self.began_anew(call, sched.run) {
            self.stirred += 1;
            return;
        }
        self.stirred = 0;
        self.call = Some((*call, sched.run));
        self.looks += 1;
        if self.looks >= FADE {
            self.looks /= 2;
            for p in &mut self.points {
                p.looks /= 2;
            }
            self.points.retain(|p| p.looks > 0);
        }
        self.last = call.pc;
        if let Some(p) = self.points.iter_mut().find(|p| call.is(p.nr, p.pc)) {
            p.looks += 1;
        } else if self.points.len() < MAX_POINTS {
            self.points.push(Point { nr: call.nr, pc: call.pc, habit: habit(call, dir), looks: 1 });
        }
    }

    /// Whether a thread with a loop for its events is away from it in one and the same wait still, as far as can be told.
    fn began_anew(&self, call: &Call, run: u64) -> bool {
        let Some((nr, pc)) = self.events() else { return false };
        let same = self.call.is_some_and(|(last, had)| last.same(call) && run.saturating_sub(had) < STIRRED);
        same && !call.is(nr, pc) && self.stirred < STIRRED_MOST
    }

    /// The exit by which its last burst ended, as far as it was seen.
    pub(crate) fn exit(&self) -> u64 {
        self.last
    }

    /// Its main loop's habit, if it has one.
    pub(crate) fn habit(&self) -> Option<Habit> {
        let usual = |p: &&Point| p.habit != Habit::Other && p.looks >= ENOUGH && 2 * p.looks >= self.looks;
        self.points.iter().filter(usual).max_by_key(|p| p.looks).map(|p| p.habit)
    }

    /// Whether this call is one it usually waits in (from wherever it is made).
    pub(crate) fn waits_in(&self, nr: i64) -> bool {
        self.points.iter().any(|p| p.habit != Habit::Other && same(p.nr, nr))
    }

    /// The place where its events come in, if it has a loop for them.
    pub(crate) fn events(&self) -> Option<(i64, u64)> {
        let usual = |p: &&Point| p.habit == Habit::Events && p.looks >= ENOUGH && 2 * p.looks >= self.looks;
        self.points.iter().find(usual).map(|p| (p.nr, p.pc))
    }

    /// Where it goes on after the calls it usually waits in, the most frequent first.
    pub(crate) fn places(&self) -> Vec<u64> {
        let mut usual: Vec<&Point> = self.points.iter().filter(|p| p.habit != Habit::Other).collect();
        usual.sort_by_key(|p| std::cmp::Reverse(p.looks));
        usual.into_iter().map(|p| p.pc).collect()
    }

    /// Whether this call is the one its events come in by (from wherever it is made).
    pub(crate) fn takes_events(&self, nr: i64) -> bool {
        self.events().is_some_and(|(own, _)| same(own, nr))
    }

    /// Whether it was seen to wait at this place in one look at most.
    pub(crate) fn new_to(&self, call: &Call) -> bool {
        self.points.iter().all(|p| !call.is(p.nr, p.pc) || p.looks <= 1)
    }

    /// Whether it has a main loop, and waits now where it was hardly ever seen to wait.
    pub(crate) fn away(&self, call: &Call) -> bool {
        let usual = |p: &Point| p.habit != Habit::Other && p.looks >= ENOUGH && 2 * p.looks >= self.looks;
        self.points.iter().any(usual) && self.new_to(call)
    }

    /// Whether it usually waits at this very place.
    pub(crate) fn usual(&self, call: &Call) -> bool {
        self.points.iter().any(|p| call.is(p.nr, p.pc) && p.looks >= ENOUGH && 4 * p.looks >= self.looks)
    }
}

/// Calls that stand for one another: a C library may use either.
fn same(a: i64, b: i64) -> bool {
    const TWINS: [&[i64]; 5] = [
        &[libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2],
        &[libc::SYS_poll, libc::SYS_ppoll],
        &[libc::SYS_select, libc::SYS_pselect6],
        &[libc::SYS_accept, libc::SYS_accept4],
        &[libc::SYS_nanosleep, libc::SYS_clock_nanosleep],
    ];
    a == b || TWINS.iter().any(|t| t.contains(&a) && t.contains(&b))
}

/// Whether a server waits in this call for whoever comes: no answer to something it asked for is waited for so.
pub(crate) fn takes_strangers(nr: i64) -> bool {
    matches!(
        nr,
        libc::SYS_accept | libc::SYS_accept4 | libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2
    )
}

/// Whether work comes in by this call, wherever it is made: from whoever connects, or by a signal.
pub(crate) fn takes_work(nr: i64) -> bool {
    takes_strangers(nr)
        || matches!(
            nr,
            libc::SYS_poll
                | libc::SYS_ppoll
                | libc::SYS_select
                | libc::SYS_pselect6
                | libc::SYS_pause
                | libc::SYS_rt_sigsuspend
                | libc::SYS_rt_sigtimedwait
        )
}

fn habit(call: &Call, dir: &Dir) -> Habit {
    match call.nr {
        nr if takes_work(nr) => Habit::Events,
        libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg
        | libc::SYS_nanosleep
        | libc::SYS_clock_nanosleep
        | libc::SYS_io_uring_enter
        | libc::SYS_io_getevents
        | libc::SYS_restart_syscall => Habit::Events,
        libc::SYS_futex | libc::SYS_futex_waitv | libc::SYS_semop | libc::SYS_semtimedop | libc::SYS_msgrcv => {
            Habit::Pool
        }
        // A socket, timer or event counter is a loop's; a pipe, terminal or file may be a batch program's input.
        libc::SYS_read | libc::SYS_readv => match dir.fd(call.args[0]) {
            Some(link) if link.starts_with("socket:") || link.starts_with("anon_inode:") => Habit::Events,
            _ => Habit::Other,
        },
        _ => Habit::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(nr: i64, pc: u64) -> Call {
        Call { nr, args: [0; 6], pc }
    }

    #[test]
    fn a_habit_needs_several_waits_with_runs_between() {
        let dir = Dir::open(std::process::id() as i32).unwrap();
        let mut p = Points::default();
        let had = |slices| Sched { run: slices * 10 * STIRRED, wait: 0, slices };
        for _ in 0..10 {
            p.seen(&call(libc::SYS_epoll_wait, 1), &had(7), &dir);
        }
        assert_eq!(p.habit(), None, "one long wait is no habit");
        p.seen(&call(libc::SYS_epoll_wait, 1), &had(8), &dir);
        p.seen(&call(libc::SYS_epoll_wait, 1), &had(9), &dir);
        assert_eq!(p.habit(), Some(Habit::Events));
        assert!(p.waits_in(libc::SYS_epoll_pwait) && !p.waits_in(libc::SYS_futex));
        assert!(p.usual(&call(libc::SYS_epoll_wait, 1)) && !p.usual(&call(libc::SYS_epoll_wait, 2)));
        let anew = call(libc::SYS_restart_syscall, 1);
        assert!(p.usual(&anew) && !p.away(&anew), "the same wait, which a stop began anew");
        for i in 0..40 {
            p.seen(&call(libc::SYS_wait4, i), &had(10 + i), &dir);
        }
        assert_eq!(p.habit(), None, "it does other things by now");
    }

    #[test]
    fn a_wait_that_a_signal_began_anew_is_as_new_as_before() {
        let dir = Dir::open(std::process::id() as i32).unwrap();
        let (mut p, mut had) = (Points::default(), Sched { run: 0, wait: 0, slices: 0 });
        let mut look = |call: &Call, run: u64| {
            (had.run, had.slices) = (had.run + run, had.slices + 1);
            p.seen(call, &had, &dir);
            (p.away(call), p.new_to(call))
        };
        let (events, pipe) = (call(libc::SYS_epoll_wait, 1), call(libc::SYS_read, 2));
        for _ in 0..4 {
            look(&events, 50_000);
        }
        assert_eq!(look(&pipe, 50_000), (true, true));
        for _ in 0..STIRRED_MOST {
            assert_eq!(look(&pipe, 20_000), (true, true), "a signal came");
        }
        assert_eq!(look(&pipe, 20_000), (false, false), "so often that it is what it does");
        look(&events, 50_000);
        let other = call(libc::SYS_read, 3);
        assert_eq!(look(&other, 50_000), (true, true));
        assert_eq!(look(&other, 2 * STIRRED), (false, false), "it worked meanwhile");
    }
}
