//! Bytes through a descriptor: pipes, reading, writing, status flags.

use crate::check_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Sets the status flags of an open file (`O_APPEND`, `O_NONBLOCK`), for everybody who has a descriptor of it.
///
/// # Errors
/// `EPERM` for a file whose `O_APPEND` cannot be taken away.
pub fn set_flags(fd: BorrowedFd<'_>, flags: i32) -> io::Result<()> {
    // SAFETY: numbers only.
    check_int(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) }).map(|_| ())
}

/// Makes a pipe, close-on-exec: its end for reading and its end for writing. `flags`: `O_NONBLOCK` or 0.
///
/// # Errors
/// `EMFILE`, `ENFILE`.
pub fn pipe(flags: i32) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: two descriptors are written to the array.
    check_int(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | flags) })?;
    // SAFETY: the kernel just made these for us.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Writes some of the bytes, as many as there is room for; returns how many. Async-signal-safe.
///
/// # Errors
/// Those of `write(2)`: `EAGAIN` where there is no room and the descriptor does not block, `EPIPE`, `ENOSPC`.
pub fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the bytes are live for the call and only read.
    let n = unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    crate::check(n as libc::c_long).map(|n| n as usize)
}

/// Reads some bytes, as many as there are and fit; 0 at the end. Async-signal-safe.
///
/// # Errors
/// Those of `read(2)`: `EAGAIN` where there are none and the descriptor does not block, `EINTR`.
pub fn read(fd: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the bytes are live for the call, which writes at most as many.
    let n = unsafe { libc::read(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
    crate::check(n as libc::c_long).map(|n| n as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    #[test]
    fn a_pipe_waits_or_does_not_as_its_flags_say() {
        let (reader, writer) = pipe(libc::O_NONBLOCK).expect("a pipe");
        let (mut reader, mut writer) = (File::from(reader), File::from(writer));
        let mut byte = [0];
        assert_eq!(reader.read(&mut byte).map_err(|e| e.kind()), Err(io::ErrorKind::WouldBlock));
        set_flags(reader.as_fd(), 0).expect("flags");
        let late = std::thread::spawn(move || writer.write_all(b"x"));
        reader.read_exact(&mut byte).expect("waits");
        assert!(late.join().expect("a thread").is_ok() && byte == *b"x");
    }
}
