//! The modes of a terminal: saved, and put back.

use crate::check_int;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The modes of a terminal, as `tcgetattr(3)` has them.
#[derive(Clone, Copy)]
pub struct Modes(libc::termios);

impl Modes {
    /// The modes of a terminal now.
    ///
    /// # Errors
    /// `ENOTTY` for what is no terminal.
    pub fn of(terminal: BorrowedFd<'_>) -> io::Result<Modes> {
        let mut modes = MaybeUninit::uninit();
        // SAFETY: the modes are written to a live local.
        check_int(unsafe { libc::tcgetattr(terminal.as_raw_fd(), modes.as_mut_ptr()) })?;
        // SAFETY: the call above has filled it in.
        Ok(Modes(unsafe { modes.assume_init() }))
    }

    /// Gives a terminal these modes at once. Async-signal-safe.
    ///
    /// # Errors
    /// `ENOTTY` for what is no terminal, `EINTR`, `EIO` for a background process.
    pub fn set(&self, terminal: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: the modes are live and only read.
        check_int(unsafe { libc::tcsetattr(terminal.as_raw_fd(), libc::TCSANOW, &raw const self.0) }).map(|_| ())
    }
}
