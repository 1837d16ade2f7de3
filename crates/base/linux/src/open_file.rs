//! State of open files that a duplicate of the descriptor gives access to: whoever restores another
//! process' files works on these.

use crate::{check, check_int};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Whether descriptor `fd` of process `pid` is the open file behind `ours`, not only the same file.
///
/// # Errors
/// `EBADF`, `EPERM`, `ESRCH`; `ENOSYS` from a kernel without `kcmp`.
pub fn is_same(ours: BorrowedFd<'_>, pid: i32, fd: i32) -> io::Result<bool> {
    compare((std::process::id() as i32, ours.as_raw_fd()), (pid, fd))
}

/// Whether two descriptors of a process are one open file.
///
/// # Errors
/// As [`is_same`].
pub fn are_one(pid: i32, a: i32, b: i32) -> io::Result<bool> {
    compare((pid, a), (pid, b))
}

fn compare(a: (i32, i32), b: (i32, i32)) -> io::Result<bool> {
    const KCMP_FILE: libc::c_int = 0;
    // SAFETY: integers only.
    check(unsafe { libc::syscall(libc::SYS_kcmp, a.0, b.0, KCMP_FILE, a.1 as libc::c_ulong, b.1 as libc::c_ulong) })
        .map(|order| order == 0)
}

/// Sets the flags that `F_SETFL` can change: `O_APPEND`, `O_ASYNC`, `O_DIRECT`, `O_NOATIME`,
/// `O_NONBLOCK`.
///
/// # Errors
/// `EPERM`, `EINVAL` for what the file does not support.
pub fn set_flags(file: BorrowedFd<'_>, flags: i32) -> io::Result<()> {
    // SAFETY: integers only.
    check_int(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) }).map(|_| ())
}

/// Sets a timer that is a descriptor: remaining time (zero: it is disarmed), interval, and how
/// often it counts as expired.
///
/// # Errors
/// `EINVAL` if it is none; `ENOTTY` for expirations from a kernel without
/// `CONFIG_CHECKPOINT_RESTORE`.
pub fn set_timer(file: BorrowedFd<'_>, remaining: Duration, interval: Duration, expired: u64) -> io::Result<()> {
    const SET_TICKS: libc::c_ulong = 0x4008_5400;
    let spec =
        libc::itimerspec { it_interval: crate::futex::timespec(interval), it_value: crate::futex::timespec(remaining) };
    // SAFETY: the struct outlives the call; the former setting is not asked for.
    check_int(unsafe { libc::timerfd_settime(file.as_raw_fd(), 0, &raw const spec, std::ptr::null_mut()) })?;
    if expired > 0 {
        // SAFETY: the kernel reads eight bytes of a live local.
        check_int(unsafe { libc::ioctl(file.as_raw_fd(), SET_TICKS, &raw const expired) })?;
    }
    Ok(())
}

/// Sets the signals that a signal descriptor reports, bit 0 for signal 1.
///
/// # Errors
/// `EINVAL` if it is none.
pub fn set_signals(file: BorrowedFd<'_>, mask: u64) -> io::Result<()> {
    // SAFETY: the kernel reads eight bytes of a live local.
    check(unsafe { libc::syscall(libc::SYS_signalfd4, file.as_raw_fd(), &raw const mask, size_of::<u64>(), 0) })
        .map(|_| ())
}

/// Bytes that wait in a pipe, a terminal or a socket.
///
/// # Errors
/// `ENOTTY`.
pub fn waiting(file: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes an integer to a live local.
    check_int(unsafe { libc::ioctl(file.as_raw_fd(), libc::FIONREAD, &raw mut bytes) })?;
    Ok(bytes.max(0) as usize)
}

/// Makes `to` hold what the pipe `from` holds, `bytes` at most, which stays in `from`. Does not
/// wait. Returns how many bytes.
///
/// # Errors
/// `EINVAL` if one is no pipe, `EAGAIN`.
pub fn tee(from: BorrowedFd<'_>, to: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
    // SAFETY: integers only.
    let n = check(unsafe { libc::tee(from.as_raw_fd(), to.as_raw_fd(), bytes, libc::SPLICE_F_NONBLOCK) as i64 })?;
    Ok(n as usize)
}

/// Makes a pipe, close-on-exec and non-blocking, that holds at least `bytes`: read end, write end.
///
/// # Errors
/// `EMFILE`, `EPERM` beyond the user's limit.
pub fn pipe(bytes: usize) -> io::Result<(std::os::fd::OwnedFd, std::os::fd::OwnedFd)> {
    use std::os::fd::{FromRawFd, OwnedFd};
    let mut ends = [0; 2];
    // SAFETY: two integers are written to a live array.
    check_int(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) })?;
    // SAFETY: the kernel just made these descriptors for us.
    let (read, write) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    // SAFETY: integers only.
    check_int(unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, bytes as libc::c_int) })?;
    Ok((read, write))
}

/// What holds a lock on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The open file, whole (`flock`).
    Flock,
    /// The open file, a range (`F_OFD_SETLK`).
    OpenFile,
}

/// Sets or takes away a lock that belongs to the open file. `write`: exclusive; `None`: unlock.
/// `start` and `len` (0: to the end) are of ranges. Does not wait.
///
/// # Errors
/// `EWOULDBLOCK` or `EAGAIN` if another holder has it.
pub fn set_lock(file: BorrowedFd<'_>, owner: Owner, write: Option<bool>, start: i64, len: i64) -> io::Result<()> {
    match owner {
        Owner::Flock => {
            let kind = match write {
                None => libc::LOCK_UN,
                Some(true) => libc::LOCK_EX,
                Some(false) => libc::LOCK_SH,
            };
            // SAFETY: integers only.
            check_int(unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) }).map(|_| ())
        }
        Owner::OpenFile => {
            // SAFETY: a structure of integers, for which zeros are a value.
            let mut lock: libc::flock = unsafe { std::mem::zeroed() };
            let kind = match write {
                None => libc::F_UNLCK,
                Some(true) => libc::F_WRLCK,
                Some(false) => libc::F_RDLCK,
            };
            (lock.l_type, lock.l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
            (lock.l_start, lock.l_len) = (start, len);
            // SAFETY: the struct outlives the call.
            check_int(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }).map(|_| ())
        }
    }
}

/// Settings of a terminal as the kernel's `struct termios` has them, in words; `None` for what is
/// none.
pub fn terminal(file: BorrowedFd<'_>) -> Option<[u64; 5]> {
    let mut words = [0u64; 5];
    // SAFETY: TCGETS writes the kernel's struct, 36 bytes, to a live local of 40.
    check_int(unsafe { libc::ioctl(file.as_raw_fd(), libc::TCGETS, words.as_mut_ptr()) }).ok().map(|_| words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    #[test]
    fn an_open_file_is_distinguished_from_another_of_the_same_name() {
        let me = std::process::id() as i32;
        let (a, b) = (File::open("/dev/null").expect("open"), File::open("/dev/null").expect("open"));
        let copy = a.try_clone().expect("dup");
        let Ok(same) = are_one(me, a.as_raw_fd(), copy.as_raw_fd()) else {
            println!("SKIP: needs kcmp");
            return;
        };
        assert!(same);
        assert!(!is_same(a.as_fd(), me, b.as_raw_fd()).expect("kcmp"));
    }

    #[test]
    fn what_a_pipe_holds_is_copied_and_stays() {
        let (read, write) = pipe(4096).expect("a pipe");
        let (copy_read, copy_write) = pipe(4096).expect("a pipe");
        File::from(write.try_clone().expect("dup")).write_all(b"held").expect("room");
        assert_eq!(waiting(read.as_fd()).expect("a pipe"), 4);
        assert_eq!(tee(read.as_fd(), copy_write.as_fd(), 100).expect("tee"), 4);
        for end in [read, copy_read] {
            let mut bytes = [0; 4];
            File::from(end).read_exact(&mut bytes).expect("four bytes");
            assert_eq!(&bytes, b"held");
        }
    }
}
