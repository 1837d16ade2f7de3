//! The `share` engine: main's memory is the snapshot.
//!
//! The area is a memfd that every orbit of it maps privately, for good. Two states:
//!
//! | | area | parking place of the shared tables | parking place of the private ones |
//! |---|---|---|---|
//! | idle | shared: main writes the memfd | shared, no page tables | private, its tables kept |
//! | flipped | private: main's writes are copied by the kernel | shared, its tables kept | private, none |
//!
//! To *flip* moves page tables: those of the area away, then the private ones in. The second step
//! is the snapshot's moment: until then a write still reaches the memfd, from then on the memfd
//! stands still, and is the snapshot. It takes about 0.1 ms, whatever the size. To *merge* copies
//! main's private pages into the memfd and moves the shared tables back; a write beside it would be
//! lost, so whoever merges knows that nothing writes.
//!
//! **Invariant.** What main reads at the area is what it wrote, in both states and whichever step
//! fails: a step that fails is undone, or the area becomes a private view of the memfd, which is
//! the flipped state.
//!
//! Nothing of it is inherited by forks that this engine does not know of, as what a child wrote to
//! shared memory would be main's. A child of one that it knows of ([`Share::lend`]) inherits the
//! area in the flipped state: ordinary memory. The memfd is then the child's as well, and is never
//! written again: in place of a merge, another one takes its place.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::fault;
use super::super::pages::PageRuns;
use crate::own::{self, Own};
use crate::units::{Address, Bytes, Page};
use orbit_linux::map::{self, Mapping};
use orbit_linux::memfd;
use orbit_linux::pagemap::Pagemap;
use orbit_linux::{Support, procfs, rlimit, stream};

/// What one page table of the second level maps: tables move whole where both places are alike to
/// this.
const ALIKE: usize = 1 << 30;

/// An area in a memfd, and where its page tables are kept. See the module's head.
#[derive(Debug)]
pub(in crate::area) struct Share {
    base: Address,
    len: Bytes,
    file: Own,
    pagemap: Own<Pagemap>,
    /// Address space that holds the parking place; the place itself.
    shared: (Mapping, usize),
    private: (Mapping, usize),
    is_flipped: bool,
    /// The number of the memfd.
    number: u64,
    /// A child of main may have the memfd mapped. Only while flipped.
    is_lent: bool,
    /// Forks that were prepared and are not over.
    forks: u32,
}

/// Numbers of memfds, from 1 on.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// Reserves a range as long as the area's whose tables can be exchanged with it.
fn parking_place(base: Address, len: Bytes) -> io::Result<(Mapping, usize)> {
    let room = len.get().checked_add(ALIKE).ok_or(io::ErrorKind::OutOfMemory)?;
    let mapping = Mapping::reserve(room)?;
    let at = mapping.addr() + (base.get().wrapping_sub(mapping.addr())) % ALIKE;
    Ok((mapping, at))
}

/// Bytes that a process has locked, by the text of its `status`.
fn locked_bytes(status: &str) -> Option<usize> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"))?;
    line.split_whitespace().next()?.parse::<usize>().ok().map(|kib| kib << 10)
}

impl Share {
    /// Puts a memfd in the place of the reserved `len` bytes at `base`.
    ///
    /// # Errors
    /// Those of the system calls, and `Unsupported` where mappings of files cannot be moved so; the
    /// range is to be given up then.
    pub fn over(base: Address, len: Bytes) -> io::Result<Share> {
        if let Support::No(why) = map::probe_move_tables() {
            return Err(io::Error::other(why));
        }
        if rlimit::address_space().is_some() {
            return Err(io::Error::other("address space is limited (ulimit -v), and it maps the area three times"));
        }
        let overcommits = procfs::text("/proc/sys/vm/overcommit_memory");
        if overcommits.is_ok_and(|how| how.trim() == "2") {
            return Err(io::Error::other("vm.overcommit_memory is 2: private mappings take memory by themselves"));
        }
        let locked = || procfs::own_text("status").ok().and_then(|status| locked_bytes(&status)).unwrap_or(0);
        let before = locked();
        let file = memfd::create("orbit-area", len.get(), true)?;
        let pagemap = Pagemap::own()?.map_fd(own::up);
        let share = Share {
            base,
            len,
            file: Own::new(file)?,
            pagemap: Own::over(pagemap)?,
            shared: parking_place(base, len)?,
            private: parking_place(base, len)?,
            is_flipped: false,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            is_lent: false,
            forks: 0,
        };
        let (file, at, len) = (share.file.fd()?, base.get(), len.get());
        // SAFETY: the caller owns the range; the parking place is this value's.
        unsafe {
            map::fixed_shared_file(at, len, file)?;
            map::fixed_private_file(share.private.1, len, file, 0)?;
            for at in [at, share.private.1] {
                map::advise(at, len, libc::MADV_DONTFORK)?;
            }
        }
        if locked() >= before + share.len.get() {
            return Err(io::Error::other("the process locks what it maps (mlockall), which copies the area"));
        }
        // From now on the memory changes by what main has mapped, and by nothing that an orbit does
        // with the descriptor.
        memfd::seal_future_write(file)?;
        Ok(share)
    }

    /// The memfd, to be handed to an orbit.
    pub fn file(&self) -> io::Result<Own> {
        Own::new(self.file.fd()?.as_fd().try_clone_to_owned()?)
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn is_flipped(&self) -> bool {
        self.is_flipped
    }

    /// Moves the page tables from `from` to `to`.
    ///
    /// # Safety
    /// Both are places of this value's, of its length; what is at `to` may go.
    unsafe fn exchange(&self, from: usize, to: usize) -> io::Result<()> {
        fault::check()?;
        // Kernels before 6.17 unmap the target before they see that the limit forbids the move.
        if rlimit::address_space().is_some() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // SAFETY: the caller's word.
        unsafe { map::move_tables(from, to, self.len.get()) }
    }

    /// Takes the snapshot: from here on the memfd stands still.
    ///
    /// # Errors
    /// Those of `mremap`: nothing has happened, and main's memory is as before.
    pub fn flip(&mut self) -> io::Result<()> {
        debug_assert!(!self.is_flipped);
        let (area, len) = (self.base.get(), self.len.get());
        // SAFETY: in the idle state the parking place holds nothing that is needed.
        if let Err(error) = unsafe { self.exchange(area, self.shared.1) } {
            self.reserve_again(self.shared.1);
            return Err(error);
        }
        // SAFETY: what is at the area is the shared memory without page tables, which the parking
        // place has too now.
        match unsafe { self.exchange(self.private.1, area) } {
            Ok(()) => self.is_flipped = true,
            Err(error) => {
                // SAFETY: the same, and where the kernel has unmapped the area before it failed, a
                // hole.
                match unsafe { map::move_tables(self.shared.1, area, len) } {
                    Ok(()) => return Err(error),
                    Err(_) => self.show_privately()?,
                }
            }
        }
        Ok(())
    }

    /// Adds main's private pages among the first `used` ones: where the area differs from the
    /// snapshot.
    ///
    /// # Errors
    /// Those of reading the page map.
    pub fn private_pages(&self, used: Page, page: Bytes, out: &mut PageRuns) -> io::Result<()> {
        for (start, end) in self.private_ranges(used.offset(page))? {
            let first = Bytes::new(start - self.base.get()).page(page);
            out.push(first, Bytes::new(end - start).whole_pages(page));
        }
        Ok(())
    }

    fn private_ranges(&self, used: Bytes) -> io::Result<Vec<(usize, usize)>> {
        fault::check()?;
        let mut ranges = Vec::new();
        let start = self.base.get();
        self.pagemap.get()?.scan_anonymous(start, start + used.get(), &mut ranges)?;
        Ok(ranges)
    }

    /// Before a fork of main's whose child is to have the area: it is flipped, and inherited. What
    /// the child reads stays as it is: the memfd is not written any more.
    ///
    /// # Errors
    /// Those of [`Share::flip`] and `madvise`: the child gets nothing of the area.
    pub fn lend(&mut self) -> io::Result<()> {
        if !self.is_flipped {
            self.flip()?;
        }
        self.is_lent = true;
        fault::check()?;
        // SAFETY: private memory; what a fork copies changes, and nothing else.
        unsafe { map::advise(self.base.get(), self.len.get(), libc::MADV_DOFORK)? };
        self.forks += 1;
        Ok(())
    }

    /// After that fork. Later ones that nobody prepares inherit nothing.
    pub fn fork_is_over(&mut self) {
        self.forks -= 1;
        if self.forks == 0 {
            // If the kernel rejects it, a child of a raw fork has the area as it is at that time,
            // and until main merges.
            // SAFETY: as above.
            let _ = unsafe { map::advise(self.base.get(), self.len.get(), libc::MADV_DONTFORK) };
        }
    }

    /// Makes the area shared again: by a merge, or with another memfd.
    ///
    /// # Safety
    /// As for [`Share::merge`].
    ///
    /// # Errors
    /// As there; `EBUSY` in the middle of a fork.
    pub unsafe fn settle(&mut self, used: Page, page: Bytes) -> io::Result<()> {
        if self.forks > 0 {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        // SAFETY: the caller's word.
        unsafe { if self.is_lent { self.renew(used.offset(page)) } else { self.merge(used, page) } }
    }

    /// Puts another memfd, with what main's memory is now, in the place of one that a child may
    /// have mapped.
    ///
    /// # Safety
    /// As for [`Share::merge`].
    ///
    /// # Errors
    /// Those of making and filling it, and of `mremap`: the area stays flipped, and nothing is
    /// lost.
    unsafe fn renew(&mut self, used: Bytes) -> io::Result<()> {
        let (area, len) = (self.base.get(), self.len.get());
        fault::check()?;
        let file = Own::new(memfd::create("orbit-area", len, true)?)?;
        // Where the memfd has memory: main's private pages were copied from there.
        let number = self.file.number().ok_or(io::ErrorKind::NotFound)?;
        let mut at = 0;
        while let Some(start) = stream::next_part(number, at, true)?.filter(|start| *start < used.get() as u64) {
            fault::check()?;
            let end = stream::next_part(number, start, false)?.unwrap_or(u64::MAX).min(used.get() as u64);
            let from = std::ptr::with_exposed_provenance::<u8>(area + start as usize);
            // SAFETY: inside the area, which nothing writes (the caller's word).
            let bytes = unsafe { std::slice::from_raw_parts(from, (end - start) as usize) };
            stream::write_all_at(file.fd()?, bytes, start)?;
            at = end;
        }
        // SAFETY: parking places, of which nothing is needed any more.
        unsafe {
            map::fixed_shared_file(self.shared.1, len, file.fd()?)?;
            memfd::seal_future_write(file.fd()?)?;
            map::fixed_private_file(self.private.1, len, file.fd()?, 0)?;
            for at in [self.shared.1, self.private.1] {
                map::advise(at, len, libc::MADV_DONTFORK)?;
            }
        }
        // SAFETY: the new memfd has what is at the area.
        if let Err(error) = unsafe { self.exchange(self.shared.1, area) } {
            // The kernel may have unmapped it.
            return if map::present(area, map::page_size(), &mut [0]).is_ok() {
                Err(error)
            } else {
                self.file = file;
                self.number = NUMBERS.fetch_add(1, Ordering::Relaxed);
                self.is_lent = false;
                self.show_privately().and(Err(error))
            };
        }
        self.file = file;
        self.number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        (self.is_flipped, self.is_lent) = (false, false);
        Ok(())
    }

    /// Makes the memfd what main's memory is: the area is shared again.
    ///
    /// # Safety
    /// No task reads the snapshot any more. Nothing writes to the area until this returns: no
    /// thread, no signal handler, no process, no device.
    ///
    /// # Errors
    /// Those of `mremap` and of reading the page map: the area stays flipped, and nothing is lost.
    unsafe fn merge(&mut self, used: Page, page: Bytes) -> io::Result<()> {
        debug_assert!(self.is_flipped);
        let area = self.base.get();
        for (start, end) in self.private_ranges(used.offset(page))? {
            let to = self.shared.1 + (start - area);
            // SAFETY: both lie in this value's mappings, which are as long as the area. Every page
            // that was copied from the memfd has its page there: this needs no memory.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    std::ptr::with_exposed_provenance::<u8>(start),
                    std::ptr::with_exposed_provenance_mut::<u8>(to),
                    end - start,
                );
            }
            // SAFETY: the memfd has the same bytes now.
            unsafe { map::dont_need(start, end - start)? };
        }
        // SAFETY: in the flipped state that parking place holds nothing that is needed.
        if let Err(error) = unsafe { self.exchange(area, self.private.1) } {
            self.reserve_again(self.private.1);
            self.keep_private_tables_again();
            return Err(error);
        }
        // SAFETY: what is at the area is a private view of the memfd, without a page of its own.
        match unsafe { self.exchange(self.shared.1, area) } {
            Ok(()) => {
                self.is_flipped = false;
                Ok(())
            }
            Err(error) => self.show_privately().and(Err(error)),
        }
    }

    /// Makes the area a private view of the memfd, which is the flipped state without a write.
    fn show_privately(&mut self) -> io::Result<()> {
        let (area, len) = (self.base.get(), self.len.get());
        // SAFETY: what is there has no page that the memfd has not.
        unsafe {
            map::fixed_private_file(area, len, self.file.fd()?, 0)?;
            map::advise(area, len, libc::MADV_DONTFORK)?;
        }
        self.is_flipped = true;
        Ok(())
    }

    /// The kernel may have unmapped the target of a move that it rejected: nothing else is to come
    /// to lie there.
    fn reserve_again(&self, place: usize) {
        // SAFETY: a parking place that holds nothing that is needed.
        let _ = unsafe { map::fixed_none(place, self.len.get()) };
    }

    /// The next flip needs private memory in its place.
    fn keep_private_tables_again(&self) {
        if let Ok(file) = self.file.fd() {
            let (at, len) = (self.private.1, self.len.get());
            // SAFETY: as above. If the kernel rejects it, the next flip fails, and is undone.
            let _ = unsafe {
                map::fixed_private_file(at, len, file, 0).and_then(|()| map::advise(at, len, libc::MADV_DONTFORK))
            };
        }
    }
}
