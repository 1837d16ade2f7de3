//! The copier: a one-shot copy of main that holds the state of a call by the kernel's
//! copy-on-write, and writes it into the replicas when it is the call's turn, while main continues.
//!
//! It is for calls whose delta is so large that copying it would delay main longer than a clone
//! does. The copier runs no code but this file's: no allocation, no lock, no signal handler of the
//! program's, so it may be made while main has threads in any state. Of main's descriptors it has
//! those of its replicas alone: a file that main closes is closed.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use orbit_linux::descriptors::{self, File, file_of};
use orbit_linux::signals::{self, Blocked};
use orbit_linux::{futex, pidfd, process, stream};

use crate::area::fault;
use crate::channel::{COPIER_DONE, COPIER_GONE, COPIER_WAITED_FOR, Slot, Up};
use crate::error::{Error, Result};
use crate::own::Own;
use crate::page::{PAGE, PAGE_BYTES};
use crate::units::{Bytes, Pages};

/// Pages to copy: `pages` from `from` to `to`, which is `at` bytes into the replica.
pub(crate) struct Part {
    pub from: *const u8,
    pub to: *mut u8,
    pub pages: Pages,
    /// The replica's descriptor, and the file that it should be: main may have closed it.
    pub replica: RawFd,
    pub file: File,
    pub at: Bytes,
}

/// A copier at work, seen from main.
pub(crate) struct Copier {
    pid: i32,
    pidfd: Option<Own>,
    /// Its end was taken: the number may be another process' now.
    reaped: bool,
}

impl Copier {
    /// Ends it at once, whatever it was doing.
    pub fn kill(&self) {
        match &self.pidfd {
            _ if self.reaped => {}
            Some(fd) if fd.fd().is_ok_and(|fd| pidfd::send_signal(fd, libc::SIGKILL).is_ok()) => {}
            // A child of this process that it has not reaped, so the number is its own.
            _ => drop(signals::send(self.pid, libc::SIGKILL)),
        }
    }

    /// Takes its end, if it has come; true if so.
    pub fn reap(&mut self) -> bool {
        if !self.reaped {
            // Nothing else waits for it: its exit signal is 0.
            self.reaped = process::reap_any(self.pid);
        }
        self.reaped
    }

    /// If it ended before it was done, as by the kernel for want of memory, the orbit learns not
    /// to wait for it.
    pub fn give_up_if_dead(&mut self, slot: &Slot) {
        if self.reap()
            && slot.copier.compare_exchange(COPIER_WAITED_FOR, COPIER_GONE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            futex::wake(&slot.copier, i32::MAX);
        }
    }
}

/// Clones main as a copier of these parts for this slot's call. With `turn`, it waits until the
/// orbit has begun that call; without, the orbit is idle and it copies at once.
///
/// # Safety
/// Source ranges are readable and destination ranges writable, shared with the orbit, for as long
/// as the copier lives (its own address space keeps them so).
pub(crate) unsafe fn start(parts: &[Part], slot: &Slot, up: &Up, turn: Option<u32>) -> Result<Copier> {
    let main = std::process::id() as i32;
    // A filter may deny it: then a copier that copies would pass for one that has ended.
    process::can_reap().map_err(|denied| Error::system("a copier's end is asked for with wait4", denied))?;
    // A filter may deny it: then a copier that waits could not see main's end.
    if turn.is_some() && process::parent() < 0 {
        let denied = std::io::Error::last_os_error();
        return Err(Error::system("a copier that waits for its turn needs getppid", denied));
    }
    let mut keep: Vec<RawFd> = parts.iter().map(|part| part.replica).filter(|number| *number >= 0).collect();
    keep.sort_unstable();
    keep.dedup();
    // Then main's files are never the copier's, not even until it runs: a thread that waits for
    // the end of one that main closes sees it at once.
    let shares = descriptors::can_unshare();
    // The program's handlers are main's: one that ran in the copier could do anything, and do it
    // twice.
    let blocked = Blocked::all();
    // SAFETY: the child runs the lines below and `copy`, which allocate nothing and take no lock,
    // and closes nothing of a table that it shares.
    let forked = fault::check()
        .and_then(|()| unsafe { if shares { process::raw_fork_sharing_descriptors(0) } else { process::raw_fork(0) } });
    if let Ok(None) = forked {
        if !shares {
            process::close_all_but(&keep);
        } else if descriptors::keep_only_unshared(&keep).is_err() {
            // No memory for a table of its own. The orbit learns not to wait.
            process::end(1);
        }
        // SAFETY: the caller's word on the ranges.
        unsafe { copy(parts, slot, up, turn, main) }
    }
    drop(blocked);
    match forked {
        Err(e) => Err(Error::system("cloning main to hold a large snapshot", e)),
        Ok(child) => {
            let child = child.expect("main, as the copier does not come here");
            // Without a handle its number will do: it is this process' to reap.
            let pidfd = child.pidfd.and_then(|fd| Own::new(fd).ok());
            Ok(Copier { pid: child.pid, pidfd, reaped: false })
        }
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
            // The parent changes when main ends.
            if process::parent() != main || slot.copier.load(Ordering::Acquire) != COPIER_WAITED_FOR {
                process::end(1);
            }
            let _ = futex::wait(&up.begun, begun, Some(Duration::from_millis(50)));
        }
    }
    for part in parts {
        // SAFETY: the caller's word.
        unsafe { copy_part(part) };
    }
    slot.copier.store(COPIER_DONE, Ordering::Release);
    futex::wake(&slot.copier, i32::MAX);
    process::end(0)
}

/// Copies a part. Where the replica has no page yet, pages of zeros are left out: memory that
/// nobody touched costs none there.
///
/// # Safety
/// As for [`start`].
unsafe fn copy_part(part: &Part) {
    let (bytes, start) = (part.pages.bytes(PAGE_BYTES).get(), part.at.get());
    let known = file_of(part.replica).is_ok_and(|(file, _)| file == part.file);
    // Where the next page with memory is, or the next without, from `from` on.
    let next = |data: bool, from: usize| {
        // The position, which this moves, is nobody's.
        match stream::next_part(part.replica, (start + from) as u64, data) {
            Ok(Some(found)) => (found as usize).saturating_sub(start).clamp(from, bytes),
            Ok(None) => bytes,
            // Where it cannot be known, all of it has.
            Err(_) => {
                if data {
                    from
                } else {
                    bytes
                }
            }
        }
    };
    let mut at = 0;
    while at < bytes {
        let data = if known { next(true, at) } else { at };
        while at < data {
            // SAFETY: the caller's word: both are whole pages.
            unsafe {
                let page = std::slice::from_raw_parts(part.from.add(at).cast::<u64>(), PAGE / size_of::<u64>());
                if page.iter().any(|word| *word != 0) {
                    std::ptr::copy_nonoverlapping(part.from.add(at), part.to.add(at), PAGE);
                }
            }
            at += PAGE;
        }
        let hole = if known && at < bytes { next(false, at).max(at + PAGE).min(bytes) } else { bytes };
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(part.from.add(at), part.to.add(at), hole - at) };
        at = hole;
    }
}
