//! Where a thread goes to wait for its next work.

use crate::facts::Sight;

/// A place in a program at which work comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Home {
    /// A condition variable or semaphore, by its address in units of 8 bytes: the halves of a
    /// condition variable are one place.
    Futex(u64),
    /// An epoll set, by its descriptor.
    Epoll(i32),
    /// `poll` or `select`, by the place of the call.
    Poll(u64),
    /// `accept`, by the place of the call.
    Accept(u64),
    /// A read, by call, place and descriptor.
    Read(i64, u64, i32),
    /// A wait for a child or a signal, by call and place.
    Call(i64, u64),
}

impl Home {
    /// Whether threads of a process may take turns at it.
    pub fn is_shared(self) -> bool {
        matches!(self, Home::Epoll(_) | Home::Poll(_) | Home::Accept(_))
    }
}

/// The operation of a futex call, without its flags.
pub fn futex_op(sight: &Sight) -> u64 {
    sight.a1 & 127
}

/// Whether the call waits for a lock: its word says "held, and somebody waits".
pub fn waits_for_lock(sight: &Sight) -> bool {
    sight.nr == libc::SYS_futex && matches!(futex_op(sight), 0 | 9) && sight.a2 == 2
}

/// Whether the call waits, as glibc has it, for the end of a thread: at a word that is not private
/// and has the thread's id. Whoever makes threads and waits for them gets no work there.
fn joins(sight: &Sight) -> bool {
    const SHARED_BY_WALL_CLOCK: u64 = (libc::FUTEX_WAIT_BITSET | libc::FUTEX_CLOCK_REALTIME) as u64;
    sight.nr == libc::SYS_futex && sight.a1 == SHARED_BY_WALL_CLOCK && sight.a2 > 2
}

/// Whether the call is one in which work comes in from several places: a holder that waits here
/// holds its lock until there is some.
pub fn serves(sight: &Sight) -> bool {
    takes_events(sight) || waits_for_signal(sight.nr)
}

/// Whether the call is one in which events of descriptors come in.
pub fn takes_events(sight: &Sight) -> bool {
    match sight.nr {
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => true,
        // Of no descriptor at all it is a nap.
        libc::SYS_poll | libc::SYS_ppoll => sight.a1 != 0,
        libc::SYS_select | libc::SYS_pselect6 => sight.a0 != 0,
        libc::SYS_accept | libc::SYS_accept4 => true,
        _ => false,
    }
}

/// Whether the call reads from a descriptor.
pub fn reads(sight: &Sight) -> bool {
    matches!(
        sight.nr,
        libc::SYS_read
            | libc::SYS_pread64
            | libc::SYS_readv
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_preadv
    )
}

/// Whether the call ends by the clock and by nothing else.
pub fn naps(sight: &Sight) -> bool {
    match sight.nr {
        libc::SYS_nanosleep | libc::SYS_clock_nanosleep => true,
        libc::SYS_poll | libc::SYS_ppoll => sight.a1 == 0,
        libc::SYS_select | libc::SYS_pselect6 => sight.a0 == 0,
        _ => false,
    }
}

fn waits_for_signal(nr: i64) -> bool {
    matches!(nr, libc::SYS_pause | libc::SYS_rt_sigpending | libc::SYS_rt_sigtimedwait | libc::SYS_rt_sigsuspend)
}

/// The place a sleeping thread waits at; nothing if no work comes in there: a lock, a join, a time
/// limit, a nap.
pub fn home(sight: &Sight) -> Option<Home> {
    Some(match sight.nr {
        // A wait with a time limit is housekeeping, or Python's lock.
        libc::SYS_futex if waits_for_lock(sight) || sight.a3 != 0 || joins(sight) => return None,
        libc::SYS_futex => Home::Futex(sight.a0 >> 3),
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => Home::Epoll(sight.a0 as i32),
        libc::SYS_poll | libc::SYS_ppoll | libc::SYS_select | libc::SYS_pselect6 if serves(sight) => {
            Home::Poll(sight.pc)
        }
        libc::SYS_accept | libc::SYS_accept4 => Home::Accept(sight.pc),
        _ if reads(sight) => Home::Read(sight.nr, sight.pc, sight.a0 as i32),
        libc::SYS_wait4 | libc::SYS_waitid => Home::Call(sight.nr, sight.pc),
        nr if waits_for_signal(nr) => Home::Call(nr, sight.pc),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_a_nap_and_a_time_limit_are_no_homes() {
        let futex = |a1, a2, a3| Sight { nr: libc::SYS_futex, a0: 0x1004, a1, a2, a3, ..Sight::default() };
        assert_eq!(home(&futex(128, 2, 0)), None);
        assert_eq!(home(&futex(128, 0, 7)), None);
        assert_eq!((home(&futex(9 | 256, 4711, 0)), home(&futex(9 | 256, 0, 0)).is_some()), (None, true), "a join");
        assert_eq!(home(&futex(128, 0, 0)), home(&Sight { a0: 0x1000, ..futex(128, 9, 0) }));
        let poll = |fds| Sight { nr: libc::SYS_poll, a1: fds, pc: 5, ..Sight::default() };
        assert_eq!((home(&poll(0)), home(&poll(1))), (None, Some(Home::Poll(5))));
        assert!(!serves(&poll(0)) && serves(&poll(1)));
    }
}
