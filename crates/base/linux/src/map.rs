//! Mappings: reserving address space, shared and anonymous memory, and changing what stands at an
//! address.
//!
//! Owns [`Mapping`], a range that is unmapped when dropped. The `fixed_*` functions replace
//! whatever stands at an address and are `unsafe` for that reason: they are how areas are carved
//! from a reserved window. Lengths are bytes; a length that is not a multiple of the page size is
//! rounded up by the kernel, addresses must be page-aligned. Refuses a length of 0.

use crate::{Support, check_int, invalid};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;

/// `MADV_POPULATE_WRITE` (Linux 5.14): make pages present and writable without changing their
/// content.
const MADV_POPULATE_WRITE: libc::c_int = 23;

/// The size of a page in bytes. Async-signal-safe.
pub fn page_size() -> usize {
    // SAFETY: sysconf reads a constant of the system.
    let n = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(n).unwrap_or(4096)
}

/// A range of address space that this value owns: unmapped when dropped.
///
/// It hands out a raw pointer only; reads and writes through it are the owner's responsibility.
#[derive(Debug)]
pub struct Mapping {
    addr: usize,
    len: usize,
}

impl Mapping {
    /// Reserves `len` bytes of address space: no access, no memory charged.
    ///
    /// # Errors
    /// `EINVAL` for 0, `ENOMEM` when the address space or the number of mappings is exhausted.
    pub fn reserve(len: usize) -> io::Result<Mapping> {
        Mapping::new(len, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1)
    }

    /// Maps the first `len` bytes of a file, shared with every process that maps it so. With
    /// `populate` all pages are made present now (a first touch later costs microseconds a page).
    ///
    /// Touching pages beyond the file's end raises SIGBUS: seal the size
    /// ([`crate::memfd::seal_size`]) when the other side is not trusted.
    ///
    /// # Errors
    /// Those of `mmap(2)`: `EACCES` or `EPERM` when `writable` is asked of a file that is read-only
    /// or sealed.
    pub fn shared(fd: BorrowedFd<'_>, len: usize, writable: bool, populate: bool) -> io::Result<Mapping> {
        let prot = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let flags = libc::MAP_SHARED | if populate { libc::MAP_POPULATE } else { 0 };
        Mapping::new(len, prot, flags, fd.as_raw_fd())
    }

    /// Private zeroed memory, readable and writable; all pages present at once with `populate`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn anonymous(len: usize, populate: bool) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | if populate { libc::MAP_POPULATE } else { 0 };
        Mapping::new(len, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
    }

    /// Maps the first `len` bytes of a file, readable and writable: what is written stays the
    /// process' own, and a forked child gets a copy. Memory is charged as pages are touched, not
    /// before.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub fn private_file(fd: BorrowedFd<'_>, len: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
        Mapping::new(len, libc::PROT_READ | libc::PROT_WRITE, flags, fd.as_raw_fd())
    }

    /// Private zeroed memory, readable and writable, for which none is charged before it is
    /// touched.
    ///
    /// # Errors
    /// `ENOMEM` when the address space or the number of mappings is exhausted.
    pub fn uncharged(len: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Mapping::new(len, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
    }

    fn new(len: usize, prot: i32, flags: i32, fd: i32) -> io::Result<Mapping> {
        if len == 0 {
            return Err(invalid("a mapping of 0 bytes".into()));
        }
        // SAFETY: no address is given, so the kernel picks a free range: no memory of anyone else
        // is touched.
        let p = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, fd, 0) };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { addr: p as usize, len })
    }

    /// First byte of the range.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.addr)
    }

    /// Address of the first byte.
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Length in bytes, as asked for.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Gives the range up without unmapping it: address and length.
    pub fn leak(self) -> (usize, usize) {
        let range = (self.addr, self.len);
        std::mem::forget(self);
        range
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and is owned by this value; whoever used its
        // pointer agreed to stop.
        unsafe { libc::munmap(self.as_ptr().cast(), self.len) };
    }
}

/// Whether a process may have memory at an address at all: not in the kernel's half, nor beyond
/// what the page tables reach. Asks for a mapping that is neither shared nor private, which the
/// kernel rejects only after it has checked the address, so that nothing is ever mapped.
pub fn may_be_mapped(addr: usize) -> bool {
    let flags = libc::MAP_FIXED_NOREPLACE | libc::MAP_ANONYMOUS;
    // SAFETY: no mapping is made or replaced: of a range that has one the answer is EEXIST, of
    // others EINVAL for the flags.
    let answer = unsafe { libc::syscall(libc::SYS_mmap, addr & !4095, 4096usize, libc::PROT_NONE, flags, -1, 0usize) };
    answer == -1 && matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL | libc::EEXIST))
}

/// Maps private zeroed memory at `addr`, replacing what stands there.
///
/// # Safety
/// Nothing else may use `[addr, addr + len)`: it is gone after the call. The caller owns that range
/// (a reservation).
///
/// # Errors
/// Those of `mmap(2)`; the old mapping may be gone after an error.
pub unsafe fn fixed_anonymous(addr: usize, len: usize) -> io::Result<()> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller owns the range.
    unsafe { fixed(addr, len, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) }
}

/// Turns `[addr, addr + len)` back into reserved address space: no access, no memory.
///
/// # Safety
/// As [`fixed_anonymous`].
///
/// # Errors
/// Those of `mmap(2)`.
pub unsafe fn fixed_none(addr: usize, len: usize) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the caller owns the range.
    unsafe { fixed(addr, len, libc::PROT_NONE, flags, -1, 0) }
}

/// Unmaps `[addr, addr + len)`: the addresses are free again.
///
/// # Safety
/// As [`fixed_anonymous`].
///
/// # Errors
/// Those of `munmap(2)`.
pub unsafe fn unmap(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: the caller owns the range.
    check_int(unsafe { libc::munmap(ptr::without_provenance_mut(addr), len) }).map(|_| ())
}

/// Reserves exactly `[addr, addr + len)`, whole pages, if nothing is mapped there: no access, no
/// memory.
///
/// # Errors
/// `EEXIST` when something is there, and the others of `mmap(2)`.
pub fn none_if_free(addr: usize, len: usize) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let wanted = ptr::without_provenance_mut(addr);
    // SAFETY: the call replaces nothing.
    let p = unsafe { libc::mmap(wanted, len, libc::PROT_NONE, flags, -1, 0) };
    if p == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if p != wanted {
        // Linux before 4.17 takes the address as a wish.
        // SAFETY: the range was just mapped, and nobody knows it.
        unsafe { libc::munmap(p, len) };
        return Err(io::Error::from_raw_os_error(libc::EEXIST));
    }
    Ok(())
}

/// Maps `len` bytes of a file from `offset` at `addr`, privately (writes stay in this process),
/// replacing what stands there.
///
/// # Safety
/// As [`fixed_anonymous`]. Pages beyond the file's end raise SIGBUS when touched.
///
/// # Errors
/// Those of `mmap(2)`.
pub unsafe fn fixed_private_file(addr: usize, len: usize, fd: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller owns the range.
    unsafe { fixed(addr, len, prot, libc::MAP_PRIVATE | libc::MAP_NORESERVE, fd.as_raw_fd(), offset) }
}

/// Maps the first `len` bytes of a file at `addr`, readable, writable and shared, replacing what
/// stands there.
///
/// # Safety
/// As [`fixed_anonymous`]. Pages beyond the file's end raise SIGBUS when touched.
///
/// # Errors
/// Those of `mmap(2)`: `EACCES` or `EPERM` when the file is read-only or sealed.
pub unsafe fn fixed_shared_file(addr: usize, len: usize, fd: BorrowedFd<'_>) -> io::Result<()> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller owns the range.
    unsafe { fixed(addr, len, prot, libc::MAP_SHARED, fd.as_raw_fd(), 0) }
}

/// # Safety
/// The caller owns `[addr, addr + len)`.
unsafe fn fixed(addr: usize, len: usize, prot: i32, flags: i32, fd: i32, offset: u64) -> io::Result<()> {
    let Ok(offset) = libc::off_t::try_from(offset) else {
        return Err(io::Error::from_raw_os_error(libc::EOVERFLOW));
    };
    // SAFETY: MAP_FIXED replaces exactly the range the caller owns.
    let p = unsafe { libc::mmap(ptr::without_provenance_mut(addr), len, prot, flags | libc::MAP_FIXED, fd, offset) };
    if p == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Moves the page tables of the one mapping `[from, from + len)` to `to`, where a mapping of the
/// same kind comes to be in the place of what is there; `from` stays mapped, without page tables.
/// Takes microseconds a GiB where both addresses are alike to 1 GiB.
///
/// # Safety
/// The caller owns both ranges, and accepts that what stands at `to` goes, also after an error.
///
/// # Errors
/// Those of `mremap(2)`: `EINVAL` before Linux 5.13 for mappings of files, `EFAULT` where it is
/// more than one mapping, `ENOMEM` at the limit of mappings or of address space.
pub unsafe fn move_tables(from: usize, to: usize, len: usize) -> io::Result<()> {
    const MREMAP_DONTUNMAP: libc::c_int = 4;
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | MREMAP_DONTUNMAP;
    let (from, to) = (ptr::without_provenance_mut(from), ptr::without_provenance_mut::<libc::c_void>(to));
    // SAFETY: the caller owns both ranges.
    let moved = unsafe { libc::mremap(from, len, len, flags, to) };
    if moved == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Drops the pages of a range: private anonymous memory reads as zero again, a private file mapping
/// as the file. Write-protection of [`crate::uffd`] is lost with them: harvest first.
/// Async-signal-safe.
///
/// # Safety
/// The content of `[addr, addr + len)` may go: nobody holds a reference into it that must stay as
/// it is.
///
/// # Errors
/// Those of `madvise(2)`.
pub unsafe fn dont_need(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: the caller gives the content up.
    unsafe { advise(addr, len, libc::MADV_DONTNEED) }
}

/// Keeps all memory of the process in RAM, also what it maps from now on.
///
/// # Errors
/// `EPERM` without `CAP_IPC_LOCK`, `ENOMEM` at the limit of locked memory.
pub fn lock_all() -> io::Result<()> {
    // SAFETY: no memory is given to the call.
    check_int(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) }).map(|_| ())
}

/// Lets the kernel take the pages of a range back again that were locked (`munlock`). Not locked:
/// nothing happens.
///
/// # Errors
/// `ENOMEM` for holes.
pub fn unlock(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: changes no content; the kernel rejects ranges that are not mapped.
    crate::check_int(unsafe { libc::munlock(addr as *const libc::c_void, len) }).map(|_| ())
}

/// Makes every page of a range present and writable now, without changing its content
/// (`MADV_POPULATE_WRITE`). Async-signal-safe.
///
/// # Errors
/// `EINVAL` before Linux 5.14 or when the range is not writable, `ENOMEM` for holes, `EFAULT`
/// beyond a file's end.
pub fn populate_write(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: populating changes no content; the kernel rejects ranges that are not mapped.
    unsafe { advise(addr, len, MADV_POPULATE_WRITE) }
}

/// Gives the kernel any advice of `madvise(2)` about a range. Async-signal-safe.
///
/// # Safety
/// Some advice changes content or what a fork copies; the caller owns the range and accepts what
/// the advice does.
///
/// # Errors
/// Those of `madvise(2)`.
pub unsafe fn advise(addr: usize, len: usize, advice: i32) -> io::Result<()> {
    // SAFETY: the caller accepts the advice's effect on a range it owns.
    check_int(unsafe { libc::madvise(ptr::without_provenance_mut(addr), len, advice) }).map(|_| ())
}

/// Notes for each page of a range whether it is there (`mincore(2)`): the lowest bit of its byte.
/// Of anonymous memory, a page that was swapped out is not.
///
/// # Errors
/// `ENOMEM` when part of the range is not mapped; `InvalidInput` for a range that is not so many
/// pages.
pub fn present(addr: usize, len: usize, pages: &mut [u8]) -> io::Result<()> {
    if len.div_ceil(page_size()) != pages.len() {
        return Err(invalid(format!("{len} bytes are not {} pages", pages.len())));
    }
    // SAFETY: the call writes a byte for each page of the range, and the slice has as many; it
    // reads nothing of the range.
    check_int(unsafe { libc::mincore(ptr::without_provenance_mut(addr), len, pages.as_mut_ptr()) }).map(|_| ())
}

/// Changes the protection of a range to `prot` (`libc::PROT_*`). Async-signal-safe.
///
/// # Safety
/// The caller owns the range; references into it must stay usable for what they are used for.
///
/// # Errors
/// Those of `mprotect(2)`.
pub unsafe fn protect(addr: usize, len: usize, prot: i32) -> io::Result<()> {
    // SAFETY: the caller owns the range.
    check_int(unsafe { libc::mprotect(ptr::without_provenance_mut(addr), len, prot) }).map(|_| ())
}

/// Reserves and releases one page.
pub fn probe() -> Support {
    Support::from_result("mmap", Mapping::reserve(page_size()), |_| String::new())
}

/// Moves the page table of a page of a file.
pub fn probe_move_tables() -> Support {
    let page = page_size();
    let moved = crate::memfd::create("orbit-probe", page, true).and_then(|file| {
        let (from, to) = (Mapping::shared(file.as_fd(), page, true, false)?, Mapping::reserve(page)?);
        // SAFETY: both ranges are the mappings just made, which nobody else knows.
        unsafe { move_tables(from.addr(), to.addr(), page) }
    });
    Support::from_result("mremap with MREMAP_DONTUNMAP", moved, |_| "needs Linux 5.13".into())
}
