//! Waiting for many descriptors by one: `epoll`, for reading.

use crate::{Support, check_int};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Events that one wait reports at most.
pub const MAX_EVENTS: usize = 64;

/// A set of descriptors, each under a number of the caller's. May be shared by threads.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// Makes an empty set, close-on-exec.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: no pointers are passed.
        let fd = check_int(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the kernel just made this descriptor for us.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Adds a descriptor: `token` is reported while it is readable.
    ///
    /// # Errors
    /// `EEXIST` if it is in the set, `EPERM` for a file that cannot be waited for, `ENOSPC` at the
    /// user's limit of watches.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.add_raw(fd.as_raw_fd(), token)
    }

    /// The same, by number. A number that is no open descriptor is an error.
    ///
    /// # Errors
    /// As [`Epoll::add`]; `EBADF`.
    pub fn add_raw(&self, fd: RawFd, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        // SAFETY: the event is live for the call; the kernel copies it.
        check_int(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) }).map(|_| ())
    }

    /// Adds a descriptor whose changes are reported once each: it became readable again, or has a
    /// priority event (pressure triggers, changed attributes).
    ///
    /// # Errors
    /// As [`Epoll::add`].
    pub fn add_edges(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let events = (libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLET) as u32;
        let mut event = libc::epoll_event { events, u64: token };
        let (set, fd) = (self.0.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: the event is live for the call; the kernel copies it.
        check_int(unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) }).map(|_| ())
    }

    /// Takes a descriptor out; one that is not in the set, or is closed, is no error.
    pub fn remove(&self, fd: RawFd) {
        // SAFETY: removing takes no event; a null pointer is allowed since Linux 2.6.9.
        unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    /// Waits for `timeout_ms` at most (-1: indefinitely, 0: not at all) and puts the tokens of
    /// readable descriptors, [`MAX_EVENTS`] at most, into `ready` in place of what was there. None
    /// where the time is over or a signal came.
    pub fn wait(&self, timeout_ms: i32, ready: &mut Vec<u64>) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MAX_EVENTS];
        // SAFETY: the kernel writes at most as many events as the array holds.
        let n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), MAX_EVENTS as i32, timeout_ms) };
        ready.clear();
        ready.extend(events[..n.max(0) as usize].iter().map(|event| event.u64));
    }
}

/// Adds an event counter to a set and waits for it.
pub fn probe() -> Support {
    use std::os::fd::AsFd;
    let tried = (|| {
        let (set, counter) = (Epoll::new()?, crate::eventfd::create()?);
        set.add(counter.as_fd(), 7)?;
        crate::eventfd::signal(counter.as_fd());
        let mut ready = Vec::new();
        set.wait(0, &mut ready);
        if ready == [7] { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EIO)) }
    })();
    Support::from_result("epoll", tried, |_| String::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventfd;
    use std::os::fd::AsFd;

    #[test]
    fn a_descriptor_is_reported_while_it_is_readable_and_in_the_set() {
        let (set, counter) = (Epoll::new().expect("a set"), eventfd::create().expect("a counter"));
        let mut ready = vec![1];
        set.add(counter.as_fd(), 9).expect("added");
        assert_eq!(set.add(counter.as_fd(), 9).map_err(|e| e.raw_os_error()), Err(Some(libc::EEXIST)));
        set.wait(0, &mut ready);
        assert!(ready.is_empty());
        eventfd::signal(counter.as_fd());
        for _ in 0..2 {
            set.wait(-1, &mut ready);
            assert_eq!(ready, [9], "level-triggered");
        }
        set.remove(counter.as_raw_fd());
        set.remove(counter.as_raw_fd());
        set.wait(0, &mut ready);
        assert!(ready.is_empty());
    }
}
