//! Whether a thread that runs is in its own code or inside the kernel, without stopping it: a stop
//! ends some calls early.
//!
//! Owns: a clock of the thread's (`perf_event_open`) for one sample, whose ticks say where they met
//! it. Where there is none available, the times that the kernel counts for the thread in either
//! mode: coarse, and a guess at the ticks of the processor. Promises: the thread is not disturbed
//! beyond the clock's interrupts; ends once the thread had the CPU time asked for, and at the
//! latest after 400 ms.

use super::stop::{Copied, copy};
use super::unwind::Regs;
use crate::waits::Seen;
use crate::{Maps, procfs};
use orbit_linux::clock::monotonic_ns;
use orbit_linux::perf::{Tick, Ticks};
use orbit_linux::sched;
use orbit_linux::stat::Stat;
use std::time::{Duration, Instant};

/// Wall time after which a thread that got too little CPU is given up.
pub(super) const MAX_WALL_TIME: Duration = Duration::from_millis(400);
/// CPU time between two ticks of the clock, ns.
const NS_BETWEEN_TICKS: u64 = 50_000;
/// CPU time after which a thread is inside the kernel that no tick met in its own code, where ticks
/// inside the kernel are not shown.
const KERNEL_AFTER_CPU: Duration = Duration::from_millis(20);
/// A tick says where the thread is for so long, ns: of wall time, or of the thread's CPU time. One
/// alone does not do: wall time counts what the observer itself takes on the thread's CPU, and CPU
/// time of a thread that runs is asked of its CPU by an interrupt, which takes longer than this in
/// some virtual machines.
const MAX_TICK_AGE_NS: u64 = 20_000;
/// So many ticks in a row in its own code, each at most [`MAX_NS_BETWEEN_OWN_TICKS`] after the one
/// before, show that a thread is not between two calls.
const OWN_TICKS_IN_A_ROW: u32 = 3;
/// Nanoseconds between two such ticks.
const MAX_NS_BETWEEN_OWN_TICKS: u64 = 4 * NS_BETWEEN_TICKS;
/// So many ticks in a row inside the kernel at most, over all the CPU time asked for, show that its
/// calls are short ones: to stop it between two of them cuts none short that had much to do.
const MAX_KERNEL_TICKS_IN_A_ROW: u32 = 40;
/// One tick in so many in its own code, over twice the CPU time asked for, is as good as none.
const FEW_OWN_TICKS_DIVISOR: u64 = 10;
/// For so long ticks are waited for without sleeping, so that they are fresh.
const POLL_WITHOUT_SLEEP: Duration = Duration::from_millis(2);
/// Sleep between two polls, as a part of the time since the first, and at most. The observer may
/// share a CPU with the thread and others: each wake-up then takes the CPU from the thread, which
/// gets it back only after those, so that frequent polls leave it no ticks in a row.
const SLEEP_DIVISOR: u32 = 16;
const MAX_SLEEP: Duration = Duration::from_millis(1);
/// Samples of a thread that entered another call while its stack was copied, at most.
const MAX_SAMPLES: u32 = 3;
/// Where the kernel counts by its own ticks: so many of them (10 ms each) in one mode distinguish
/// it from the other.
const OWN_TICKS: u64 = 2;
const KERNEL_TICKS: u64 = 3;

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In its own code, some microseconds ago: met there three times in a row, or between calls
    /// that are all short.
    Own,
    /// Inside the kernel, and not in its own code once in all the CPU time asked for, or hardly
    /// ever in twice that.
    Kernel,
    /// It does not run, or has ended.
    Asleep,
    /// It got too little CPU for an answer.
    Unknown,
}

/// Where a thread is that had so much CPU time since the call. Blocks until it had, 400 ms at most;
/// where it is in its own code, for some 200 us mostly. Whoever stops it then drops the clock
/// afterwards: to take it away takes as long as the thread may need to enter a call.
pub fn place(tid: i32, cpu: Duration) -> (Place, Clock) {
    let mut clock = Clock::of(tid);
    (sample(tid, cpu, &mut clock, |_| (), &mut None), clock)
}

/// The same, and registers and stack of a thread that is inside the kernel, as it entered there.
/// Nothing where ticks inside the kernel are not shown (without CAP_PERFMON, where
/// `kernel.perf_event_paranoid` is 2 or more). Of one that got too little CPU: the registers of the
/// last tick in its own code, and the stack as it is now.
pub(crate) fn with_stack(pid: i32, tid: i32, cpu: Duration, maps: &Maps) -> (Place, Option<Copied>, Clock) {
    let mut clock = Clock::of(tid);
    let (mut place, mut copied, mut sure): (_, Option<Copied>, _) = (Place::Unknown, None, false);
    let mut met = None;
    for _ in 0..MAX_SAMPLES {
        let inside = |regs: Regs| {
            // The stack is that of these registers if they are the same before and after it was
            // copied.
            if copied.as_ref().is_some_and(|c| c.regs == regs) {
                sure = true;
                return;
            }
            let (base, stack) = copy(pid, regs.sp(), maps);
            copied = Some(Copied { regs, base, stack, stopped: Duration::ZERO, vectors: None });
            sure = false;
        };
        place = sample(tid, cpu, &mut clock, inside, &mut met);
        if sure || copied.is_none() || place != Place::Kernel {
            break;
        }
    }
    if place == Place::Unknown {
        let of_tick = met.map(|regs: Regs| {
            let (base, stack) = copy(pid, regs.sp(), maps);
            Copied { regs, base, stack, stopped: Duration::ZERO, vectors: None }
        });
        return (place, of_tick, clock);
    }
    (place, copied.filter(|_| sure && place == Place::Kernel), clock)
}

/// `inside` gets the registers of each tick inside the kernel, `met_own` those of the last one in
/// the thread's own code.
fn sample(
    tid: i32,
    cpu: Duration,
    clock: &mut Clock,
    mut inside: impl FnMut(Regs),
    met_own: &mut Option<Regs>,
) -> Place {
    let start = Instant::now();
    let Some(before) = run(tid) else {
        return Place::Asleep;
    };
    let times = clock.0.is_none().then(|| times(tid)).flatten();
    let (mut met, mut own_at) = (false, Duration::ZERO);
    let (mut row, mut last) = (0, 0);
    let (mut ticks, mut own_ticks, mut inside_row, mut longest) = (0u64, 0u64, 0, 0);
    let mut polls = 0u32;
    while start.elapsed() < MAX_WALL_TIME {
        let mut own = false;
        let mut newest = None;
        while let Some(tick) = clock.0.as_mut().and_then(Ticks::next_tick) {
            ticks += 1;
            own_ticks += u64::from(tick.own);
            inside_row = if tick.own { 0 } else { inside_row + 1 };
            newest = Some(tick);
            longest = inside_row.max(longest);
            if !tick.own {
                (met, row) = (true, 0);
                if let Some(registers) = tick.registers {
                    inside(Regs(registers.map(Some)));
                }
                continue;
            }
            *met_own = tick.registers.map(|registers| Regs(registers.map(Some))).or(met_own.take());
            row = if tick.ns.saturating_sub(last) <= MAX_NS_BETWEEN_OWN_TICKS { row + 1 } else { 1 };
            (last, own) = (tick.ns, true);
        }
        let short =
            longest > 0 && longest <= MAX_KERNEL_TICKS_IN_A_ROW && ticks * NS_BETWEEN_TICKS >= cpu.as_nanos() as u64;
        if let Some(tick) = newest.filter(|tick| tick.own && (row >= OWN_TICKS_IN_A_ROW || short)) {
            // Asleep it has no CPU time either.
            if sleeps(tid) {
                return Place::Asleep;
            }
            if clock.is_fresh(&tick) {
                return Place::Own;
            }
        }
        polls += 1;
        let eager = clock.0.is_some() && start.elapsed() < POLL_WITHOUT_SLEEP;
        if eager && !own && !polls.is_multiple_of(64) {
            std::thread::yield_now();
            continue;
        }
        let Some(ran) = run(tid).map(|now| Duration::from_nanos(now.saturating_sub(before))) else {
            return Place::Asleep;
        };
        if own {
            (own_at, met) = (ran, false);
        }
        let since = ran.saturating_sub(own_at);
        if let Some((own, kernel)) = times {
            let Some(now) = self::times(tid) else {
                return Place::Asleep;
            };
            if now.0.saturating_sub(own) >= OWN_TICKS {
                return Place::Own;
            }
            if now.1.saturating_sub(kernel) >= KERNEL_TICKS && ran >= cpu {
                return Place::Kernel;
            }
        } else if since >= cpu && met
            || since >= cpu.max(KERNEL_AFTER_CPU)
            || ticks * NS_BETWEEN_TICKS >= 2 * cpu.as_nanos() as u64 && own_ticks * FEW_OWN_TICKS_DIVISOR < ticks
        {
            return Place::Kernel;
        }
        if sleeps(tid) {
            return Place::Asleep;
        }
        if !eager {
            let sleep = (start.elapsed() / SLEEP_DIVISOR).min(MAX_SLEEP);
            std::thread::sleep(sleep.max(Duration::from_nanos(NS_BETWEEN_TICKS)));
        }
    }
    Place::Unknown
}

/// Whether a thread sleeps inside a call.
fn sleeps(tid: i32) -> bool {
    let line = procfs::text(&format!("/proc/{tid}/task/{tid}/syscall"), 512).unwrap_or_default();
    Seen::parse(line.as_bytes()).is_some_and(|seen| seen != Seen::Running)
}

/// CPU time of a thread, ns.
fn run(tid: i32) -> Option<u64> {
    Some(sched::schedstat(tid, tid).ok()?.run_ns)
}

/// CPU time of a thread in its own code and inside the kernel, in ticks.
fn times(tid: i32) -> Option<(u64, u64)> {
    let stat = Stat::of_thread(tid, tid).ok()?;
    Some((stat.user_ticks, stat.system_ticks))
}

/// A clock of one thread's, where there is one available.
#[derive(Debug)]
pub struct Clock(Option<Ticks>);

impl Clock {
    fn of(tid: i32) -> Clock {
        Clock(Ticks::open(tid, NS_BETWEEN_TICKS, true).or_else(|_| Ticks::open(tid, NS_BETWEEN_TICKS, false)).ok())
    }

    /// Whether the thread has hardly run since the tick.
    fn is_fresh(&self, tick: &Tick) -> bool {
        let has_run_little = |ran: u64| ran.saturating_sub(tick.ran_ns) < MAX_TICK_AGE_NS;
        monotonic_ns().saturating_sub(tick.ns) < MAX_TICK_AGE_NS
            || self.0.as_ref().and_then(Ticks::ran_ns).is_some_and(has_run_little)
    }
}
