//! The copier: a one-shot copy of main that holds the state of a call by the kernel's
//! copy-on-write, and writes it into the replicas when it is the call's turn, while main continues.
//!
//! It is for calls whose delta is so large that copying it would delay main longer than a clone
//! does. The copier runs no code but this file's: no allocation, no lock, no signal handler of the
//! program's, so it may be made while main has threads in any state. Of main's descriptors it has
//! those of its replicas alone: a file that main closes is closed.

use std::ops::Range;
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
/// orbit has begun that call; without, the orbit is idle and it copies at once. `killed_first`: the
/// kernel kills it before main when it is out of memory, where this process may ask for that.
///
/// # Safety
/// Source ranges are readable and destination ranges writable, shared with the orbit, for as long
/// as the copier lives (its own address space keeps them so).
pub(crate) unsafe fn start(
    parts: &[Part],
    slot: &Slot,
    up: &Up,
    turn: Option<u32>,
    killed_first: bool,
) -> Result<Copier> {
    let main = std::process::id() as i32;
    // A filter may deny it: then a copier that copies would pass for one that has ended.
    process::can_reap().map_err(|denied| Error::system("a copier's end is asked for with wait4", denied))?;
    // A filter may deny it: then a copier could not see main's end, and would outlive it.
    if process::parent() < 0 {
        let denied = std::io::Error::last_os_error();
        return Err(Error::system("a copier needs getppid", denied));
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
        if killed_first {
            let _ = process::be_killed_first();
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

/// Pages written between two checks whether main still lives: 1 MiB, a millisecond at most.
const PAGES_BETWEEN_CHECKS: usize = 256;

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
            if slot.copier.load(Ordering::Acquire) != COPIER_WAITED_FOR {
                process::end(1);
            }
            end_without(main);
            let _ = futex::wait(&up.begun, begun, Some(Duration::from_millis(50)));
        }
    }
    let ask = |file: (RawFd, File), data: bool, from: usize| match file_of(file.0) {
        // The position, which this moves, is nobody's.
        Ok((known, _)) if known == file.1 => {
            stream::next_part(file.0, from as u64, data).map(|found| found.map(|at| at as usize))
        }
        _ => Err(std::io::ErrorKind::NotFound.into()),
    };
    let mut memory = Memory::new(ask);
    for part in parts {
        // SAFETY: the caller's word.
        unsafe { copy_part(part, &mut memory, main) };
    }
    slot.copier.store(COPIER_DONE, Ordering::Release);
    futex::wake(&slot.copier, i32::MAX);
    process::end(0)
}

/// Ends this process if main has ended: what it copies is for nobody then. The parent changes.
fn end_without(main: i32) {
    if process::parent() != main {
        process::end(1);
    }
}

/// Where the file of a replica has memory, as far as it was asked for. To find the end of a file's
/// memory the kernel walks every page of it, so one answer serves all runs of pages in it.
struct Memory<A> {
    ask: A,
    file: Option<(RawFd, File)>,
    /// Bytes that all have memory.
    data: Range<usize>,
    /// Bytes that have none.
    hole: Range<usize>,
}

impl<A: FnMut((RawFd, File), bool, usize) -> std::io::Result<Option<usize>>> Memory<A> {
    /// `ask` answers where the next byte with memory is, or the next without, from a place on.
    fn new(ask: A) -> Memory<A> {
        Memory { ask, file: None, data: 0..0, hole: 0..0 }
    }

    /// Whether the byte `at` of this file has memory, and up to where that is so. Where it cannot
    /// be known, all of it has.
    fn at(&mut self, file: (RawFd, File), at: usize) -> (bool, usize) {
        if self.file != Some(file) {
            (self.file, self.data, self.hole) = (Some(file), 0..0, 0..0);
        }
        if !self.data.contains(&at) && !self.hole.contains(&at) {
            match (self.ask)(file, true, at) {
                Ok(Some(begins)) if begins <= at => {
                    let ends = (self.ask)(file, false, at).ok().flatten().unwrap_or(usize::MAX);
                    self.data = at..ends.max(at + PAGE);
                }
                Ok(begins) => self.hole = at..begins.unwrap_or(usize::MAX),
                Err(_) => self.data = at..usize::MAX,
            }
        }
        if self.data.contains(&at) { (true, self.data.end) } else { (false, self.hole.end) }
    }
}

/// Copies a part. Where the replica has no page yet, pages of zeros are left out: memory that
/// nobody touched costs none there. Ends if main does.
///
/// # Safety
/// As for [`start`].
unsafe fn copy_part<A>(part: &Part, memory: &mut Memory<A>, main: i32)
where
    A: FnMut((RawFd, File), bool, usize) -> std::io::Result<Option<usize>>,
{
    let (bytes, start) = (part.pages.bytes(PAGE_BYTES).get(), part.at.get());
    let mut at = 0;
    while at < bytes {
        end_without(main);
        let (has_memory, until) = memory.at((part.replica, part.file), start + at);
        let end = (until - start).min(bytes).min(at + PAGES_BETWEEN_CHECKS * PAGE);
        if has_memory {
            // SAFETY: the caller's word.
            unsafe { std::ptr::copy_nonoverlapping(part.from.add(at), part.to.add(at), end - at) };
            at = end;
        }
        while at < end {
            // SAFETY: the caller's word: both are whole pages.
            unsafe {
                let page = std::slice::from_raw_parts(part.from.add(at).cast::<u64>(), PAGE / size_of::<u64>());
                if page.iter().any(|word| *word != 0) {
                    std::ptr::copy_nonoverlapping(part.from.add(at), part.to.add(at), PAGE);
                }
            }
            at += PAGE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbit_linux::memfd;
    use std::os::fd::{AsFd, AsRawFd};

    /// A file with memory where the bits are set, by page.
    fn file(pages: &[bool]) -> std::os::fd::OwnedFd {
        let fd = memfd::create("holes", pages.len() * PAGE, false).expect("a file");
        for (page, _) in pages.iter().enumerate().filter(|(_, has)| **has) {
            stream::write_all_at(fd.as_fd(), &[1], (page * PAGE) as u64).expect("a byte");
        }
        fd
    }

    /// How often the kernel was asked to say, of each of these pages, whether it has memory; all
    /// answers are checked.
    fn asked_for(has: &[bool], pages: impl Iterator<Item = usize>) -> usize {
        let fd = file(has);
        let known = file_of(fd.as_raw_fd()).expect("a file").0;
        let mut asked = 0;
        let mut memory = Memory::new(|file: (RawFd, File), data, from: usize| {
            asked += 1;
            stream::next_part(file.0, from as u64, data).map(|found| found.map(|at| at as usize))
        });
        for page in pages {
            let (found, until) = memory.at((fd.as_raw_fd(), known), page * PAGE);
            let end = (until / PAGE).min(has.len());
            assert!(end > page && has[page..end].iter().all(|has| *has == found), "page {page} to {end}");
        }
        asked
    }

    #[test]
    fn thousands_of_runs_ask_no_oftener_than_there_are_holes() {
        assert_eq!(asked_for(&[true; 2000], (0..2000).step_by(2)), 2, "an answer serves every run in it");
        assert_eq!(asked_for(&[false; 2000], (0..2000).step_by(2)), 1);
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..50 {
            let has: Vec<bool> = (0..64)
                .map(|_| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    random >> 61 != 0
                })
                .collect();
            let changes = 1 + has.windows(2).filter(|two| two[0] != two[1]).count();
            let asked = asked_for(&has, (0..64).filter(|page| page % 3 != 1));
            assert!(asked <= 2 * changes, "{asked} questions about {changes} pieces");
        }
    }

    #[test]
    fn a_file_that_cannot_be_asked_has_memory_everywhere() {
        let known = file_of(file(&[false]).as_raw_fd()).expect("a file").0;
        let mut memory = Memory::new(|_, _, _| Err(std::io::ErrorKind::NotFound.into()));
        assert_eq!(memory.at((-1, known), 7 * PAGE), (true, usize::MAX));
    }
}
