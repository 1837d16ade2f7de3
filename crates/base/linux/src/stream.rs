//! Bytes through a descriptor: pipes, reading, writing, status flags.

use crate::check_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Sets the status flags of an open file (`O_APPEND`, `O_NONBLOCK`), for every process that has a
/// descriptor of it.
///
/// # Errors
/// `EPERM` for a file whose `O_APPEND` cannot be taken away.
pub fn set_flags(fd: BorrowedFd<'_>, flags: i32) -> io::Result<()> {
    // SAFETY: numbers only.
    check_int(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) }).map(|_| ())
}

/// The status flags of an open file.
///
/// # Errors
/// Those of `fcntl`.
pub fn flags(fd: BorrowedFd<'_>) -> io::Result<i32> {
    // SAFETY: numbers only.
    check_int(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })
}

/// Makes a pipe, close-on-exec: its end for reading and its end for writing. `flags`: `O_NONBLOCK`
/// or 0.
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
/// Those of `write(2)`: `EAGAIN` where there is no room and the descriptor does not block, `EPIPE`,
/// `ENOSPC`.
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

/// Reads some bytes of a file from an offset on; 0 at its end. Async-signal-safe.
///
/// # Errors
/// Those of `pread(2)`: `EBADF`, `ESPIPE`, `EIO`.
pub fn read_at(fd: BorrowedFd<'_>, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    loop {
        // SAFETY: the bytes are live for the call, which writes at most as many.
        let n = unsafe { libc::pread(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), offset as libc::off_t) };
        match crate::check(n as libc::c_long) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            read => return read.map(|n| n as usize),
        }
    }
}

/// Bytes that wait to be read; `None` where the object does not know.
pub fn bytes_waiting(fd: BorrowedFd<'_>) -> Option<u64> {
    let mut n = 0i32;
    // SAFETY: FIONREAD writes one int to a live local.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut n) } == 0;
    done.then_some(n.max(0) as u64)
}

/// Sets the offset of an open file, for every process that has a descriptor of it; returns the new
/// offset in bytes.
///
/// # Errors
/// `ESPIPE` for what has no offset, `EINVAL` beyond what the file system takes.
pub fn seek(fd: BorrowedFd<'_>, offset: u64) -> io::Result<u64> {
    let offset = i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: numbers only.
    crate::check(unsafe { libc::lseek(fd.as_raw_fd(), offset, libc::SEEK_SET) }).map(|at| at as u64)
}

/// Where the next bytes with memory (`data`), or the next without, begin in a file, from `offset`
/// on; `None` where there are none. Moves the file's offset. The number of a descriptor, since the
/// caller may not own it. Async-signal-safe.
///
/// # Errors
/// `EBADF`, `ESPIPE`; `EINVAL` where the file system does not know.
pub fn next_part(fd: RawFd, offset: u64, data: bool) -> io::Result<Option<u64>> {
    let offset = i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: numbers only.
    let found = unsafe { libc::lseek(fd, offset, if data { libc::SEEK_DATA } else { libc::SEEK_HOLE }) };
    match crate::check(found) {
        Ok(at) => Ok(Some(at as u64)),
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Writes all of the bytes to a file at an offset. Async-signal-safe.
///
/// # Errors
/// Those of `pwrite(2)`: `EBADF`, `ENOSPC`, `ESPIPE`.
pub fn write_all_at(fd: BorrowedFd<'_>, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the bytes are live for the call and only read.
        let n = unsafe { libc::pwrite(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), offset as libc::off_t) };
        match crate::check(n as libc::c_long) {
            Ok(n) => (bytes, offset) = (&bytes[n as usize..], offset + n as u64),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes to a pipe or stream socket of someone else's without waiting and without SIGPIPE; returns
/// how many bytes had room.
///
/// # Errors
/// `EPIPE` where nothing reads any more, `EAGAIN` where there is no room.
pub fn write_now(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let mut poll = [libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 }];
    crate::poll::poll(&mut poll, Some(std::time::Duration::ZERO))?;
    if poll[0].revents & libc::POLLERR != 0 {
        // Asked first: writing to a pipe without a reader would raise SIGPIPE.
        return Err(io::Error::from_raw_os_error(libc::EPIPE));
    }
    let part = libc::iovec { iov_base: bytes.as_ptr() as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: an all-zero msghdr has no name and no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = ((&raw const part).cast_mut(), 1);
    // SAFETY: `message` and the bytes it points to live for the calls, which only read them. A
    // socket takes the first call; what is none answers ENOTSOCK and takes the second. Neither
    // waits.
    let n = unsafe {
        match libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            -1 if io::Error::last_os_error().raw_os_error() == Some(libc::ENOTSOCK) => {
                libc::pwritev2(fd.as_raw_fd(), &raw const part, 1, -1, libc::RWF_NOWAIT)
            }
            n => n,
        }
    };
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
