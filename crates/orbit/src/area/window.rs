//! The window: one reservation of address space that all areas are carved from.
//!
//! It is made before the template is cloned and never moved, so an area has the same address in
//! main and in every orbit. Reserved space is `PROT_NONE` and costs no memory. Ranges go out page
//! aligned, from 2 MiB on aligned to 2 MiB, with at least one unmapped page between two, and come
//! back when an area goes away.

use crate::error::{Error, Kind, Result};
use crate::per_process::{Inherit, PerProcess};
use orbit_linux::map::{self, Mapping};
use orbit_linux::rlimit;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What is reserved when nobody says otherwise.
const DEFAULT_BYTES: usize = 64 << 30;
/// Less than this is not worth continuing with.
const LEAST_BYTES: usize = 16 << 20;
/// Where address space is limited, the window takes one part in so many of what is left: an orbit's
/// replica takes as much again as the area, and the program wants some too.
const SHARE: u64 = 3;
/// Alignment of ranges at least this long, and the unit of a huge page.
const HUGE: usize = 2 << 20;

/// The reservation and what of it is free.
#[derive(Debug)]
pub(crate) struct Window {
    base: usize,
    len: usize,
    /// Free ranges by address: start to length. No two touch.
    free: Mutex<BTreeMap<usize, usize>>,
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
pub(crate) fn reserve_window(bytes: usize) -> Result<&'static Window> {
    if let Some(window) = existing() {
        return Ok(window);
    }
    let mut slot = WINDOW.lock().write().unwrap_or_else(PoisonError::into_inner);
    if let Some(window) = *slot {
        return Ok(window);
    }
    let mut len = bytes.max(LEAST_BYTES).next_multiple_of(HUGE);
    if let Some((limit, used)) = rlimit::address_space() {
        let share = (limit.saturating_sub(used) / SHARE) as usize;
        if share < LEAST_BYTES {
            let needed = (used + SHARE * LEAST_BYTES as u64) >> 10;
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
        len = len.min(share / HUGE * HUGE);
    }
    loop {
        match Mapping::reserve(len) {
            Ok(mapping) => {
                // Areas hold addresses inside the window for as long as the process lives, so it is
                // never unmapped.
                let mapping = std::mem::ManuallyDrop::new(mapping);
                return Ok(slot.insert(Box::leak(Box::new(Window::over(mapping.as_ptr() as usize, len)))));
            }
            Err(_) if len / 2 >= LEAST_BYTES => len = (len / 2).next_multiple_of(HUGE),
            Err(error) => {
                let doing = "cannot reserve address space for areas: the kernel refuses even";
                return Err(Error::system(format!("{doing} {}", super::human(len)), error));
            }
        }
    }
}

impl Window {
    fn over(base: usize, len: usize) -> Self {
        Window { base, len, free: Mutex::new(BTreeMap::from([(base, len)])) }
    }

    /// The first address of the window.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether any byte of `[addr, addr + len)` lies in the window.
    pub(crate) fn overlaps(&self, addr: usize, len: usize) -> bool {
        addr < self.base + self.len && self.base < addr.saturating_add(len)
    }

    /// The whole room a range of `bytes` takes: it and the unmapped page after it.
    fn room(bytes: usize) -> usize {
        bytes.saturating_add(map::page_size())
    }

    /// Takes a range of `bytes` (whole pages) out of the window. It is still `PROT_NONE`.
    ///
    /// # Errors
    /// `Full` when no free range is long enough.
    pub(crate) fn take(&self, bytes: usize) -> Result<usize> {
        let align = if bytes >= HUGE { HUGE } else { map::page_size() };
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let room = Self::room(bytes);
        let found = free.iter().find_map(|(&start, &len)| {
            let first = start.next_multiple_of(align);
            (first - start).checked_add(room).filter(|&need| need <= len).map(|_| (start, len, first))
        });
        let Some((start, len, first)) = found else {
            let left: usize = free.values().sum();
            return Err(Error::new(
                Kind::Full,
                format!(
                    "no address space for an area with a limit of {}: of the window of {} for all areas {} are free, in \
                     pieces perhaps, and each area takes a page more than its limit; give areas lower limits, destroy some, \
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
    pub(crate) fn release_range(&self, first: usize, bytes: usize) {
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
        let window = Window::over(HUGE * 100, HUGE * 64);
        let sizes = [4096, HUGE, 8192, HUGE * 3, 4096, HUGE / 2, HUGE + 4096];
        let mut taken = Vec::new();
        for bytes in sizes {
            let first = window.take(bytes).unwrap();
            assert_eq!(first % if bytes >= HUGE { HUGE } else { 4096 }, 0);
            assert!(window.overlaps(first, bytes));
            for &(other, len) in &taken {
                assert!(first >= other + len + 4096 || other >= first + bytes + 4096);
            }
            taken.push((first, bytes));
        }
        assert!(window.take(HUGE * 64).is_err());
        for (first, bytes) in taken {
            window.release_range(first, bytes);
        }
        let free = window.free.lock().unwrap();
        assert_eq!(*free, BTreeMap::from([(HUGE * 100, HUGE * 64)]));
    }
}
