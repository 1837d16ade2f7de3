//! Whether a signal may end a wait: by its handler, which may write a pipe or give word.
//!
//! Owns: what is known of handlers that every runtime has, without the program's doing. Refuses: to guess at one of the program's own.

use crate::old::passes::has_python;
use crate::old::proc::Status;

/// Signals whose handlers run for faults of the thread itself, and none of those waits.
const FAULTS: [i32; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];
/// Signals that runtimes catch for themselves: no write of a thread that waits can break a pipe, and the C library's own wake nobody.
const OF_RUNTIMES: [i32; 3] = [libc::SIGPIPE, 32, 33];

/// What the handlers of a process may do for one that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handlers {
    /// There are none, but for faults.
    None,
    /// Nothing, if they are those that runtimes have.
    OfRuntimes,
    /// They may end its wait.
    MayWake,
}

/// The handlers of a process, for a thread of it that waits at a pipe, or for another one by memory. Python catches SIGINT in every program, and
/// ends the wait of main for it, as if for the end of the program; a pipe is where a program would wait for it.
pub(crate) fn handlers(pid: i32, status: &Status, at_a_pipe: bool) -> Handlers {
    let mask = |signals: &[i32]| signals.iter().fold(0u64, |m, s| m | 1 << (s - 1));
    let caught = status.caught & !mask(&FAULTS);
    match caught & !mask(&OF_RUNTIMES) {
        _ if caught == 0 => Handlers::None,
        0 => Handlers::OfRuntimes,
        left if left == mask(&[libc::SIGINT]) && !at_a_pipe && has_python(pid) => Handlers::OfRuntimes,
        _ => Handlers::MayWake,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_handlers_of_runtimes_wake_nobody() {
        let own = std::process::id() as i32;
        let of = |signals: &[i32]| {
            let caught = signals.iter().fold(0, |m, s| m | 1 << (s - 1));
            handlers(own, &Status { state: b'S', tracer: 0, waits: 0, caught }, false)
        };
        assert_eq!((of(&[]), of(&FAULTS)), (Handlers::None, Handlers::None));
        assert_eq!((of(&[libc::SIGPIPE, 32]), of(&[33, libc::SIGBUS])), (Handlers::OfRuntimes, Handlers::OfRuntimes));
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGALRM, 34, 64] {
            assert_eq!(of(&[libc::SIGSEGV, signal]), Handlers::MayWake, "{signal}, and this is no program of Python's");
        }
    }
}
