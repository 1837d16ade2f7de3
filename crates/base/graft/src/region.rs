//! Memory of ours in a stopped program.

use crate::process::Process;
use crate::stub::{Makes, Undo};
use crate::{Error, Stopped};
use orbit_linux::map::page_size;
use orbit_linux::maps::{self, Entry};
use std::os::fd::BorrowedFd;

/// What may be done with mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection(i32);

impl Protection {
    /// Nothing: the addresses are reserved.
    pub const NONE: Protection = Protection(libc::PROT_NONE);
    /// Data that is read.
    pub const READ: Protection = Protection(libc::PROT_READ);
    /// Data.
    pub const READ_WRITE: Protection = Protection(libc::PROT_READ | libc::PROT_WRITE);
    /// Code.
    pub const READ_EXECUTE: Protection = Protection(libc::PROT_READ | libc::PROT_EXEC);
    /// Code that is written. Security modules may deny it.
    pub const READ_WRITE_EXECUTE: Protection = Protection(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
}

/// What mapped memory holds.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Private memory of zeros.
    Zeroes,
    /// Private memory that begins with these bytes, whatever its protection; zeros after them.
    Bytes(&'a [u8]),
    /// A file of ours (a memfd), from `offset` on in bytes (whole pages).
    File {
        /// The file, open here as the mapping needs it; the program is given it for as long as it
        /// takes.
        file: BorrowedFd<'a>,
        /// Where the mapping begins in the file.
        offset: u64,
        /// Shared: writes reach the file. Else writes stay private.
        shared: bool,
    },
}

/// Memory that was mapped into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// Length in bytes, whole pages.
    pub len: u64,
}

impl Region {
    fn undo(self) -> Undo {
        Undo::Unmap { start: self.start, len: self.len }
    }
}

/// Where [`free_address`] searches: far from where the kernel puts programs, heaps and libraries.
const FROM: u64 = 0x1000_0000_0000;
const UNTIL: u64 = 0x5000_0000_0000;
/// Where room for arguments is searched for: below that.
const SCRATCH_FROM: u64 = 0x0800_0000_0000;

/// Returns an address at which `len` bytes are free in all of the processes now. It may be taken a
/// moment later: then mapping there fails with [`Error::Occupied`].
///
/// # Errors
/// Those of [`Process::mappings`]; [`Error::Unsuitable`] if there is none.
pub fn free_address(processes: &[&Process], len: u64) -> Result<u64, Error> {
    let spaces: Vec<Vec<Entry>> = processes.iter().map(|process| process.mappings()).collect::<Result<_, _>>()?;
    let spaces: Vec<&[Entry]> = spaces.iter().map(Vec::as_slice).collect();
    maps::free_in_all(&spaces, len, FROM, UNTIL).ok_or_else(|| Error::Unsuitable {
        id: processes.first().map_or(0, |process| process.pid()),
        why: format!("no {len} bytes from {FROM:#x} to {UNTIL:#x} are free in all of {} processes", processes.len()),
    })
}

impl Stopped<'_> {
    /// Maps `len` bytes (rounded up to whole pages) into the program, at `address` or, without one,
    /// where the kernel finds room. Nothing is replaced.
    ///
    /// The region is unmapped when the program is released, unless it is [left](Stopped::leave).
    ///
    /// # Errors
    /// [`Error::Occupied`]; [`Error::Call`] with `EINVAL` for an address or offset that is no whole
    /// page, `ENOMEM`, `EACCES` or `EPERM` for a file that is sealed or not open as needed;
    /// [`Error::Unsuitable`] for more bytes than `len`; those of [`Stopped::call`].
    pub fn map(
        &mut self,
        address: Option<u64>,
        len: u64,
        protection: Protection,
        source: Source<'_>,
    ) -> Result<Region, Error> {
        let page = page_size() as u64;
        let len = len.checked_next_multiple_of(page).unwrap_or(len);
        if let Source::Bytes(bytes) = source
            && bytes.len() as u64 > len
        {
            return Err(Error::Unsuitable { id: self.pid(), why: format!("{} bytes for {len} mapped", bytes.len()) });
        }
        let (mut flags, file, offset) = match source {
            Source::Zeroes | Source::Bytes(_) => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None, 0),
            Source::File { file, offset, shared } => {
                (if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE }, Some(file), offset)
            }
        };
        if address.is_some() {
            flags |= libc::MAP_FIXED_NOREPLACE;
        }
        let number = file.map(|file| self.send(file)).transpose()?;
        let descriptor = number.map_or(u64::MAX, |number| number as u64);
        let wanted = address.unwrap_or(0);
        let arguments = [wanted, len, protection.0 as u64, flags as u64, descriptor, offset];
        let mapped = self.call_making(libc::SYS_mmap, arguments, Makes::Mapping { len });
        if let Some(number) = number {
            self.close(number)?;
        }
        let start = match mapped {
            Err(Error::Call { errno: libc::EEXIST, .. }) => return Err(self.occupied(wanted, len)),
            mapped => mapped?,
        };
        let region = Region { start, len };
        if let Source::Bytes(bytes) = source {
            self.write(start, bytes)?;
        }
        Ok(region)
    }

    fn occupied(&self, start: u64, len: u64) -> Error {
        let maps = self.mappings().unwrap_or_default();
        let there = maps.into_iter().find(|entry| entry.end > start && entry.start < start + len);
        let by = match there.map(|entry| entry.name) {
            Some(name) if !name.is_empty() => name,
            _ => "anonymous memory".into(),
        };
        Error::Occupied { start, len, by }
    }

    /// The region stays in the program.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn leave(&mut self, region: Region) -> Result<(), Error> {
        self.strike(region.undo())
    }

    /// Unmaps a region, one that was left earlier included.
    ///
    /// # Errors
    /// Those of [`Stopped::call`].
    pub fn unmap(&mut self, region: Region) -> Result<(), Error> {
        self.undo_now(region.undo())
    }

    /// Memory for arguments: a page, unmapped at the end.
    pub(crate) fn scratch(&mut self) -> Result<u64, Error> {
        if let Some(scratch) = self.scratch {
            return Ok(scratch);
        }
        // Not where the program has unmapped something, nor where a caller has found room: both may
        // be needed meanwhile.
        let address = maps::free_in_all(&[&self.mappings()?], page_size() as u64, SCRATCH_FROM, FROM);
        let region = self.map(address, page_size() as u64, Protection::READ_WRITE, Source::Zeroes)?;
        Ok(*self.scratch.insert(region.start))
    }
}
