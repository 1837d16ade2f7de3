//! Which pages of a range were written, are present, or are private copies: `PAGEMAP_SCAN` (Linux
//! 6.7) on `/proc/PID/pagemap`, and its entries where the ioctl is missing.
//!
//! One scan is atomic page by page, not across pages: that nothing changes in between is the
//! caller's lock. Ranges are appended in ascending order, neighbours joined; addresses in bytes,
//! end exclusive.
//!
//! After a `setuid` the file cannot be opened (`EACCES`) until `prctl(PR_SET_DUMPABLE, 1)` or an
//! exec.

use crate::map::page_size;
use crate::procfs;
use crate::{Support, check_int, invalid};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

// From <linux/fs.h>, Linux 6.7; missing from Debian 12's header.
const PAGEMAP_SCAN: libc::c_ulong = 0xC060_6610;
const PM_SCAN_WP_MATCHING: u64 = 1 << 0;
const PM_SCAN_CHECK_WPASYNC: u64 = 1 << 1;
const PAGE_IS_WRITTEN: u64 = 1 << 1;
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;

// Bits of an entry of /proc/PID/pagemap.
const ENTRY_FILE: u64 = 1 << 61;
const ENTRY_SWAPPED: u64 = 1 << 62;
const ENTRY_PRESENT: u64 = 1 << 63;

/// Regions the kernel hands over in one ioctl: 6 KiB of stack, one call for all but scattered
/// writes.
const REGIONS: usize = 256;

#[repr(C)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    /// Written by the kernel: where it stopped.
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// What to search for: a page matches if its categories, after flipping `inverted`, have all of
/// `all` and one of `any`.
#[derive(Clone, Copy)]
struct Wanted {
    flags: u64,
    inverted: u64,
    all: u64,
    any: u64,
    reported: u64,
}

/// An open `/proc/PID/pagemap`. May be used from any thread.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    page: usize,
    has_scan: bool,
}

impl Pagemap {
    /// The calling process' own.
    ///
    /// # Errors
    /// `EACCES` after setuid (see above), `ENOENT` without `/proc`.
    pub fn own() -> io::Result<Self> {
        procfs::own("pagemap", Self::open)
    }

    /// Another process'. The tracking must have been set up by that process.
    ///
    /// # Errors
    /// `EACCES` without ptrace access to it, `ENOENT` when it is gone.
    pub fn of(pid: i32) -> io::Result<Self> {
        Self::open(&format!("/proc/{pid}/pagemap"))
    }

    fn open(path: &str) -> io::Result<Self> {
        let mut map = Pagemap { file: File::open(path)?, page: page_size(), has_scan: true };
        let nothing = Wanted { flags: 0, inverted: 0, all: PAGE_IS_PRESENT, any: 0, reported: PAGE_IS_PRESENT };
        map.has_scan = map.scan(0, map.page, nothing, 1, &mut Vec::new()).is_ok();
        Ok(map)
    }

    /// The same with another descriptor of the same open file, which `f` makes of the one it has.
    pub fn map_fd(mut self, f: impl FnOnce(OwnedFd) -> OwnedFd) -> Self {
        self.file = f(self.file.into()).into();
        self
    }

    /// Whether this kernel has `PAGEMAP_SCAN`; without it [`Pagemap::scan_written`] fails and the
    /// others read entries.
    pub fn has_scan(&self) -> bool {
        self.has_scan
    }

    /// The same file, read the way a kernel without `PAGEMAP_SCAN` needs it: to compare the two,
    /// and for tests.
    pub fn without_scan(mut self) -> Self {
        self.has_scan = false;
        self
    }

    /// Appends the ranges of `[start, end)` written since they were last protected, and with
    /// `protect` protects exactly those again, each page in one step with finding it: no write is
    /// lost. Stops after `max_pages` pages (0: no limit). Answers how many pages were found. Pages
    /// that were swapped out are found too.
    ///
    /// # Errors
    /// `EPERM` when part of the range is not (or no longer) registered with a
    /// [`crate::uffd::Uffd`]: nothing can be said about it, take a full copy and register it anew.
    /// `ENOTTY` before Linux 6.7. On an error `out` may have grown by ranges that are protected
    /// already: they count as written.
    pub fn scan_written(
        &self,
        start: usize,
        end: usize,
        protect: bool,
        max_pages: usize,
        out: &mut Vec<(usize, usize)>,
    ) -> io::Result<usize> {
        let flags = PM_SCAN_CHECK_WPASYNC | if protect { PM_SCAN_WP_MATCHING } else { 0 };
        // WRITTEN and nothing else: asking for PRESENT as well would lose pages that were swapped
        // out.
        let wanted = Wanted { flags, inverted: 0, all: PAGE_IS_WRITTEN, any: 0, reported: PAGE_IS_WRITTEN };
        self.scan(start, end, wanted, max_pages, out)
    }

    /// Appends the ranges of private copies (anonymous pages, present or swapped) inside a private
    /// mapping of a file: the pages the process has written itself. Answers how many pages.
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not aligned; those of reading the file.
    pub fn scan_anonymous(&self, start: usize, end: usize, out: &mut Vec<(usize, usize)>) -> io::Result<usize> {
        if !self.has_scan {
            return self
                .entries(start, end, 0, out, |e| e & (ENTRY_PRESENT | ENTRY_SWAPPED) != 0 && e & ENTRY_FILE == 0);
        }
        let there = PAGE_IS_PRESENT | PAGE_IS_SWAPPED;
        let wanted = Wanted { flags: 0, inverted: PAGE_IS_FILE, all: PAGE_IS_FILE, any: there, reported: there };
        self.scan(start, end, wanted, 0, out)
    }

    /// Appends the ranges that are populated: present or swapped out. Stops after `max_pages` pages
    /// (0: no limit). Answers how many pages.
    ///
    /// # Errors
    /// As [`Pagemap::scan_anonymous`].
    pub fn scan_populated(
        &self,
        start: usize,
        end: usize,
        max_pages: usize,
        out: &mut Vec<(usize, usize)>,
    ) -> io::Result<usize> {
        if !self.has_scan {
            return self.entries(start, end, max_pages, out, |e| e & (ENTRY_PRESENT | ENTRY_SWAPPED) != 0);
        }
        let there = PAGE_IS_PRESENT | PAGE_IS_SWAPPED;
        self.scan(start, end, Wanted { flags: 0, inverted: 0, all: 0, any: there, reported: there }, max_pages, out)
    }

    fn scan(
        &self,
        start: usize,
        end: usize,
        wanted: Wanted,
        max_pages: usize,
        out: &mut Vec<(usize, usize)>,
    ) -> io::Result<usize> {
        self.check_range(start, end)?;
        // Left as it is: to fill it would take longer than a scan of a small range.
        let mut regions = [const { MaybeUninit::<Region>::uninit() }; REGIONS];
        let first = out.len();
        let mut from = start;
        let mut found = 0;
        while from < end {
            let mut arg = ScanArg {
                size: size_of::<ScanArg>() as u64,
                flags: wanted.flags,
                start: from as u64,
                end: end as u64,
                walk_end: 0,
                vec: regions.as_mut_ptr() as u64,
                vec_len: REGIONS as u64,
                max_pages: if max_pages == 0 { 0 } else { (max_pages - found) as u64 },
                category_inverted: wanted.inverted,
                category_mask: wanted.all,
                category_anyof_mask: wanted.any,
                return_mask: wanted.reported,
            };
            // SAFETY: the struct is the one PAGEMAP_SCAN takes; the vector has room for `vec_len`
            // regions. The ioctl reads page tables, and write-protects only what was registered for
            // that.
            let n = check_int(unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) })?;
            for r in &regions[..(n as usize).min(REGIONS)] {
                // SAFETY: the kernel has written as many as it says.
                let r = unsafe { r.assume_init_ref() };
                found += (r.end - r.start) as usize / self.page;
                append(out, first, r.start as usize, r.end as usize);
            }
            // The kernel stops early when the vector is full or max_pages were found; it says
            // where.
            let stopped = arg.walk_end as usize;
            if stopped <= from || (max_pages != 0 && found >= max_pages) {
                break;
            }
            from = stopped;
        }
        Ok(found)
    }

    fn entries(
        &self,
        start: usize,
        end: usize,
        max_pages: usize,
        out: &mut Vec<(usize, usize)>,
        matches: impl Fn(u64) -> bool,
    ) -> io::Result<usize> {
        self.check_range(start, end)?;
        let mut buf = [0u8; 4096];
        let first = out.len();
        let mut found = 0;
        let mut at = start;
        while at < end {
            let want = ((end - at).div_ceil(self.page) * 8).min(buf.len());
            let n = self.file.read_at(&mut buf[..want], (at / self.page * 8) as u64)?;
            if n < 8 {
                break;
            }
            for chunk in buf[..n].chunks_exact(8) {
                let mut entry = [0; 8];
                entry.copy_from_slice(chunk);
                if matches(u64::from_ne_bytes(entry)) {
                    append(out, first, at, at + self.page);
                    found += 1;
                    if found == max_pages {
                        return Ok(found);
                    }
                }
                at += self.page;
            }
        }
        Ok(found)
    }

    fn check_range(&self, start: usize, end: usize) -> io::Result<()> {
        if !start.is_multiple_of(self.page) || !end.is_multiple_of(self.page) || start > end {
            return Err(invalid(format!(
                "range {start:#x}..{end:#x} is not made of whole pages of {} bytes",
                self.page
            )));
        }
        Ok(())
    }
}

impl AsFd for Pagemap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Appends a range, joined with the last one if they touch and that one was found by the same scan
/// (index >= `first`).
fn append(out: &mut Vec<(usize, usize)>, first: usize, start: usize, end: usize) {
    if out.len() > first
        && let Some(last) = out.last_mut()
        && last.1 == start
    {
        last.1 = end;
    } else {
        out.push((start, end));
    }
}

/// Whether `PAGEMAP_SCAN` is there and readable for this process. Without it only the entries of
/// the file are.
pub fn probe() -> Support {
    match Pagemap::own() {
        Ok(p) if p.has_scan() => Support::Yes,
        Ok(_) => {
            Support::No("PAGEMAP_SCAN: ENOTTY: needs Linux 6.7; entries of /proc/self/pagemap are read instead".into())
        }
        Err(e) => Support::from_result::<()>("/proc/self/pagemap", Err(e), |e| match e.raw_os_error() {
            Some(libc::EACCES) => "after setuid it opens again with prctl(PR_SET_DUMPABLE, 1) or an exec".into(),
            _ => "is /proc mounted?".into(),
        }),
    }
}
