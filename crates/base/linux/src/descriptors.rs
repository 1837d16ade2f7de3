//! Numbers of descriptors: which are open, what stands behind one, and how to put something else
//! there.
//!
//! A library in another program shares one table of numbers with it: the program may close any
//! number and open a file of its own under it. [`file_of`] and [`mark`] are what distinguishes the
//! two: the file's device and inode, and, for files that have no inode of their own (event
//! counters, process handles), a mark on the open file itself.

use crate::{Support, check_int, procfs};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Which file a descriptor names: device and inode. All event counters, and on older kernels all
/// process handles, share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File(libc::dev_t, libc::ino_t);

/// The file of this number, and the bytes of memory or disk that it has. Async-signal-safe.
///
/// # Errors
/// `EBADF` when the number is not open.
pub fn file_of(fd: RawFd) -> io::Result<(File, usize)> {
    // By newfstatat, which filters let the library make: `fstat` is another one in newer
    // glibc. And by the bare call: a preloaded library (fakeroot) asks a server of its own for
    // each of libc's, and complains when that is gone before us.
    // SAFETY: an all-zero stat is valid, the path is a string, and nothing else is written.
    let (stat, status) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let status = libc::syscall(libc::SYS_newfstatat, fd, c"".as_ptr(), &raw mut stat, libc::AT_EMPTY_PATH);
        (stat, status as libc::c_int)
    };
    check_int(status)?;
    Ok((File(stat.st_dev, stat.st_ino), stat.st_blocks as usize * 512))
}

/// Type, inode and number of names of the file at a path, as the kernel has them in its cache:
/// never asks a server (NFS, FUSE) that may be gone. `None` where that is not known. Follows links.
pub fn cached(path: &str) -> Option<libc::statx> {
    let path = CString::new(path).ok()?;
    let wanted = libc::STATX_TYPE | libc::STATX_INO | libc::STATX_NLINK;
    // SAFETY: all-zero bytes are a valid statx; path and answer outlive the call.
    unsafe {
        let mut file: libc::statx = std::mem::zeroed();
        let done = libc::statx(libc::AT_FDCWD, path.as_ptr(), libc::AT_STATX_DONT_SYNC, wanted, &raw mut file);
        (done == 0).then_some(file)
    }
}

/// Marks the open file behind a descriptor, for every process that has it: the signal that would be
/// sent if somebody asked for signals (`O_ASYNC`), which nobody does. Answers the mark that it has
/// now. Async-signal-safe.
pub fn set_mark(fd: BorrowedFd<'_>) -> i32 {
    // SAFETY: F_SETSIG takes an integer.
    unsafe { libc::fcntl(fd.as_raw_fd(), F_SETSIG, libc::SIGRTMAX()) };
    mark(fd.as_raw_fd())
}

/// The mark of the open file behind a number: 0 for none, -1 when it is not open.
/// Async-signal-safe.
pub fn mark(fd: RawFd) -> i32 {
    // SAFETY: F_GETSIG takes nothing.
    unsafe { libc::fcntl(fd, F_GETSIG) }
}

/// From `<bits/fcntl-linux.h>`.
const F_SETSIG: libc::c_int = 10;
const F_GETSIG: libc::c_int = 11;

/// The same open file under the lowest free number from `least` on, close-on-exec; where there is
/// none, under the number it has.
pub fn move_up(fd: OwnedFd, least: RawFd) -> OwnedFd {
    if fd.as_raw_fd() >= least {
        return fd;
    }
    // SAFETY: F_DUPFD_CLOEXEC takes an integer.
    let moved = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) };
    if moved < 0 {
        return fd;
    }
    // SAFETY: the kernel just made this descriptor for us; the old one is closed here.
    unsafe { OwnedFd::from_raw_fd(moved) }
}

/// Makes `number` name what `fd` names, whatever it named before. It is inherited by exec only if
/// `inherited`. Async-signal-safe.
///
/// # Errors
/// `EBADF` when the number is beyond the limit of descriptors, `EINVAL` when it is that of `fd`.
pub fn put_at(fd: BorrowedFd<'_>, number: RawFd, inherited: bool) -> io::Result<()> {
    // SAFETY: three integers. That nobody uses what the number named before is the caller's affair,
    // as with close.
    check_int(unsafe { libc::dup3(fd.as_raw_fd(), number, if inherited { 0 } else { libc::O_CLOEXEC }) }).map(|_| ())
}

/// Whether exec hands a descriptor on. Async-signal-safe.
pub fn is_inherited(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: F_GETFD takes nothing.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// Has exec hand a descriptor on, by its number. Async-signal-safe.
///
/// # Errors
/// `EBADF` when it is not open.
pub fn inherit(fd: RawFd) -> io::Result<()> {
    // SAFETY: F_SETFD takes an integer.
    check_int(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }).map(|_| ())
}

/// A descriptor that occupies its number and is good for nothing: reading, writing, mapping,
/// polling, locking and controls fail with `EBADF`, and opening relative to it with `ENOTDIR` where
/// the system has one of the usual files.
///
/// # Errors
/// `EMFILE`, `ENFILE`, and those of opening `/`.
pub fn placeholder() -> io::Result<OwnedFd> {
    let open = |path: &std::ffi::CStr| {
        // SAFETY: a C string that outlives the call.
        check_int(unsafe { libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) })
    };
    let files = [c"/dev/null", c"/proc/self/exe", c"/etc/passwd"];
    let found = files.into_iter().map(open).find(|opened| !is_missing(opened));
    let fd = found.unwrap_or_else(|| open(c"/"))?;
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn is_missing(opened: &io::Result<RawFd>) -> bool {
    let errno = opened.as_ref().err().and_then(io::Error::raw_os_error);
    matches!(errno, Some(libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::ELOOP))
}

/// The numbers that are open in this process, ascending: from `/proc`, or, without it, each number
/// below the limit of descriptors (at most 65,536) tried.
pub fn open_numbers() -> Vec<RawFd> {
    let listed = procfs::own("fd", |path| {
        let names = std::fs::read_dir(path)?.map(|entry| Ok(entry?.file_name()));
        names.collect::<io::Result<Vec<_>>>()
    });
    let mut numbers: Vec<RawFd> = match listed {
        // The directory's own descriptor is among them, and closed by now.
        Ok(names) => names.iter().filter_map(|name| name.to_str()?.parse().ok()).filter(|fd| is_open(*fd)).collect(),
        Err(_) => {
            let allowed = crate::rlimit::get(0, crate::rlimit::Resource::Files).map_or(u64::MAX, |(soft, _)| soft);
            (0..allowed.min(1 << 16) as RawFd).filter(|fd| is_open(*fd)).collect()
        }
    };
    numbers.sort_unstable();
    numbers
}

/// Whether a number is open. Async-signal-safe.
pub fn is_open(fd: RawFd) -> bool {
    // SAFETY: F_GETFD takes nothing.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

/// Closes a number, whatever it names. Async-signal-safe.
///
/// For a fresh child only: a Rust value that owns it must never be dropped afterwards.
pub fn close_number(fd: RawFd) {
    // SAFETY: closing touches no memory; that its owner is gone is the caller's promise.
    unsafe { libc::close(fd) };
}

/// Whether [`keep_only_unshared`] is available (Linux 5.9).
pub fn can_unshare() -> bool {
    // SAFETY: no process has these numbers.
    unsafe { libc::syscall(libc::SYS_close_range, libc::c_uint::MAX, libc::c_uint::MAX, 0) == 0 }
}

/// Gives the calling process a table of descriptors of its own, if it shares one, with nothing in
/// it but `keep`, ascending numbers. Async-signal-safe.
///
/// For a fresh child only: Rust values that own one of the others must never be dropped afterwards.
///
/// # Errors
/// `ENOSYS` before Linux 5.9, `ENOMEM`: then nothing was closed.
pub fn keep_only_unshared(keep: &[RawFd]) -> io::Result<()> {
    const CLOSE_RANGE_UNSHARE: libc::c_uint = 2;
    let close = |first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint| {
        // SAFETY: closing descriptors touches no memory.
        crate::check(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) }).map(|_| ())
    };
    // From the end: what lies above the highest number kept never comes into the new table.
    let (mut last, mut flags) = (libc::c_uint::MAX, CLOSE_RANGE_UNSHARE);
    for number in keep.iter().rev().filter_map(|number| libc::c_uint::try_from(*number).ok()) {
        if number < last {
            close(number + 1, last, flags)?;
            flags = 0;
        }
        if number == 0 {
            return Ok(());
        }
        last = last.min(number - 1);
    }
    close(0, last, flags)
}

/// Occupies a number and reads from it.
pub fn probe() -> Support {
    let tried = placeholder().and_then(|fd| {
        let mut byte = 0u8;
        // SAFETY: one byte of a local.
        match unsafe { libc::read(fd.as_raw_fd(), (&raw mut byte).cast(), 1) } {
            -1 => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    });
    Support::from_result("O_PATH", tried, |_| String::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn errno<T>(result: io::Result<T>) -> Option<i32> {
        result.err().and_then(|e| e.raw_os_error())
    }

    #[test]
    fn a_placeholder_fails_every_use() {
        let fd = placeholder().expect("O_PATH");
        let at = fd.as_raw_fd();
        let (mut byte, mut poll) = (0u8, libc::pollfd { fd: at, events: libc::POLLIN, revents: 0 });
        // SAFETY: calls on this test's own descriptor and locals.
        unsafe {
            assert_eq!(errno(crate::check(libc::read(at, (&raw mut byte).cast(), 1) as i64)), Some(libc::EBADF));
            assert_eq!(errno(crate::check(libc::write(at, (&raw const byte).cast(), 1) as i64)), Some(libc::EBADF));
            assert_eq!(errno(check_int(libc::ftruncate(at, 0))), Some(libc::EBADF));
            assert_eq!(errno(check_int(libc::flock(at, libc::LOCK_EX))), Some(libc::EBADF));
            assert_eq!(errno(check_int(libc::ioctl(at, libc::FIONREAD, &raw mut byte))), Some(libc::EBADF));
            assert_eq!(errno(check_int(libc::openat(at, c"x".as_ptr(), libc::O_RDONLY))), Some(libc::ENOTDIR));
            let page = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_PRIVATE, at, 0);
            assert_eq!(page, libc::MAP_FAILED);
            assert_eq!((libc::poll(&raw mut poll, 1, 0), poll.revents), (1, libc::POLLNVAL));
        }
    }

    #[test]
    fn event_counters_are_distinguished_by_mark() {
        let (ours, theirs) = (crate::eventfd::create().expect("eventfd"), crate::eventfd::create().expect("eventfd"));
        assert_eq!(mark(ours.as_raw_fd()), 0);
        let set = set_mark(ours.as_fd());
        assert!(set > 0);
        assert_eq!((mark(ours.as_raw_fd()), mark(theirs.as_raw_fd()), mark(-1)), (set, 0, -1));
    }

    #[test]
    fn numbers_are_moved_listed_and_replaced() {
        let fd = move_up(crate::eventfd::create().expect("eventfd"), 100);
        assert!(fd.as_raw_fd() >= 100 && is_open(fd.as_raw_fd()) && !is_inherited(fd.as_fd()));
        assert!(open_numbers().contains(&fd.as_raw_fd()));
        let other = placeholder().expect("O_PATH");
        put_at(other.as_fd(), fd.as_raw_fd(), true).expect("dup3");
        assert_eq!(file_of(fd.as_raw_fd()).expect("open").0, file_of(other.as_raw_fd()).expect("open").0);
        assert!(is_inherited(fd.as_fd()));
        let beyond = move_up(other, RawFd::MAX);
        assert!(is_open(beyond.as_raw_fd()), "kept where no number is free");
    }
}
