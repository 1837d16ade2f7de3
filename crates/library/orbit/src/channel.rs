//! The two pieces of memory that main and one orbit share.
//!
//! *Down* is written by main alone: the orbit maps it read-only from a descriptor sealed against
//! writing. It holds the queue of calls and the log. *Up* is written by the orbit: how far it has
//! come, what its calls returned, the updates it pushed, and the black box. Main reads a word of
//! *up* once, checks it, and never follows it anywhere.
//!
//! Counters of calls are `u32` and wrap; a call's slot is its number modulo the number of slots, a
//! power of two.
//!
//! ```text
//! completed <= begun <= submitted      (as the orbit ought to have it; main checks completed <= submitted)
//! submitted - completed <= SLOTS
//! ```

use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};

use orbit_linux::map::Mapping;
use orbit_linux::{eventfd, futex, memfd};

use crate::blackbox::BlackBox;
use crate::error::{Error, Result};
use crate::own::Own;
use crate::shared::Shared;
use crate::wire::{Identity, bytes_of};

/// Calls that may wait in one orbit's queue, the running one included.
pub(crate) const SLOTS: u32 = 256;
/// Arguments up to this size travel in the slot; longer ones in the log.
pub(crate) const INLINE_ARGS: usize = 192;
/// Bytes of the ring that carries updates from the orbit.
pub(crate) const PUSH_BYTES: usize = 256 * 1024;
/// Where the log begins in *down*.
const LOG_OFFSET: usize = size_of::<Down>().next_multiple_of(4096);

/// A call as the orbit reads it. Main writes a slot before it raises [`Down::submitted`] over it,
/// and never again until the call is completed or taken back, except for `state` and `copier`.
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// [`READY`], [`ASKED`] or [`CANCELLED`]. Writer: main, at any time.
    pub state: AtomicU32,
    /// [`COPIER_NONE`], [`COPIER_WAITED_FOR`], [`COPIER_DONE`], [`COPIER_GONE`]; a futex the orbit
    /// sleeps on. Writer: main, and the copier, a child of main.
    pub copier: AtomicU32,
    /// The number of this call. Writer: main.
    pub call: AtomicU32,
    /// Bytes of arguments. Writer: main.
    pub args_len: AtomicU32,
    /// Address of the function to run. Writer: main.
    pub function: AtomicU64,
    /// The part of the log that belongs to this call. Writer: main.
    pub log_start: AtomicU64,
    /// End of that part. Writer: main.
    pub log_end: AtomicU64,
    /// Replicas that wait in the orbit's socket, in one message or more, to be mapped before this
    /// call. Writer: main.
    pub attach: AtomicU32,
    /// Keeps the size even.
    pub reserved: AtomicU32,
    /// CLOCK_MONOTONIC when the call was made, nanoseconds. Writer: main.
    pub submitted_ns: AtomicU64,
    /// The arguments, if they are no longer than [`INLINE_ARGS`]. Writer: main.
    pub args: [AtomicU8; INLINE_ARGS],
}

pub(crate) const READY: u32 = 1;
pub(crate) const CANCELLED: u32 = 2;
/// Main is about to see whether the call can still be cancelled: the orbit, if it has begun it,
/// waits for the answer.
pub(crate) const ASKED: u32 = 3;

pub(crate) const COPIER_NONE: u32 = 0;
pub(crate) const COPIER_WAITED_FOR: u32 = 1;
pub(crate) const COPIER_DONE: u32 = 2;
/// It ended before it was done.
pub(crate) const COPIER_GONE: u32 = 3;

/// The process that has this channel waits for its identity.
pub(crate) const UNBORN: u32 = 0;
/// [`Down::identity`] is set.
pub(crate) const BORN: u32 = 1;
/// It gets another channel instead, by its socket.
pub(crate) const MOVED: u32 = 2;
/// 64-bit words that hold an [`Identity`].
const IDENTITY_WORDS: usize = size_of::<Identity>() / 8;

/// What main sends one orbit. Writer of everything here: main.
#[repr(C, align(64))]
pub(crate) struct Down {
    /// [`UNBORN`], [`BORN`] or [`MOVED`]. A futex the process sleeps on.
    pub born: AtomicU32,
    /// The process' identity. Written before `born` is raised.
    identity: [AtomicU64; IDENTITY_WORDS],
    /// Calls handed over so far. Lower than before when main takes back some that have not begun. A
    /// futex the orbit sleeps on.
    pub submitted: AtomicU32,
    /// Threads of main that sleep on [`Up::completed`].
    pub waiters: AtomicU32,
    /// Not 0 while main wants the orbit's eventfd signalled at the end of each call.
    pub notify: AtomicU32,
    /// Not 0 while the orbit may poll for calls a while before it sleeps.
    pub spin_us: AtomicU32,
    /// Bytes of updates main has taken. A futex the orbit sleeps on when [`Up::pushed`] is a ring
    /// ahead.
    pub pulled: AtomicU32,
    pub slots: [Slot; SLOTS as usize],
}

/// How a call ended, as the orbit says.
#[repr(C, align(32))]
pub(crate) struct Ending {
    /// The call's number. Writer: orbit.
    pub call: AtomicU32,
    /// [`ENDED_RETURNED`] or [`ENDED_SKIPPED`] or [`ENDED_NO_IMAGE`]. Writer: orbit.
    pub kind: AtomicU32,
    /// What the function returned. Writer: orbit.
    pub value: AtomicI64,
    /// CLOCK_MONOTONIC when it ended, nanoseconds. Writer: orbit.
    pub at: AtomicU64,
}

pub(crate) const ENDED_RETURNED: u32 = 1;
/// The call was cancelled before it began.
pub(crate) const ENDED_SKIPPED: u32 = 2;
/// The copier that held the call's snapshot died.
pub(crate) const ENDED_NO_IMAGE: u32 = 3;

/// What the orbit sends main. Writer of everything here: the orbit. Nothing of it may be trusted.
#[repr(C, align(64))]
pub(crate) struct Up {
    /// Calls ended so far. A futex that main's callers sleep on.
    pub completed: AtomicU32,
    /// Calls begun so far (the number of the running call plus one); one less again if main takes
    /// that call back just then. A futex that copiers sleep on.
    pub begun: AtomicU32,
    /// Not 0 while the orbit sleeps, or is about to, on [`Down::submitted`].
    pub asleep: AtomicU32,
    /// 1 when the init function has returned and the orbit takes calls.
    pub ready: AtomicU32,
    /// 1 when the limits that the process was given with its identity hold.
    pub limited: AtomicU32,
    /// Bytes of updates the orbit has put into the ring, counted without end.
    pub pushed: AtomicU32,
    /// Not 0 while the orbit sleeps, or is about to, on [`Down::pulled`].
    pub push_waits: AtomicU32,
    /// Threads that the last call has left, for which the process ends; see
    /// [`crate::left_threads`].
    pub left_threads: AtomicU32,
    pub endings: [Ending; SLOTS as usize],
    pub black_box: BlackBox,
    /// The ring of updates, in words: pieces are multiples of 8 bytes.
    pub push: [AtomicU64; PUSH_BYTES / 8],
}

impl Down {
    /// Main: gives the process its identity, and wakes it if it waits for that.
    pub fn give_identity(&self, identity: &Identity) {
        let bytes = bytes_of(identity);
        for (word, bytes) in self.identity.iter().zip(bytes.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(eight), Ordering::Relaxed);
        }
        self.set_born(BORN);
    }

    /// Main: changes `born`, and wakes the process if it waits for that.
    pub fn set_born(&self, born: u32) {
        self.born.store(born, Ordering::Release);
        futex::wake(&self.born, 1);
    }

    /// Orbit: sleeps until main has said whether this process is somebody; `None` if it gets
    /// another channel.
    pub fn wait_for_identity(&self) -> Option<Identity> {
        loop {
            match self.born.load(Ordering::Acquire) {
                UNBORN => {
                    let _ = futex::wait(&self.born, UNBORN, None);
                }
                BORN => break,
                _ => return None,
            }
        }
        let mut words = [0; IDENTITY_WORDS];
        for (to, from) in words.iter_mut().zip(&self.identity) {
            *to = from.load(Ordering::Relaxed);
        }
        // SAFETY: main wrote the words of an Identity, a struct of integers of as many bytes,
        // before it raised `born`.
        Some(unsafe { words.as_ptr().cast::<Identity>().read_unaligned() })
    }
}

/// Main's hold on *down*, the only one that can write it.
#[repr(C)]
pub(crate) struct DownSide {
    mapping: Shared,
    log_bytes: usize,
    fd: Own,
}

impl DownSide {
    /// Makes the memory with a log of `log_bytes` (a power of two). It has no pages yet: see
    /// [`DownSide::populate`].
    pub fn create(log_bytes: usize) -> Result<DownSide> {
        let len = LOG_OFFSET + log_bytes;
        let fd = memfd::create("orbit-down", len, true).map_err(|e| Error::system("memory for a queue of calls", e))?;
        let mapping = Shared::map(fd.as_fd(), len).map_err(|e| Error::system("mapping a queue of calls", e))?;
        memfd::seal_future_write(fd.as_fd()).map_err(|e| Error::system("sealing a queue of calls", e))?;
        let fd = Own::new(fd).map_err(|e| Error::system("keeping a queue of calls", e))?;
        Ok(DownSide { fd, mapping, log_bytes })
    }

    /// The descriptor that the orbit is given.
    ///
    /// # Errors
    /// The program has closed it.
    pub fn fd(&self) -> std::io::Result<BorrowedFd<'_>> {
        self.fd.fd()
    }

    pub fn log_bytes(&self) -> usize {
        self.log_bytes
    }

    /// Gives the memory its pages, so that no call pays for them: 4 us each, which is why it is
    /// done ahead of need or by the supervisor. Where the kernel cannot (before 5.14), calls pay as
    /// they come to new pages.
    pub fn populate(&self) {
        populate(&self.mapping, self.mapping.len());
    }

    /// Where the log lies in main.
    pub fn log(&self) -> *mut u8 {
        self.mapping.as_ptr().wrapping_add(LOG_OFFSET)
    }
}

impl std::ops::Deref for DownSide {
    type Target = Down;

    fn deref(&self) -> &Down {
        // SAFETY: the mapping is at least LOG_OFFSET >= size_of::<Down>() bytes, page-aligned,
        // zeroed by the kernel at first, lives as long as self, and holds atomics only.
        unsafe { &*(self.mapping.as_ptr() as *const Down) }
    }
}

/// Gives the first `bytes` of a writable mapping its pages, if the kernel can (from 5.14 on).
pub(crate) fn populate(mapping: &Mapping, bytes: usize) {
    const MADV_POPULATE_WRITE: libc::c_int = 23;
    let bytes = bytes.min(mapping.len());
    // SAFETY: the range lies in the mapping, which the caller borrows; the advice changes no
    // content.
    let _ = unsafe { orbit_linux::map::advise(mapping.addr(), bytes, MADV_POPULATE_WRITE) };
}

/// Name of the memory the orbit writes: `orbit ps` finds it by it.
pub(crate) const UP_NAME: &str = "orbit-up";

/// The memory the orbit writes, as main or the orbit maps it.
pub(crate) struct UpSide {
    fd: Own,
    mapping: Shared,
}

impl UpSide {
    pub fn create() -> Result<UpSide> {
        let doing = "memory for the answers of an orbit";
        let fd = memfd::create(UP_NAME, size_of::<Up>(), true).map_err(|e| Error::system(doing, e))?;
        // Else the orbit, which has the descriptor, could cut the memory short under main.
        memfd::seal_size(fd.as_fd()).map_err(|e| Error::system(doing, e))?;
        UpSide::map(fd).map_err(|e| Error::system("mapping the answers of an orbit", e))
    }

    /// Maps a descriptor that [`UpSide::create`] made.
    pub fn map(fd: OwnedFd) -> std::io::Result<UpSide> {
        let mapping = Shared::map(fd.as_fd(), size_of::<Up>())?;
        Ok(UpSide { fd: Own::new(fd)?, mapping })
    }

    /// The descriptor that the orbit is given.
    ///
    /// # Errors
    /// The program has closed it.
    pub fn fd(&self) -> std::io::Result<BorrowedFd<'_>> {
        self.fd.fd()
    }
}

impl std::ops::Deref for UpSide {
    type Target = Up;

    fn deref(&self) -> &Up {
        // SAFETY: the mapping has the size of Up, is page-aligned, lives as long as self; every
        // field that the other process may change meanwhile is an atomic (the black box is read
        // through its own careful reader).
        unsafe { &*(self.mapping.as_ptr() as *const Up) }
    }
}

/// The orbit's hold on *down*: read-only.
pub(crate) struct DownView {
    mapping: Mapping,
    log_bytes: usize,
}

impl DownView {
    pub fn map(fd: OwnedFd, log_bytes: usize) -> std::io::Result<DownView> {
        let mapping = Mapping::shared(fd.as_fd(), LOG_OFFSET + log_bytes, false, false)?;
        Ok(DownView { mapping, log_bytes })
    }

    pub fn log(&self) -> *const u8 {
        self.mapping.as_ptr().wrapping_add(LOG_OFFSET)
    }

    pub fn log_bytes(&self) -> usize {
        self.log_bytes
    }
}

impl std::ops::Deref for DownView {
    type Target = Down;

    fn deref(&self) -> &Down {
        // SAFETY: as for DownSide; the orbit only loads from it (a store would fault: the mapping
        // is read-only).
        unsafe { &*(self.mapping.as_ptr() as *const Down) }
    }
}

/// Both pieces, and the descriptor by which the orbit wakes main's supervisor.
pub(crate) struct Channel {
    pub down: DownSide,
    pub up: UpSide,
    pub event: Own,
}

impl Channel {
    /// Makes a channel with a log of `log_bytes` (a power of two). What an orbit's birth and its
    /// first calls touch has its pages.
    pub fn create(log_bytes: usize) -> Result<Channel> {
        let channel = Channel {
            down: DownSide::create(log_bytes)?,
            up: UpSide::create()?,
            event: eventfd::create().and_then(Own::new).map_err(|e| Error::system("a descriptor for an orbit", e))?,
        };
        populate(&channel.down.mapping, offset_of!(Down, slots));
        populate(&channel.up.mapping, offset_of!(Up, black_box));
        Ok(channel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_what_both_sides_count_on() {
        assert_eq!(size_of::<Slot>(), 256);
        assert!(SLOTS.is_power_of_two() && PUSH_BYTES.is_power_of_two());
        assert_eq!(LOG_OFFSET % 4096, 0);
        assert_eq!(size_of::<Identity>() % 8, 0);
    }
}
