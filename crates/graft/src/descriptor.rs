//! Descriptors: out of the program, and into it.
//!
//! Into it they go by a message over a socket pair that is made in the program: that needs no path, no common `/proc` and no right of the
//! program over this process.

use crate::denial::explain;
use crate::process::Process;
use crate::stub::Undo;
use crate::{Error, Stopped};
use orbit_linux::{pidfd, socket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

impl Process {
    /// Returns a descriptor of ours, close-on-exec, for the open file behind a descriptor of the program. It needs not be stopped.
    /// Position and status flags of the file are common.
    ///
    /// # Errors
    /// [`Error::Io`] with `EBADF` if the program has no such descriptor; [`Error::NotPermitted`], [`Error::Gone`].
    pub fn duplicate(&self, number: i32) -> Result<OwnedFd, Error> {
        pidfd::duplicate(self.handle(), number)
            .map_err(|e| explain(self.pid(), self.pid(), "duplicating a descriptor of", e))
    }
}

fn closing(number: i32) -> Undo {
    Undo { number: libc::SYS_close, arguments: [number as u64, 0] }
}

/// Offsets in the scratch page: the ends of the pair, the message header, its one part, that part, the control message.
const ENDS: u64 = 0;
const HEADER: u64 = 64;
const PART: u64 = 128;
const BYTE: u64 = 160;
const CONTROL: u64 = 192;
/// Bytes of a control message with one descriptor.
const CONTROL_LEN: u64 = 24;

impl Stopped<'_> {
    /// Runs a call that returns a descriptor in the program, and takes that over: it is ours then, close-on-exec, and closed there.
    ///
    /// # Errors
    /// Those of [`Stopped::call`] and [`Process::duplicate`].
    pub fn take_from(&mut self, number: i64, arguments: [u64; 6]) -> Result<OwnedFd, Error> {
        let theirs = self.call(number, arguments)? as i32;
        self.note_undo(closing(theirs))?;
        let ours = self.process().duplicate(theirs);
        self.close(theirs)?;
        ours
    }

    /// Gives the program a duplicate of a descriptor of ours, close-on-exec, and returns its number there.
    ///
    /// It is closed when the program is released, unless it is [left](Stopped::leave_descriptor).
    ///
    /// # Errors
    /// Those of [`Stopped::call`]: [`Error::Call`] with `EMFILE` when the program's limit of descriptors is reached.
    pub fn send(&mut self, file: BorrowedFd<'_>) -> Result<i32, Error> {
        let scratch = self.scratch()?;
        let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as u64;
        self.call(libc::SYS_socketpair, [libc::AF_UNIX as u64, kind, 0, scratch + ENDS, 0, 0])?;
        let ends: [u8; 8] = self.bytes(scratch + ENDS)?;
        let [a, b] = [0, 4].map(|i| i32::from_ne_bytes([ends[i], ends[i + 1], ends[i + 2], ends[i + 3]]));
        self.note_undo(closing(a))?;
        self.note_undo(closing(b))?;
        let received = self.receive(scratch, file, a, b);
        self.close(a)?;
        self.close(b)?;
        received
    }

    /// Sends `file` into `a` from here, and receives it from `b` there.
    fn receive(&mut self, scratch: u64, file: BorrowedFd<'_>, a: i32, b: i32) -> Result<i32, Error> {
        let ours = self.process().duplicate(a)?;
        socket::send_now(ours.as_fd(), b"f", &[file])
            .map_err(|e| Error::of(self.pid(), "sending a descriptor to", e))?;
        // struct iovec, then struct msghdr: name and its length, parts and their number, control message and its length, flags.
        self.write(scratch + PART, &words([scratch + BYTE, 1]))?;
        self.write(scratch + HEADER, &words([0, 0, scratch + PART, 1, scratch + CONTROL, CONTROL_LEN, 0]))?;
        let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64;
        self.call(libc::SYS_recvmsg, [b as u64, scratch + HEADER, flags, 0, 0, 0])?;
        // struct cmsghdr (its length, level and type), then the number.
        let control: [u8; CONTROL_LEN as usize] = self.bytes(scratch + CONTROL)?;
        let truncated = i32::from_ne_bytes(self.bytes(scratch + HEADER + 48)?) & libc::MSG_CTRUNC != 0;
        if truncated || control[0] != 20 {
            return Err(Error::Call { number: libc::SYS_recvmsg, errno: libc::EMFILE });
        }
        let number = i32::from_ne_bytes([control[16], control[17], control[18], control[19]]);
        self.note_undo(closing(number))?;
        Ok(number)
    }

    /// A descriptor that was sent stays open in the program.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn leave_descriptor(&mut self, number: i32) -> Result<(), Error> {
        self.strike_undo(closing(number))
    }

    /// Closes a descriptor of the program.
    ///
    /// # Errors
    /// Those of [`Stopped::call`].
    pub fn close(&mut self, number: i32) -> Result<(), Error> {
        self.call(libc::SYS_close, [number as u64, 0, 0, 0, 0, 0])?;
        self.strike_undo(closing(number))
    }

    fn bytes<const N: usize>(&self, address: u64) -> Result<[u8; N], Error> {
        let mut bytes = [0u8; N];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }
}

/// Words as they lie in memory.
fn words<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
