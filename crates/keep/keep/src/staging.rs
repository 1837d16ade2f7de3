//! Copies of written pages that the stopped program makes itself: two to four times faster than
//! another process can read them.
//!
//! A file of ours is mapped into the program once: a page of code, a list of addresses, room for
//! pages. In the pause one thread of the program runs the code from the list's begin on, and the
//! keeper reads pages from its end on, until they meet. After the pause what the program has copied
//! is taken out. Memory here is as exposed to a wild write of the program as its log is, and only
//! for that time.

use crate::capture::Tracker;
use crate::error::Error;
use crate::pages::{Bytes, PAGE, Pool};
use graft::{Leaf, Protection, Source, Stopped};
use orbit_linux::map::Mapping;
use orbit_linux::maps::Entry;
use orbit_linux::memfd;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Pages that fit: 64 MiB. What is more is read by the keeper.
const ROOM: usize = 16 << 10;
/// With fewer pages the start of the code costs more than it saves.
const FEWEST: usize = 96;
/// As the mappings name it.
const NAME: &str = "/memfd:orbit-keep-copies";
/// Pages that the keeper takes at a time.
const STEP: usize = 128;
const LIST: usize = 2 * PAGE as usize;
const PAGES: usize = LIST + ((ROOM + 1) * 8).next_multiple_of(PAGE as usize);
const LEN: usize = PAGES + ROOM * PAGE as usize;

/// Copies the page at each address of the list at `rdx`, which ends with 0, to `rdi` and on; notes
/// at `r9` how far it is. See [`Leaf`].
const CODE: [u8; 40] = [
    0x48, 0x8b, 0x32, // next: mov (%rdx),%rsi
    0x48, 0x8d, 0x52, 0x08, // lea 8(%rdx),%rdx
    0x48, 0x89, 0xf1, // mov %rsi,%rcx
    0xe3, 0x0d, // jrcxz done
    0xb9, 0x00, 0x02, 0x00, 0x00, // mov $512,%ecx
    0xf3, 0x48, 0xa5, // rep movsq
    0x49, 0x89, 0x11, // mov %rdx,(%r9)
    0xeb, 0xe7, // jmp next
    0xb8, 0x03, 0x00, 0x00, 0x00, // done: mov $SYS_close,%eax
    0x48, 0xc7, 0xc7, 0xff, 0xff, 0xff, 0xff, // mov $-1,%rdi
    0x41, 0xff, 0xe0, // jmp *%r8
];

/// The memory for it, in the keeper and in the program.
pub(crate) struct Staging {
    map: Mapping,
    /// Addresses in the program: the code, and the file from its second page on.
    code: u64,
    data: u64,
}

/// Pages that were copied in a pause: some are still in the staging memory.
pub(crate) struct Copied {
    addresses: Vec<u64>,
    staged: usize,
    /// Those after the staged ones.
    read: Vec<Box<Bytes>>,
}

impl Staging {
    /// Maps it into the program.
    pub fn new(stopped: &mut Stopped<'_>) -> Result<Staging, Error> {
        let failed = |e| Error::Io("making memory for copies", e);
        let file = memfd::create("orbit-keep-copies", LEN, true).map_err(failed)?;
        memfd::seal_size(file.as_fd()).map_err(failed)?;
        let map = Mapping::shared(file.as_fd(), LEN, true, false).map_err(failed)?;
        // SAFETY: the first bytes of a live mapping that nothing else refers to yet.
        unsafe { std::ptr::copy_nonoverlapping(CODE.as_ptr(), map.as_ptr(), CODE.len()) };
        let part = |offset| Source::File { file: file.as_fd(), offset, shared: true };
        let code = stopped.map(None, PAGE, Protection::READ_EXECUTE, part(0))?;
        let data = stopped.map(None, LEN as u64 - PAGE, Protection::READ_WRITE, part(PAGE))?;
        // A child of fork has nothing to do with it.
        for region in [code, data] {
            stopped.call(libc::SYS_madvise, [region.start, region.len, libc::MADV_DONTFORK as u64, 0, 0, 0])?;
            stopped.leave(region)?;
        }
        Ok(Staging { map, code: code.start, data: data.start })
    }

    /// Whether it is still among the program's mappings, which the program can change.
    pub fn is_mapped(&self, mappings: &[Entry]) -> bool {
        let is_at = |start: u64| mappings.iter().any(|entry| entry.start == start && entry.name.starts_with(NAME));
        is_at(self.code) && is_at(self.data)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < PAGES, "words stand before the pages");
        // SAFETY: aligned and within the live mapping; the program may write it at any time, so it
        // is an atomic.
        unsafe { &*self.map.as_ptr().add(at).cast() }
    }

    fn entry(&self, index: usize) -> &AtomicU64 {
        self.word(LIST + index * 8)
    }

    /// Pages that the program has copied so far.
    fn progress(&self, count: usize) -> usize {
        let list = self.data + (LIST - PAGE as usize) as u64;
        let next = self.word(PAGE as usize).load(SeqCst);
        // The program can write this word: whatever it holds, at most `count` pages come of it.
        (next.saturating_sub(list) / 8).min(count as u64) as usize
    }

    /// Copies pages of the stopped program, of which it may read the first `readable` itself.
    fn copy(
        &self,
        stopped: &mut Stopped<'_>,
        tracker: &Tracker,
        addresses: Vec<u64>,
        readable: usize,
        pool: &mut Pool,
    ) -> Result<Copied, Error> {
        let count = readable.min(ROOM);
        for (index, address) in addresses[..count].iter().enumerate() {
            self.entry(index).store(*address, Relaxed);
        }
        self.entry(count).store(0, SeqCst);
        let data = |offset: usize| self.data + (offset - PAGE as usize) as u64;
        self.word(PAGE as usize).store(data(LIST), SeqCst);
        let leaf = Leaf { address: self.code, rdi: data(PAGES), rdx: data(LIST), r9: data(PAGE as usize) };
        // From here to the list's end the keeper has read.
        let mut from = count;
        let mut read: Vec<Vec<Box<Bytes>>> = Vec::new();
        let mut take = |start: usize, end: usize| {
            let mut pages = pool.take(end - start);
            let done = tracker.read(&addresses[start..end], &mut pages);
            read.push(pages);
            done
        };
        let mut done = if addresses.len() > count { take(count, addresses.len()) } else { Ok(()) };
        stopped.run_leaf(leaf, || {
            while done.is_ok() && from > self.progress(count) + STEP {
                // The program ends where it finds 0.
                self.entry(from - STEP).store(0, SeqCst);
                done = take(from - STEP, from);
                from -= STEP;
            }
        })?;
        done?;
        let staged = self.progress(count).min(from);
        if staged < from {
            take(staged, from)?;
        }
        Ok(Copied { addresses, staged, read: read.into_iter().rev().flatten().collect() })
    }

    /// Takes the copies out.
    fn collect(&self, copied: Copied, pool: &mut Pool) -> Vec<(u64, Box<Bytes>)> {
        let Copied { addresses, staged, read } = copied;
        let mut pages = pool.take(staged);
        for (index, page) in pages.iter_mut().enumerate() {
            // SAFETY: page `index` of the mapping, below ROOM, and a page of our own. The program
            // could write the former meanwhile: it is memory of another process to us, of which any
            // bytes are a value, read by a copy that no reference stands for.
            unsafe {
                let from = self.map.as_ptr().add(PAGES + index * PAGE as usize);
                std::ptr::copy_nonoverlapping(from, page.as_mut_ptr(), PAGE as usize);
            }
        }
        addresses.into_iter().zip(pages.into_iter().chain(read)).collect()
    }
}

/// Copies pages of the stopped program, those that it may read itself and others: with its own
/// help, if that is faster and there is a `staging`.
pub(crate) fn copy(
    stopped: &mut Stopped<'_>,
    tracker: &Tracker,
    staging: Option<&Staging>,
    (readable, hidden): (Vec<u64>, Vec<u64>),
    pool: &mut Pool,
) -> Result<Copied, Error> {
    let count = readable.len();
    let mut addresses = readable;
    addresses.extend(hidden);
    match staging {
        Some(staging) if count >= FEWEST => staging.copy(stopped, tracker, addresses, count, pool),
        _ => {
            let mut read = pool.take(addresses.len());
            tracker.read(&addresses, &mut read)?;
            Ok(Copied { addresses, staged: 0, read })
        }
    }
}

/// The copies, after the pause.
pub(crate) fn collect(staging: Option<&Staging>, copied: Copied, pool: &mut Pool) -> Vec<(u64, Box<Bytes>)> {
    match staging {
        Some(staging) => staging.collect(copied, pool),
        None => copied.addresses.into_iter().zip(copied.read).collect(),
    }
}
