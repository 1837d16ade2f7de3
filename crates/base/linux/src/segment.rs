//! Shared memory that a program finds by a number, without a descriptor or a path (System V shared
//! memory).
//!
//! A number survives exec, whatever descriptors the program closes. The segment is marked for
//! removal as soon as its maker has attached it: it is gone with the last process that has it, also
//! after `kill -9`.

use crate::{Support, invalid};
use std::io;

/// A segment that this process has attached; detached when dropped.
#[derive(Debug)]
pub struct Segment {
    id: i32,
    address: usize,
    bytes: usize,
}

impl Segment {
    /// Makes a segment of `bytes` zero bytes that only this user can attach, and attaches it.
    /// Memory is charged when it is touched.
    ///
    /// # Errors
    /// `InvalidInput` for 0 bytes, `ENOSPC` and `EINVAL` beyond the system's limits, `ENOSYS` or
    /// `EPERM` where System V shared memory is forbidden.
    pub fn create(bytes: usize) -> io::Result<Segment> {
        if bytes == 0 {
            return Err(invalid("a segment of 0 bytes".into()));
        }
        // SAFETY: makes a new segment; no memory of this process is touched.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, bytes, 0o600 | libc::IPC_CREAT | libc::SHM_NORESERVE) };
        if id == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel picks a free range.
        let at = unsafe { libc::shmat(id, std::ptr::null(), 0) };
        let error = io::Error::last_os_error();
        // SAFETY: the segment is this function's; it stays until the last process has detached it.
        unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
        if at as isize == -1 {
            return Err(error);
        }
        Ok(Segment { id, address: at as usize, bytes })
    }

    /// The number by which other processes of this user attach it.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// Where this process has it. Others may write it at any time.
    pub fn as_ptr(&self) -> *mut u8 {
        self.address as *mut u8
    }

    /// Its size.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never true: a segment has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the range was attached by `create`, and whoever had pointers into it borrowed
        // this value.
        unsafe { libc::shmdt(self.address as *const libc::c_void) };
    }
}

/// Whether segments can be made and attached here.
pub fn probe() -> Support {
    match Segment::create(1) {
        Ok(_) => Support::Yes,
        Err(error) => Support::No(format!("System V shared memory: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_gone_with_its_last_user() {
        let segment = Segment::create(10_000).expect("segment");
        let id = segment.id();
        // SAFETY: the segment is this test's alone.
        unsafe { segment.as_ptr().write(7) };
        drop(segment);
        // SAFETY: attaching picks a free range.
        let at = unsafe { libc::shmat(id, std::ptr::null(), 0) };
        assert_eq!(at as isize, -1, "a removed segment cannot be attached");
    }
}
