//! Signals that the keeper hands on to the program.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

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
        // SAFETY: a set on the stack, which the calls fill and read.
        let fd = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in FORWARDED {
                libc::sigaddset(&raw mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just made this descriptor for us.
        Ok(Signals { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Those that the program has not got by itself. Does not wait.
    pub fn take(&self) -> Vec<i32> {
        let mut out = Vec::new();
        loop {
            // SAFETY: a structure of integers, for which zeros are a value.
            let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
            let len = size_of::<libc::signalfd_siginfo>();
            // SAFETY: a live local of that size.
            let n = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut info).cast(), len) };
            if n != len as isize {
                return out;
            }
            if info.ssi_code != FROM_TERMINAL {
                out.push(info.ssi_signo as i32);
            }
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
