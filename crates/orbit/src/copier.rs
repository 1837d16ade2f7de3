//! The copier: a one-shot copy of main that holds the state of a call by the kernel's copy-on-write, and writes it into
//! the replicas when it is the call's turn, while main goes on.
//!
//! It is for calls whose delta is so large that copying it would hold main up longer than a clone does. The copier runs
//! no code but this file's: no allocation, no lock, so it may be made while main has threads in any state.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use orbit_linux::{futex, pidfd, process};

use crate::area::fault;
use crate::channel::{COPIER_DONE, COPIER_WAITED_FOR, Slot, Up};
use crate::error::{Error, Result};
use crate::log::PAGE;

/// Pages to copy: `pages` from `from` to `to`.
pub(crate) struct Part {
    pub from: *const u8,
    pub to: *mut u8,
    pub pages: usize,
}

/// A copier at work, seen from main.
pub(crate) struct Copier {
    pub pid: i32,
    pub pidfd: Option<OwnedFd>,
}

impl Copier {
    /// Ends it at once, whatever it was doing.
    pub fn kill(&self) {
        match &self.pidfd {
            Some(fd) => {
                let _ = pidfd::send_signal(fd.as_fd(), libc::SIGKILL);
            }
            // SAFETY: a child of this process that it has not reaped, so the number is its own.
            None => unsafe {
                libc::kill(self.pid, libc::SIGKILL);
            },
        }
    }

    /// Takes its end, if it has come; true if so.
    pub fn reap(&self) -> bool {
        // SAFETY: a child of this process that nobody else waits for (its exit signal is 0).
        let pid = unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL | libc::WNOHANG) };
        pid != 0
    }
}

/// Clones main as a copier of these parts for this slot's call. With `turn`, it waits until the orbit has begun that
/// call; without, the orbit is idle and it copies at once.
///
/// # Safety
/// Source ranges are readable and destination ranges writable, shared with the orbit, for as long as the copier lives
/// (its own address space keeps them so).
pub(crate) unsafe fn start(parts: &[Part], slot: &Slot, up: &Up, turn: Option<u32>) -> Result<Copier> {
    let main = std::process::id() as i32;
    // SAFETY: the child runs `copy` only, which allocates nothing and takes no lock.
    match fault::check().and_then(|()| unsafe { process::raw_fork(0) }) {
        Err(e) => Err(Error::system("cloning main to hold a large snapshot", e)),
        Ok(Some(child)) => Ok(Copier { pid: child.pid, pidfd: child.pidfd }),
        // SAFETY: the caller's word on the ranges.
        Ok(None) => unsafe { copy(parts, slot, up, turn, main) },
    }
}

/// The copier's life.
///
/// # Safety
/// As for [`start`].
unsafe fn copy(parts: &[Part], slot: &Slot, up: &Up, turn: Option<u32>, main: i32) -> ! {
    if let Some(call) = turn {
        loop {
            let begun = up.begun.load(Ordering::Acquire);
            if begun == call.wrapping_add(1) {
                break;
            }
            // SAFETY: plain calls; the parent changes when main ends.
            unsafe {
                if libc::getppid() != main || slot.copier.load(Ordering::Acquire) != COPIER_WAITED_FOR {
                    libc::_exit(1);
                }
            }
            let _ = futex::wait(&up.begun, begun, Some(Duration::from_millis(50)));
        }
    }
    for part in parts {
        // SAFETY: the caller's word; both ranges are whole pages.
        unsafe { std::ptr::copy_nonoverlapping(part.from, part.to, part.pages * PAGE) };
    }
    slot.copier.store(COPIER_DONE, Ordering::Release);
    futex::wake(&slot.copier, i32::MAX);
    // SAFETY: ends this process without running the program's exit handlers.
    unsafe { libc::_exit(0) }
}
