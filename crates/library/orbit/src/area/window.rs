//! The window: one reservation of address space that all areas are carved from.
//!
//! It is made before the template is cloned and never moved, so an area has the same address in
//! main and in every orbit. Reserved space is `PROT_NONE` and costs no memory. Ranges go out page
//! aligned, from 2 MiB on aligned to 2 MiB, with at least one unmapped page between two, and come
//! back when an area goes away.

use crate::error::{Error, Kind, Result};
use crate::per_process::{Inherit, PerProcess};
use crate::units::{Address, Bytes};
use orbit_linux::map::{self, Mapping};
use orbit_linux::rlimit;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What is reserved when nobody says otherwise.
const DEFAULT_BYTES: Bytes = Bytes::new(64 << 30);
/// Less than this is not worth continuing with.
const LEAST_BYTES: Bytes = Bytes::new(16 << 20);
/// Where address space is limited, the window takes one part in so many of what is left: an orbit's
/// replica takes as much again as the area, and the program wants some too.
const ADDRESS_SPACE_DIVISOR: u64 = 3;
/// Alignment of ranges at least this long, and the unit of a huge page.
const HUGE: Bytes = Bytes::new(2 << 20);

/// The reservation and what of it is free.
#[derive(Debug)]
pub(crate) struct Window {
    base: Address,
    len: Bytes,
    /// Free ranges by address: start to length. No two touch.
    free: Mutex<BTreeMap<Address, Bytes>>,
}

/// Locked while the window is reserved, so that two first users do not reserve twice.
static WINDOW: PerProcess<Option<&'static Window>> = PerProcess::new();

/// A child continues with its parent's window, in which its parent's areas stay taken. If another
/// thread was taking or giving back at the fork, the child reserves one of its own.
impl Inherit for Option<&'static Window> {
    fn inherit(&self) -> Self {
        let parents = (*self)?;
        let free = parents.free.try_lock().ok()?.clone();
        Some(Box::leak(Box::new(Window { base: parents.base, len: parents.len, free: Mutex::new(free) })))
    }
}

/// The window, reserved with the default size on first use.
pub(crate) fn window() -> Result<&'static Window> {
    reserve_window(DEFAULT_BYTES)
}

/// The window, if it is reserved.
pub(crate) fn existing() -> Option<&'static Window> {
    *WINDOW.lock().read().unwrap_or_else(PoisonError::into_inner)
}

/// Reserves `bytes` of address space as the window: a third of what is left where `ulimit -v`
/// leaves less, and half as much again and again where the kernel fails. A window that exists
/// already stays as it is, whatever its size.
///
/// # Errors
/// `Limit` when not even 16 MiB is available.
pub(crate) fn reserve_window(bytes: Bytes) -> Result<&'static Window> {
    if let Some(window) = existing() {
        return Ok(window);
    }
    let mut slot = WINDOW.lock().write().unwrap_or_else(PoisonError::into_inner);
    if let Some(window) = *slot {
        return Ok(window);
    }
    let mut len = bytes.max(LEAST_BYTES).up_to(HUGE);
    if let Some((limit, used)) = rlimit::address_space() {
        let share = Bytes::new((limit.saturating_sub(used) / ADDRESS_SPACE_DIVISOR) as usize);
        if share < LEAST_BYTES {
            let needed = (used + ADDRESS_SPACE_DIVISOR * LEAST_BYTES.get() as u64) >> 10;
            return Err(Error::new(
                Kind::Limit,
                format!(
                    "address space is too scarce for areas: {} KiB are allowed (ulimit -v) and {} in use; \
                     raise the limit to {needed} or more",
                    limit >> 10,
                    used >> 10
                ),
            ));
        }
        len = len.min(share.down_to(HUGE));
    }
    loop {
        let half = Bytes::new(len.get() / 2);
        match Mapping::reserve(len.get()) {
            Ok(mapping) => {
                // Areas hold addresses inside the window for as long as the process lives, so it is
                // never unmapped.
                let mapping = std::mem::ManuallyDrop::new(mapping);
                return Ok(slot.insert(Box::leak(Box::new(Window::over(Address::new(mapping.addr()), len)))));
            }
            Err(_) if half >= LEAST_BYTES => len = half.up_to(HUGE),
            Err(error) => {
                let doing = "cannot reserve address space for areas: the kernel refuses even";
                return Err(Error::system(format!("{doing} {}", super::human(len)), error));
            }
        }
    }
}

impl Window {
    fn over(base: Address, len: Bytes) -> Self {
        Window { base, len, free: Mutex::new(BTreeMap::from([(base, len)])) }
    }

    /// The first address of the window.
    pub(crate) fn base(&self) -> Address {
        self.base
    }

    /// Its length.
    pub(crate) fn len(&self) -> Bytes {
        self.len
    }

    /// Whether any byte of `[addr, addr + len)` lies in the window.
    pub(crate) fn overlaps(&self, addr: Address, len: Bytes) -> bool {
        addr < self.base + self.len && self.base < addr.saturating_add(len)
    }

    /// The whole room a range of `bytes` takes: it and the unmapped page after it.
    fn room(bytes: Bytes) -> Bytes {
        Bytes::new(bytes.get().saturating_add(map::page_size()))
    }

    /// Takes a range of `bytes` (whole pages) out of the window. It is still `PROT_NONE`.
    ///
    /// # Errors
    /// `Full` when no free range is long enough.
    pub(crate) fn take(&self, bytes: Bytes) -> Result<Address> {
        self.take_aligned(bytes, if bytes >= HUGE { HUGE } else { Bytes::new(map::page_size()) })
    }

    /// The same at a multiple of `align`, a power of two and whole pages.
    ///
    /// # Errors
    /// As [`Window::take`].
    pub(crate) fn take_aligned(&self, bytes: Bytes, align: Bytes) -> Result<Address> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let room = Self::room(bytes);
        let found = free.iter().find_map(|(&start, &len)| {
            let first = start.up_to(align);
            first.checked_add(room).filter(|&end| end <= start + len).map(|_| (start, len, first))
        });
        let Some((start, len, first)) = found else {
            let left: Bytes = free.values().copied().sum();
            return Err(Error::new(
                Kind::Full,
                format!(
                    "no address space for an area with a limit of {}: of the window of {} for all areas {} are free, \
                     in \
                     pieces perhaps, and each area takes a page more than its limit; give areas lower limits, \
                     destroy some, \
                     or set the library up with a larger window{}",
                    super::human(bytes),
                    super::human(self.len),
                    super::human(left),
                    if rlimit::address_space().is_some() { " (ulimit -v bounds it)" } else { "" }
                ),
            ));
        };
        free.remove(&start);
        if first > start {
            free.insert(start, first - start);
        }
        if first + room < start + len {
            free.insert(first + room, start + len - (first + room));
        }
        Ok(first)
    }

    /// Takes back a range that `take` gave. The caller has made it `PROT_NONE` again.
    pub(crate) fn release_range(&self, first: Address, bytes: Bytes) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut start, mut end) = (first, first + Self::room(bytes));
        if let Some((&before, &len)) = free.range(..start).next_back()
            && before + len == start
        {
            free.remove(&before);
            start = before;
        }
        if let Some(len) = free.remove(&end) {
            end += len;
        }
        free.insert(start, end - start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges do not overlap, are aligned, leave a gap, and all come back.
    #[test]
    fn ranges_are_apart_and_come_back() {
        let times = |n: usize| Bytes::new(n * HUGE.get());
        let window = Window::over(Address::new(100 * HUGE.get()), times(64));
        let page = Bytes::new(4096);
        let sizes = [page, HUGE, page + page, times(3), page, Bytes::new(1 << 20), HUGE + page];
        let mut taken = Vec::new();
        for bytes in sizes {
            let first = window.take(bytes).unwrap();
            assert!(first.is_multiple_of(if bytes >= HUGE { HUGE } else { page }));
            assert!(window.overlaps(first, bytes));
            for &(other, len) in &taken {
                assert!(first >= other + len + page || other >= first + bytes + page);
            }
            taken.push((first, bytes));
        }
        assert!(window.take(times(64)).is_err());
        let (first, bytes) = (window.take_aligned(page, times(8)).unwrap(), page);
        assert!(first.is_multiple_of(times(8)));
        assert!(taken.iter().all(|&(other, len)| first >= other + len + page || other >= first + bytes + page));
        taken.push((first, bytes));
        for (first, bytes) in taken {
            window.release_range(first, bytes);
        }
        let free = window.free.lock().unwrap();
        assert_eq!(*free, BTreeMap::from([(Address::new(100 * HUGE.get()), times(64))]));
    }
}
