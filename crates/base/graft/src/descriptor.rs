//! Descriptors: out of the program, and into it.
//!
//! Into it they go by a message over a socket pair that is made in the program: that needs no path,
//! no common `/proc` and no right of the program over this process.

use crate::denial::{Denial, explain};
use crate::process::Process;
use crate::stub::{Makes, Undo};
use crate::{Error, Stopped};
use orbit_linux::{pidfd, socket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

impl Process {
    /// Returns a descriptor of ours, close-on-exec, for the open file behind a descriptor of the
    /// program. It needs not be stopped. Position and status flags of the file are common.
    ///
    /// # Errors
    /// [`Error::Io`] with `EBADF` if the program has no such descriptor; [`Error::NotPermitted`],
    /// [`Error::Gone`].
    pub fn duplicate(&self, number: i32) -> Result<OwnedFd, Error> {
        let what = "duplicating a descriptor of";
        pidfd::duplicate(self.handle(), number).map_err(|e| match explain(self.pid(), self.pid(), what, e) {
            // Traced by us, it is something else that forbids this: a filter without pidfd_getfd,
            // as that of systemd-nspawn.
            Error::Traced { by, .. } if by == std::process::id() as i32 => {
                Error::NotPermitted { pid: self.pid(), what, reason: Denial::Other }
            }
            error => error,
        })
    }
}

/// Offsets in the scratch page: the ends of the pair, the message header, its one part, that part,
/// the control message.
const ENDS: u64 = 0;
const HEADER: u64 = 64;
const PART: u64 = 128;
const BYTE: u64 = 160;
const CONTROL: u64 = 192;
/// Bytes of a control message with one descriptor: length, level and type, the number, and padding.
const CONTROL_LEN: u64 = 24;
/// Where the number is.
const NUMBER: u64 = CONTROL + 16;
/// Where the flags of a received message are in its header.
const FLAGS: u64 = HEADER + 48;

impl Stopped<'_> {
    /// Runs a call that returns a descriptor in the program, and takes that over: it is ours then,
    /// close-on-exec, and closed there.
    ///
    /// # Errors
    /// Those of [`Stopped::call`] and [`Process::duplicate`].
    pub fn take_from(&mut self, number: i64, arguments: [u64; 6]) -> Result<OwnedFd, Error> {
        let theirs = self.call_making(number, arguments, Makes::Descriptor)? as i32;
        let ours = self.process().duplicate(theirs);
        self.close(theirs)?;
        ours
    }

    /// Gives the program a duplicate of a descriptor of ours, close-on-exec, and returns its number
    /// there.
    ///
    /// It is closed when the program is released, unless it is [left](Stopped::leave_descriptor).
    ///
    /// # Errors
    /// Those of [`Stopped::call`]: [`Error::Call`] with `EMFILE` when the program's limit of
    /// descriptors is reached.
    pub fn send(&mut self, file: BorrowedFd<'_>) -> Result<i32, Error> {
        let scratch = self.scratch()?;
        self.has_room_for(3)?;
        let places = [ENDS, ENDS + 4, NUMBER].map(|offset| Undo::CloseAt { address: scratch + offset });
        for place in [ENDS, ENDS + 4, NUMBER] {
            self.write(scratch + place, &(-1i32).to_ne_bytes())?;
        }
        for place in places {
            self.note(place)?;
        }
        let received = self.receive(scratch, file);
        let [a, b, number] = places;
        self.undo_now(a)?;
        self.undo_now(b)?;
        let received = match received {
            Ok(received) => received,
            Err(error) => {
                self.undo_now(number)?;
                return Err(error);
            }
        };
        // The page is used again: from here on the number is known by itself.
        self.undo.push(Undo::Close { number: received });
        self.strike(number)?;
        Ok(received)
    }

    /// Makes the pair in the program, sends `file` into one end from here, and receives it from the
    /// other there.
    fn receive(&mut self, scratch: u64, file: BorrowedFd<'_>) -> Result<i32, Error> {
        let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as u64;
        self.call(libc::SYS_socketpair, [libc::AF_UNIX as u64, kind, 0, scratch + ENDS, 0, 0])?;
        let [a, b] = [self.bytes(scratch + ENDS)?, self.bytes(scratch + ENDS + 4)?].map(i32::from_ne_bytes);
        let ours = self.process().duplicate(a)?;
        socket::send_now(ours.as_fd(), b"f", &[file])
            .map_err(|e| Error::of(self.pid(), "sending a descriptor to", e))?;
        // struct iovec, then struct msghdr: name and its length, parts and their number, control
        // message and its length, flags.
        self.write(scratch + PART, &words([scratch + BYTE, 1]))?;
        self.write(scratch + HEADER, &words([0, 0, scratch + PART, 1, scratch + CONTROL, CONTROL_LEN, 0]))?;
        let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64;
        self.call(libc::SYS_recvmsg, [b as u64, scratch + HEADER, flags, 0, 0, 0])?;
        let truncated = i32::from_ne_bytes(self.bytes(scratch + FLAGS)?) & libc::MSG_CTRUNC != 0;
        match i32::from_ne_bytes(self.bytes(scratch + NUMBER)?) {
            number if number >= 0 && !truncated => Ok(number),
            _ => Err(Error::Call { number: libc::SYS_recvmsg, errno: libc::EMFILE }),
        }
    }

    /// A descriptor that was sent stays open in the program.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn leave_descriptor(&mut self, number: i32) -> Result<(), Error> {
        self.strike(Undo::Close { number })
    }

    /// Closes a descriptor of the program.
    ///
    /// # Errors
    /// Those of [`Stopped::call`].
    pub fn close(&mut self, number: i32) -> Result<(), Error> {
        self.undo_now(Undo::Close { number })
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
