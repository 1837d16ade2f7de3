//! Time limits of calls that the kernel does not continue after a stop.
//!
//! `epoll_wait` and its like end early for any stop and are made again, with their whole time
//! limit. A program that is stopped more often than that would wait for ever. So it is remembered,
//! over the stops of one [`Process`](crate::Process), since when a thread has waited in the same
//! call without a break; once that is as long as the limit, the call returns as it does at its
//! limit.
//!
//! That a thread never left its call between two stops is known from how often it ran: once to fall
//! asleep again, once to be stopped.

use crate::Process;
use libc::user_regs_struct;
use orbit_linux::sched;
use std::time::{Duration, Instant};

/// A wait in a call with a time limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// What tells one call from another: number, arguments, program counter, stack pointer.
    call: [u64; 9],
    since: Instant,
    /// How often the thread had run when it was released.
    runs: u64,
}

/// How often a waiting thread runs between two stops.
const RUNS: u64 = 2;

/// A call that ended early for a stop, if it has a time limit: the limit, and what the call returns
/// then.
pub(crate) fn limit(process: &Process, registers: &user_regs_struct) -> Option<(Duration, i64)> {
    const AGAIN: i64 = -(libc::EAGAIN as i64);
    let (place, result) = match registers.orig_rax as i64 {
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => {
            let milliseconds = u64::try_from(registers.r10 as i32).ok()?;
            return Some((Duration::from_millis(milliseconds), 0));
        }
        libc::SYS_epoll_pwait2 => (registers.r10, 0),
        libc::SYS_io_getevents => (registers.r8, 0),
        libc::SYS_semtimedop => (registers.r10, AGAIN),
        libc::SYS_rt_sigtimedwait => (registers.rdx, AGAIN),
        _ => return None,
    };
    let mut time = [0u8; 16];
    (place != 0 && process.read(place, &mut time).is_ok()).then_some(())?;
    let [seconds, nanoseconds] = [0, 8].map(|at| time[at..at + 8].try_into().map(i64::from_ne_bytes).ok());
    let whole = Duration::from_secs(seconds?.try_into().ok()?);
    Some((whole + Duration::from_nanos(nanoseconds?.clamp(0, 999_999_999) as u64), result))
}

/// What is known of a thread that was found in such a call: since when it waits there.
pub(crate) fn waits(before: Option<&Wait>, registers: &user_regs_struct, runs: u64) -> Wait {
    let r = registers;
    let call = [r.orig_rax, r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9, r.rip, r.rsp];
    let same = before.filter(|before| before.call == call && runs == before.runs + RUNS);
    Wait { call, since: same.map_or_else(Instant::now, |before| before.since), runs }
}

impl Wait {
    /// Whether it has waited as long as that.
    pub(crate) fn is_over(&self, limit: Duration) -> bool {
        self.since.elapsed() >= limit
    }

    /// To be called when the thread is released.
    pub(crate) fn released(&mut self, pid: i32, tid: i32) {
        self.runs = runs(pid, tid);
    }
}

/// How often a thread has run; 0 where the kernel does not say.
pub(crate) fn runs(pid: i32, tid: i32) -> u64 {
    sched::schedstat(pid, tid).map_or(0, |kept| kept.slices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unbroken_wait_counts() {
        // SAFETY: all-zero bytes are a value of this struct of integers.
        let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
        registers.rsp = 100;
        let mut first = waits(None, &registers, 7);
        first.since -= Duration::from_secs(5);
        let over =
            |registers: &user_regs_struct, runs| waits(Some(&first), registers, runs).is_over(Duration::from_secs(4));
        assert!(over(&registers, 9));
        assert!(!over(&registers, 10), "it ran meanwhile");
        registers.rsp = 200;
        assert!(!over(&registers, 9), "another call");
    }
}
