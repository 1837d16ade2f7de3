//! Whether existing memory can become an area: whole pages, private, writable, ordinary.

use crate::error::{Error, Kind, Result};
use crate::side;
use crate::units::{Address, Bytes};
use orbit_linux::map::page_size;
use orbit_linux::procfs;

/// What stands for the path of a mapping without one.
const NO_FILE: &str = "no file";

/// Checks `[addr, addr + len)` against the mappings of this process. Returns whether all of it is
/// anonymous memory, of which pages that were never touched read as zeros.
///
/// # Errors
/// `Invalid` for what is not page aligned, mapped, writable and private, and for memory of the heap
/// once the library is set up; `Unsupported` for huge pages of hugetlbfs and without `/proc`.
pub(super) fn check(name: &str, addr: Address, len: Bytes) -> Result<bool> {
    let reject = |kind, why: String| {
        Err(Error::new(kind, format!("cannot adopt {len} bytes at {addr:#x} as area \"{name}\": {why}")))
    };
    let page = Bytes::new(page_size());
    if addr == Address::ZERO || len == Bytes::ZERO || !addr.is_multiple_of(page) || len.down_to(page) != len {
        return reject(
            Kind::Invalid,
            format!("address and length must be multiples of the page size, {page}, and not zero; align the memory"),
        );
    }
    let Some(end) = addr.checked_add(len) else {
        return reject(Kind::Invalid, "it ends beyond the address space".into());
    };
    let maps = match procfs::own_text("maps") {
        Ok(maps) => maps,
        Err(error) => {
            return reject(Kind::Unsupported, format!("/proc/self/maps cannot be read ({error}); mount /proc"));
        }
    };
    let mut at = addr;
    let mut anonymous = true;
    for line in maps.lines() {
        let Some((start, stop, flags, path)) = parse(line) else { continue };
        if stop <= at {
            continue;
        }
        if start > at {
            break;
        }
        if !flags.starts_with("rw") {
            return reject(Kind::Invalid, format!("{at:#x} is not both readable and writable ({flags})"));
        }
        if flags.as_bytes().get(3) != Some(&b'p') {
            return reject(
                Kind::Invalid,
                format!("{at:#x} is shared memory ({path}); only private memory can be tracked"),
            );
        }
        if path.contains("anon_hugepage") || path.contains("hugepages") {
            return reject(
                Kind::Unsupported,
                format!("{at:#x} is made of hugetlb pages, which cannot be tracked page by page"),
            );
        }
        if path == "[heap]" && side::is_set_up() {
            return reject(
                Kind::Invalid,
                format!(
                    "{at:#x} is memory of the heap, where orbits have memory of their own by now; adopt it before the \
                     library is set up (orbit_init, or the first orbit), or get the memory from mmap"
                ),
            );
        }
        // What has no file has no path, or a name in brackets that the kernel or the program gave
        // it.
        anonymous &= path == NO_FILE || path.starts_with('[');
        at = stop;
        if at >= end {
            return Ok(anonymous);
        }
    }
    reject(Kind::Invalid, format!("{at:#x} is not mapped"))
}

/// Start, end, flags and path of a line of `/proc/self/maps`.
pub(super) fn parse(line: &str) -> Option<(Address, Address, &str, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (start, stop) = words.next()?.split_once('-')?;
    let flags = words.next()?;
    let path = words.nth(3).unwrap_or(NO_FILE);
    let address = |text| usize::from_str_radix(text, 16).ok().map(Address::new);
    Some((address(start)?, address(stop)?, flags, path))
}
