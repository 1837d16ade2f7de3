//! Write tracking by `userfaultfd` write-protection, resolved by the kernel itself (`WP_ASYNC`,
//! Linux 6.7).
//!
//! A registered range is write-protected page by page; the first write to a page takes the
//! protection off inside the kernel (about a microsecond), and no thread is asked. Which pages have
//! lost it is read, and the protection renewed, by [`crate::pagemap::Pagemap::scan_written`]. A
//! page that was never protected reads as written.
//!
//! Tracking belongs to the address space: `munmap`, `mremap` and `MADV_DONTNEED` lose it, and after
//! a fork the child has none. Dropping the [`Uffd`] ends it for all its ranges. hugetlb ranges are
//! rejected: scanning them can hang the ioctl.
//!
//! Opened with `UFFD_USER_MODE_ONLY`, which ordinary users may do; in asynchronous mode writes by
//! the kernel (`read(2)` into the range) are tracked all the same.

use crate::map::{Mapping, page_size};
use crate::pagemap::Pagemap;
use crate::{Support, check, check_int, invalid, procfs};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// From <linux/userfaultfd.h>; Debian 12's header ends before the last two features.
const UFFD_API: u64 = 0xAA;
const UFFD_USER_MODE_ONLY: libc::c_int = 1;
const UFFD_FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const UFFD_FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const UFFD_FEATURE_WP_ASYNC: u64 = 1 << 15;
const UFFDIO_REGISTER_MODE_WP: u64 = 1 << 1;
const UFFDIO_WRITEPROTECT_MODE_WP: u64 = 1 << 0;
const USERFAULTFD_IOC_NEW: libc::c_ulong = 0xAA00;
const UFFDIO_API: libc::c_ulong = 0xC018_AA3F;
const UFFDIO_REGISTER: libc::c_ulong = 0xC020_AA00;
const UFFDIO_UNREGISTER: libc::c_ulong = 0x8010_AA01;
const UFFDIO_WRITEPROTECT: libc::c_ulong = 0xC018_AA06;

// From <linux/fs.h>, Linux 6.11: asks about one mapping through /proc/PID/maps.
const PROCMAP_QUERY: libc::c_ulong = 0xC068_6611;
const PROCMAP_QUERY_COVERING_OR_NEXT_VMA: u64 = 0x10;

#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name_addr: u64,
    build_id_addr: u64,
}

const _: () = assert!(size_of::<ProcmapQuery>() == 104);

#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdioRange {
    start: u64,
    len: u64,
}

#[repr(C)]
struct UffdioRegister {
    range: UffdioRange,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdioWriteprotect {
    range: UffdioRange,
    mode: u64,
}

/// A userfaultfd in asynchronous write-protect mode. May be used from any thread.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
}

impl Uffd {
    /// Opens one for the calling process, close-on-exec. Also tracks pages that were never touched
    /// (`WP_UNPOPULATED`).
    ///
    /// Where the system call is forbidden, `/dev/userfaultfd` is tried, which an administrator may
    /// open to a group.
    ///
    /// # Errors
    /// `EPERM` under a container's seccomp profile or where ordinary users may not, `ENOSYS`
    /// without userfaultfd, `EINVAL` before Linux 6.7, `EMFILE`.
    pub fn open_wp_async() -> io::Result<Uffd> {
        Self::from_fd(open_syscall().or_else(|e| open_device().map_err(|_| e))?)
    }

    /// Sets up one that was made by `userfaultfd(2)` and not used yet, in this process or in
    /// another one: what is registered is memory of the process that made it.
    ///
    /// # Errors
    /// `EINVAL` before Linux 6.7, and for a descriptor that is set up already or is none of these.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Uffd> {
        let mut api = UffdioApi {
            api: UFFD_API,
            features: UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_UNPOPULATED | UFFD_FEATURE_WP_ASYNC,
            ioctls: 0,
        };
        // SAFETY: the struct is the one UFFDIO_API takes and outlives the call.
        check_int(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, &raw mut api) })?;
        Ok(Uffd { fd })
    }

    /// The same with another descriptor of the same open file, which `f` makes of the one it has.
    pub fn map_fd(self, f: impl FnOnce(OwnedFd) -> OwnedFd) -> Uffd {
        Uffd { fd: f(self.fd) }
    }

    /// Starts tracking a page-aligned range of this process. Pages are not protected yet: all of
    /// them read as written until a scan with `protect`, or [`Uffd::write_protect`], covers them.
    ///
    /// # Errors
    /// `InvalidInput` for a hugetlb range, `EINVAL` for one that is not aligned or has unmapped
    /// parts, `EBUSY` if another userfaultfd has it, `ENOMEM`.
    pub fn register_wp(&self, addr: usize, len: usize) -> io::Result<()> {
        refuse_hugetlb(addr, len)?;
        self.register_wp_unchecked(addr, len)
    }

    /// As [`Uffd::register_wp`] for memory known not to be hugetlb, without a check.
    /// Async-signal-safe.
    ///
    /// # Errors
    /// As [`Uffd::register_wp`].
    pub fn register_wp_unchecked(&self, addr: usize, len: usize) -> io::Result<()> {
        let mut arg = UffdioRegister { range: range(addr, len), mode: UFFDIO_REGISTER_MODE_WP, ioctls: 0 };
        // SAFETY: the struct is the one UFFDIO_REGISTER takes. Registering changes no content.
        check_int(unsafe { libc::ioctl(self.fd.as_raw_fd(), UFFDIO_REGISTER, &raw mut arg) }).map(|_| ())
    }

    /// Stops tracking a range and takes the protection off.
    ///
    /// # Errors
    /// `EINVAL` for a range that is not aligned or not mapped.
    pub fn unregister(&self, addr: usize, len: usize) -> io::Result<()> {
        let mut arg = range(addr, len);
        // SAFETY: the struct is the one UFFDIO_UNREGISTER takes.
        check_int(unsafe { libc::ioctl(self.fd.as_raw_fd(), UFFDIO_UNREGISTER, &raw mut arg) }).map(|_| ())
    }

    /// Protects (`on`) every page of a registered range, or takes the protection off, which makes
    /// them read as written.
    ///
    /// # Errors
    /// `ENOENT` when part of the range is not registered, `EINVAL` when it is not aligned.
    pub fn write_protect(&self, addr: usize, len: usize, on: bool) -> io::Result<()> {
        let mode = if on { UFFDIO_WRITEPROTECT_MODE_WP } else { 0 };
        let mut arg = UffdioWriteprotect { range: range(addr, len), mode };
        loop {
            // SAFETY: the struct is the one UFFDIO_WRITEPROTECT takes.
            match check_int(unsafe { libc::ioctl(self.fd.as_raw_fd(), UFFDIO_WRITEPROTECT, &raw mut arg) }) {
                Ok(_) => return Ok(()),
                // EAGAIN: another thread is changing mappings just now; nothing was done yet.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => std::thread::yield_now(),
                Err(e) => return Err(e),
            }
        }
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn range(addr: usize, len: usize) -> UffdioRange {
    UffdioRange { start: addr as u64, len: len as u64 }
}

fn open_syscall() -> io::Result<OwnedFd> {
    // SAFETY: an integer argument.
    let fd = check(unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | UFFD_USER_MODE_ONLY) })?;
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn open_device() -> io::Result<OwnedFd> {
    let dev = fs::File::open("/dev/userfaultfd")?;
    let flags = libc::O_CLOEXEC | UFFD_USER_MODE_ONLY;
    // SAFETY: an integer argument.
    let fd = check_int(unsafe { libc::ioctl(dev.as_raw_fd(), USERFAULTFD_IOC_NEW, flags) })?;
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Refuses a range that touches a hugetlb mapping: asked of the kernel mapping by mapping (Linux
/// 6.11), or read from smaps, which walks the page tables of the whole process. Where neither can
/// be read nothing is rejected.
fn refuse_hugetlb(addr: usize, len: usize) -> io::Result<()> {
    let end = addr.saturating_add(len);
    let found = has_hugetlb_by_query(addr, end).or_else(|_| has_hugetlb_by_smaps(addr, end)).unwrap_or(false);
    if found {
        let why = "lies in a hugetlb mapping, which cannot be tracked: use ordinary memory";
        return Err(invalid(format!("range {addr:#x}+{len:#x} {why}")));
    }
    Ok(())
}

fn has_hugetlb_by_query(addr: usize, end: usize) -> io::Result<bool> {
    let maps = procfs::own("maps", |path| fs::File::open(path))?;
    let mut at = addr;
    while at < end {
        let mut query = ProcmapQuery {
            size: size_of::<ProcmapQuery>() as u64,
            query_flags: PROCMAP_QUERY_COVERING_OR_NEXT_VMA,
            query_addr: at as u64,
            ..ProcmapQuery::default()
        };
        // SAFETY: the struct is the one PROCMAP_QUERY takes; no name and no build id are asked for.
        match check_int(unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) }) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(false),
            Err(e) => return Err(e),
            Ok(_) if query.vma_start >= end as u64 => return Ok(false),
            Ok(_) if query.vma_page_size > page_size() as u64 => return Ok(true),
            // Forward in any case, whatever the kernel answers.
            Ok(_) => at = (query.vma_end as usize).max(at + page_size()),
        }
    }
    Ok(false)
}

fn has_hugetlb_by_smaps(addr: usize, end: usize) -> io::Result<bool> {
    let smaps = procfs::own_text("smaps")?;
    let mut inside = false;
    for line in smaps.lines() {
        let first = line.split(' ').next().unwrap_or("");
        if let Some((lo, hi)) = first.split_once('-')
            && let (Ok(lo), Ok(hi)) = (usize::from_str_radix(lo, 16), usize::from_str_radix(hi, 16))
        {
            inside = lo < end && hi > addr;
        } else if inside && first == "VmFlags:" && line.split(' ').any(|f| f == "ht") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Tracks one write to an untouched page and one to a touched page, and sees both.
pub fn probe() -> Support {
    let page = page_size();
    let tried = (|| {
        let uffd = Uffd::open_wp_async()?;
        let m = Mapping::anonymous(3 * page, false)?;
        let pagemap = Pagemap::own()?;
        // SAFETY: the first page of an own mapping of three.
        unsafe { m.as_ptr().write_volatile(1) };
        uffd.register_wp(m.addr(), m.len())?;
        let mut found = Vec::new();
        pagemap.scan_written(m.addr(), m.addr() + m.len(), true, 0, &mut found)?;
        found.clear();
        // SAFETY: the first and the last page of an own mapping of three.
        unsafe {
            m.as_ptr().write_volatile(2);
            m.as_ptr().add(2 * page).write_volatile(2);
        }
        pagemap.scan_written(m.addr(), m.addr() + m.len(), true, 0, &mut found)?;
        let (a, p) = (m.addr(), page);
        if found == [(a, a + p), (a + 2 * p, a + 3 * p)] {
            Ok(())
        } else {
            Err(io::Error::other(format!("two written pages of three were reported as {} ranges", found.len())))
        }
    })();
    Support::from_result("userfaultfd", tried, |e| {
        match e.raw_os_error() {
            Some(libc::EPERM) => {
                "forbidden by seccomp (a container's profile: allow userfaultfd and ioctl) or by \
                 vm.unprivileged_userfaultfd"
            }
            Some(libc::EACCES) => {
                "/proc/self/pagemap is closed to this process (after setuid: prctl PR_SET_DUMPABLE \
                1)"
            }
            Some(libc::ENOSYS) => "kernel built without CONFIG_USERFAULTFD, or forbidden by seccomp",
            Some(libc::EINVAL | libc::ENOTTY) => "asynchronous write-protection needs Linux 6.7",
            _ => "",
        }
        .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways to see hugetlb must agree, whichever this kernel would use.
    #[test]
    fn both_ways_to_see_hugetlb_agree() {
        let plain = Mapping::anonymous(2 << 20, false).expect("mmap");
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address the kernel picks, never touched.
        let huge = unsafe { libc::mmap(std::ptr::null_mut(), 2 << 20, libc::PROT_READ, flags, -1, 0) };
        for (addr, expected) in [(plain.addr(), false), (huge as usize, true)] {
            if addr == libc::MAP_FAILED as usize {
                continue;
            }
            assert_eq!(has_hugetlb_by_smaps(addr, addr + (2 << 20)).expect("smaps"), expected);
            if let Ok(found) = has_hugetlb_by_query(addr, addr + (2 << 20)) {
                assert_eq!(found, expected);
            }
        }
        if huge != libc::MAP_FAILED {
            // SAFETY: the own mapping, which nobody refers to.
            unsafe { libc::munmap(huge, 2 << 20) };
        }
    }
}
