//! Signals that the keeper hands on to the program.

use orbit_linux::signals;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const FORWARDED: [i32; 7] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2, libc::SIGWINCH];
/// How the terminal sends: to the whole group, so the program has got it too.
const FROM_TERMINAL: i32 = 0x80;

/// Those that ask a program for its end; SIGHUP does where the terminal has gone.
const ASK_FOR_THE_END: [i32; 3] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// Signals that came, read from a descriptor.
pub(crate) struct Signals {
    fd: OwnedFd,
    asked: Cell<Option<i32>>,
}

impl Signals {
    /// From now on they wait here. To be called before there are other threads.
    pub fn catch() -> io::Result<Signals> {
        let set = signals::Set::of(FORWARDED);
        set.block();
        Ok(Signals { fd: set.descriptor(false)?, asked: Cell::new(None) })
    }

    /// Those that the program has not got by itself. Does not wait.
    pub fn take(&self) -> Vec<i32> {
        let mut out = Vec::new();
        while let Ok(info) = signals::next(self.fd.as_fd()) {
            let signal = info.ssi_signo as i32;
            let from_terminal = info.ssi_code == FROM_TERMINAL;
            if ASK_FOR_THE_END.contains(&signal) || (signal == libc::SIGHUP && from_terminal) {
                self.asked.set(self.asked.get().or(Some(signal)));
            }
            if !from_terminal {
                out.push(signal);
            }
        }
        out
    }

    /// The first signal that has asked for the program's end, of those that were taken.
    pub fn asked_to_end(&self) -> Option<i32> {
        self.asked.get()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
