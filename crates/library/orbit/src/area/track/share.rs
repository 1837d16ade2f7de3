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
//! written again: another one takes its place, which is filled beside main's work (`memory`).

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::super::fault;
use super::super::pages::PageRuns;
use super::memory::{Memory, Refill};
use crate::own::{self, Own};
use crate::units::{Address, Bytes, Page};
use orbit_linux::map;
use orbit_linux::pagemap::Pagemap;
use orbit_linux::{Support, pinned, procfs, rlimit};

/// An area in a memfd, and where its page tables are kept. See the module's head.
#[derive(Debug)]
pub(in crate::area) struct Share {
    base: Address,
    len: Bytes,
    pagemap: Own<Pagemap>,
    memory: Memory,
    is_flipped: bool,
    /// A child of main may have the memfd mapped. Only while flipped.
    is_lent: bool,
    /// What takes its place then.
    refill: Option<Arc<Refill>>,
    /// A fork was prepared and is not over.
    in_fork: bool,
}

/// Copies memory that nobody writes.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
unsafe fn copy(from: usize, to: usize, bytes: usize) {
    let from = std::ptr::with_exposed_provenance::<u8>(from);
    // SAFETY: the caller's word.
    unsafe { std::ptr::copy_nonoverlapping(from, std::ptr::with_exposed_provenance_mut(to), bytes) };
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
        let pagemap = Pagemap::own()?.map_fd(own::up);
        // SAFETY: the caller owns the range.
        let memory = unsafe { Memory::make(base, len, Some(base.get())) }?;
        if locked() >= before + len.get() {
            return Err(io::Error::other("the process locks what it maps (mlockall), which copies the area"));
        }
        memory.seal()?;
        let pagemap = Own::over(pagemap)?;
        Ok(Share { base, len, pagemap, memory, is_flipped: false, is_lent: false, refill: None, in_fork: false })
    }

    /// The memfd, to be handed to an orbit.
    pub fn file(&self) -> io::Result<Own> {
        Own::new(self.memory.file.fd()?.as_fd().try_clone_to_owned()?)
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.memory.number
    }

    pub fn is_flipped(&self) -> bool {
        self.is_flipped
    }

    /// Whether a fork was prepared and is not over.
    pub fn is_in_fork(&self) -> bool {
        self.in_fork
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

    /// An error if a device may write to pages of the area that it holds: they would no longer be
    /// those that main has. What is pinned must all be known to lie elsewhere.
    fn check_pinned(&self) -> io::Result<()> {
        let pinned = pinned::bytes()?;
        if pinned == 0 {
            return Ok(());
        }
        let (mut elsewhere, area) = (0, self.base.get()..self.base.get() + self.len.get());
        for (start, bytes) in pinned::registered()? {
            let end = start.saturating_add(bytes);
            if start < area.end && end > area.start {
                let text = format!(
                    "an io_uring has {bytes} bytes at {start:#x} registered, which lie in the area: main would lose \
                     what is read there; register memory outside of areas of engine share"
                );
                return Err(io::Error::new(io::ErrorKind::Unsupported, text));
            }
            elsewhere += end.next_multiple_of(map::page_size()) - start / map::page_size() * map::page_size();
        }
        if elsewhere >= pinned {
            return Ok(());
        }
        let text = format!(
            "the process has {pinned} bytes of pinned memory (VmPin), of which only {elsewhere} are known to lie \
             outside of the area: a device may write to the others; use another engine"
        );
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }

    /// Takes the snapshot: from here on the memfd stands still.
    ///
    /// # Errors
    /// `Unsupported` for pinned memory. Those of `mremap`: nothing has happened, and main's memory
    /// is as before.
    pub fn flip(&mut self) -> io::Result<()> {
        debug_assert!(!self.is_flipped);
        self.check_pinned()?;
        let (area, len) = (self.base.get(), self.len.get());
        // SAFETY: in the idle state the parking place holds nothing that is needed.
        if let Err(error) = unsafe { self.exchange(area, self.memory.shared.1) } {
            self.reserve_again(self.memory.shared.1);
            return Err(error);
        }
        // SAFETY: what is at the area is the shared memory without page tables, which the parking
        // place has too now.
        match unsafe { self.exchange(self.memory.private.1, area) } {
            Ok(()) => self.is_flipped = true,
            Err(error) => {
                // SAFETY: the same, and where the kernel has unmapped the area before it failed, a
                // hole.
                match unsafe { map::move_tables(self.memory.shared.1, area, len) } {
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
        self.in_fork = true;
        Ok(())
    }

    /// After all forks that were prepared. Later ones that nobody prepares inherit nothing.
    pub fn forks_are_over(&mut self) {
        if std::mem::take(&mut self.in_fork) {
            // If the kernel rejects it, a child of a raw fork has the area as it is at that time,
            // and until main merges.
            // SAFETY: as above.
            let _ = unsafe { map::advise(self.base.get(), self.len.get(), libc::MADV_DONTFORK) };
        }
    }

    /// The copy that takes the place of lent memory, begun if there is none; `None` while the
    /// memory is main's alone.
    ///
    /// # Errors
    /// Those of making memory.
    pub fn refill(&mut self) -> io::Result<Option<Arc<Refill>>> {
        if !self.is_lent {
            return Ok(None);
        }
        if let Some(refill) = self.refill.as_ref().filter(|refill| !refill.has_failed()) {
            return Ok(Some(refill.clone()));
        }
        let refill = Arc::new(Refill::begin(self.base, self.len, self.file()?)?);
        self.refill = Some(refill.clone());
        Ok(Some(refill))
    }

    /// Makes the area shared again: by a merge, or with the memory that takes the place of a lent
    /// one. `Some`: that is not full yet, and nothing has happened.
    ///
    /// # Safety
    /// As for [`Share::merge`], and not in the middle of a fork.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn settle(&mut self, used: Page, page: Bytes) -> io::Result<Option<Arc<Refill>>> {
        debug_assert!(!self.in_fork);
        self.check_pinned()?;
        let refill = self.refill()?;
        match &refill {
            // SAFETY: the caller's word.
            None => unsafe { self.merge(used, page) }?,
            Some(refill) if !refill.is_full() => return Ok(Some(refill.clone())),
            // SAFETY: as above.
            Some(refill) => unsafe { self.renew(refill, used, page) }?,
        }
        Ok(None)
    }

    /// Puts memory that holds all that the lent one does, and what main has written since, in its
    /// place. What was there goes with the last handle to `refill`.
    ///
    /// # Safety
    /// As for [`Share::merge`].
    ///
    /// # Errors
    /// Those of `mremap` and of reading the page map: the area stays flipped, and nothing is lost.
    unsafe fn renew(&mut self, refill: &Refill, used: Page, page: Bytes) -> io::Result<()> {
        let area = self.base.get();
        let mut fresh = refill.memory();
        for (start, end) in self.private_ranges(used.offset(page))? {
            // SAFETY: both lie in mappings as long as the area. A second attempt copies all of them
            // again.
            unsafe { copy(start, fresh.shared.1 + (start - area), end - start) };
        }
        // The tables go first: to unmap them here takes long.
        // SAFETY: in the flipped state that parking place holds nothing that is needed.
        if let Err(error) = unsafe { self.exchange(area, self.memory.private.1) } {
            self.reserve_again(self.memory.private.1);
            self.keep_private_tables_again();
            return Err(error);
        }
        // SAFETY: what is at the area is a private view without page tables.
        if let Err(error) = unsafe { self.exchange(fresh.shared.1, area) } {
            // SAFETY: the same, or a hole where the kernel has unmapped it before it failed.
            if unsafe { map::move_tables(self.memory.private.1, area, self.len.get()) }.is_err() {
                std::mem::swap(&mut self.memory, &mut fresh);
                (self.is_lent, self.refill) = (false, None);
                self.show_privately()?;
            }
            return Err(error);
        }
        std::mem::swap(&mut self.memory, &mut fresh);
        (self.is_flipped, self.is_lent, self.refill) = (false, false, None);
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
            let to = self.memory.shared.1 + (start - area);
            // SAFETY: both lie in this value's mappings, which are as long as the area. Every page
            // that was copied from the memfd has its page there: this needs no memory.
            unsafe { copy(start, to, end - start) };
            // SAFETY: the memfd has the same bytes now.
            unsafe { map::dont_need(start, end - start)? };
        }
        // SAFETY: in the flipped state that parking place holds nothing that is needed.
        if let Err(error) = unsafe { self.exchange(area, self.memory.private.1) } {
            self.reserve_again(self.memory.private.1);
            self.keep_private_tables_again();
            return Err(error);
        }
        // SAFETY: what is at the area is a private view of the memfd, without a page of its own.
        match unsafe { self.exchange(self.memory.shared.1, area) } {
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
            map::fixed_private_file(area, len, self.memory.file.fd()?, 0)?;
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
        if let Ok(file) = self.memory.file.fd() {
            let (at, len) = (self.memory.private.1, self.len.get());
            // SAFETY: as above. If the kernel rejects it, the next flip fails, and is undone.
            let _ = unsafe {
                map::fixed_private_file(at, len, file, 0).and_then(|()| map::advise(at, len, libc::MADV_DONTFORK))
            };
        }
    }
}
