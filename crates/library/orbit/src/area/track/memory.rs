//! The memory of a `share` area, and the one that takes its place after a fork.
//!
//! **Lent memory is never written again**: a child of main may have it mapped, and live for ever.
//! So what it holds can be copied beside whatever main does. A [`Refill`] is that copy: once it is
//! full, a merge adds the pages that main has written since, and exchanges the two.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::fault;
use crate::own::Own;
use crate::units::{Address, Bytes};
use orbit_linux::map::{self, Mapping};
use orbit_linux::{memfd, stream};

/// What one page table of the second level maps: tables move whole where both places are alike to
/// this.
const ALIKE: usize = 1 << 30;
/// What one step of a copy reads at a time.
const STEP: usize = 256 << 10;

/// Numbers of memories, from 1 on.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// A memfd as long as its area, and where the page tables of its mappings are kept.
#[derive(Debug)]
pub(super) struct Memory {
    pub file: Own,
    /// Never used twice.
    pub number: u64,
    /// Address space that holds the parking place; the place itself.
    pub shared: (Mapping, usize),
    pub private: (Mapping, usize),
}

/// Reserves a range as long as the area's whose tables can be exchanged with it.
fn parking_place(base: Address, len: Bytes) -> io::Result<(Mapping, usize)> {
    let room = len.get().checked_add(ALIKE).ok_or(io::ErrorKind::OutOfMemory)?;
    let mapping = Mapping::reserve(room)?;
    let at = mapping.addr() + (base.get().wrapping_sub(mapping.addr())) % ALIKE;
    Ok((mapping, at))
}

impl Memory {
    /// A new one, all zeros, with its private mapping in place. `shared_at` is where its shared one
    /// comes to lie; `None`: in its parking place.
    ///
    /// # Safety
    /// The caller owns `len` bytes at `shared_at`.
    pub unsafe fn make(base: Address, len: Bytes, shared_at: Option<usize>) -> io::Result<Memory> {
        fault::check()?;
        let file = Own::new(memfd::create("orbit-area", len.get(), true)?)?;
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let memory = Memory { file, number, shared: parking_place(base, len)?, private: parking_place(base, len)? };
        let (file, shared) = (memory.file.fd()?, shared_at.unwrap_or(memory.shared.1));
        // SAFETY: the caller owns that range, or it is the parking place, as the other one is.
        unsafe {
            map::fixed_shared_file(shared, len.get(), file)?;
            map::fixed_private_file(memory.private.1, len.get(), file, 0)?;
            for at in [shared, memory.private.1] {
                map::advise(at, len.get(), libc::MADV_DONTFORK)?;
            }
        }
        Ok(memory)
    }

    /// From now on the memory changes by what main has mapped, and by nothing that an orbit does
    /// with the descriptor.
    pub fn seal(&self) -> io::Result<()> {
        memfd::seal_future_write(self.file.fd()?)
    }
}

/// How far a copy has come.
#[derive(Debug)]
struct Progress {
    at: u64,
    /// From `at` to here the lent memory has data.
    data_end: u64,
}

/// A copy of lent memory on its way.
#[derive(Debug)]
pub(crate) struct Refill {
    from: Own,
    len: Bytes,
    /// Where the new memory is mapped until it is full.
    to: usize,
    /// The new memory; once it has been exchanged, the old one.
    memory: Mutex<Memory>,
    progress: Mutex<Progress>,
    is_full: AtomicBool,
    has_failed: AtomicBool,
    /// The supervisor copies.
    is_watched: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Refill {
    /// Begins a copy of this memory of the area at `base`.
    pub(super) fn begin(base: Address, len: Bytes, from: Own) -> io::Result<Refill> {
        // SAFETY: in its own parking place.
        let memory = unsafe { Memory::make(base, len, None) }?;
        memory.seal()?;
        Ok(Refill {
            from,
            len,
            to: memory.shared.1,
            memory: Mutex::new(memory),
            progress: Mutex::new(Progress { at: 0, data_end: 0 }),
            is_full: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
        })
    }

    /// The new memory, once it is full.
    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        debug_assert!(self.is_full());
        lock(&self.memory)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Acquire)
    }

    /// It will never be full.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Whether the supervisor copies.
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Acquire)
    }

    pub(crate) fn watch(&self) {
        self.is_watched.store(true, Ordering::Release);
    }

    /// Copies up to `bytes` more. Any thread may, beside others.
    ///
    /// # Errors
    /// Those of reading the lent memory: the copy has failed, and another one is to be begun.
    pub(crate) fn fill(&self, bytes: Bytes) -> io::Result<()> {
        let filled = self.fill_some(bytes.get());
        if filled.is_err() {
            self.has_failed.store(true, Ordering::Release);
        }
        filled
    }

    fn fill_some(&self, mut budget: usize) -> io::Result<()> {
        let mut progress = lock(&self.progress);
        while budget > 0 && !self.is_full() {
            if progress.at == progress.data_end {
                fault::check()?;
                let number = self.from.number().ok_or(io::ErrorKind::NotFound)?;
                let data = stream::next_part(number, progress.at, true)?;
                let Some(start) = data.filter(|start| *start < self.len.get() as u64) else {
                    self.is_full.store(true, Ordering::Release);
                    break;
                };
                // Once for each run of data: the kernel walks to its end.
                let end = stream::next_part(number, start, false)?.unwrap_or(u64::MAX);
                *progress = Progress { at: start, data_end: end.min(self.len.get() as u64) };
            }
            let step = (progress.data_end - progress.at).min(STEP as u64) as usize;
            let to = std::ptr::with_exposed_provenance_mut::<u8>(self.to + progress.at as usize);
            // SAFETY: inside the new memory's mapping, which nobody else uses before it is full,
            // and under the lock of this copy.
            let to = unsafe { std::slice::from_raw_parts_mut(to, step) };
            match stream::read_at(self.from.fd()?, to, progress.at)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => {
                    progress.at += read as u64;
                    budget = budget.saturating_sub(read);
                }
            }
        }
        Ok(())
    }
}
