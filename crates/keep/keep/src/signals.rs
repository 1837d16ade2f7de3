//! Signals that the keeper hands on to the program.

use orbit_linux::signals;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const FORWARDED: [i32; 7] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2, libc::SIGWINCH];
/// How the terminal sends: to the whole group, so the program has got it too.
const FROM_TERMINAL: i32 = 0x80;

/// Signals that came, read from a descriptor.
pub(crate) struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// From now on they wait here. To be called before there are other threads.
    pub fn catch() -> io::Result<Signals> {
        let set = signals::Set::of(FORWARDED);
        set.block();
        Ok(Signals { fd: set.descriptor(false)? })
    }

    /// Those that the program has not got by itself. Does not wait.
    pub fn take(&self) -> Vec<i32> {
        let mut out = Vec::new();
        while let Ok(info) = signals::next(self.fd.as_fd()) {
            if info.ssi_code != FROM_TERMINAL {
                out.push(info.ssi_signo as i32);
            }
        }
        out
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
