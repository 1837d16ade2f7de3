//! Where main's memory may come to lie in an orbit: in what was there when its template was made,
//! and what was free then.
//!
//! An orbit has memory of its own besides: its heap, its mappings. The kernel gives an orbit the
//! addresses that it gives main, so what main maps later would often lie there. So a template keeps
//! the next addresses that the kernel would give free, and its orbits get others. What collides all
//! the same is found when the area is attached, and not overwritten.

use super::adopt::parse;
use super::window::existing;
use crate::units::{Address, Bytes};
use orbit_linux::map::{self, Mapping};
use orbit_linux::procfs;
use std::io;
use std::sync::{Mutex, PoisonError};

/// Address space that a template keeps free for what main maps later. Costs no memory.
const KEPT_FREE: usize = 64 << 30;

/// Gaps between mappings that are kept free as well. Each costs a clone of the template the copy of
/// one mapping more.
const MOST_GAPS: usize = 64;

/// `(start, end)`, ascending, of what was mapped when the template was made, and what was free when
/// an area came there. Empty where that is not known.
static PLACES: Mutex<Vec<(Address, Address)>> = Mutex::new(Vec::new());

/// Called in a template, once, before it is asked for orbits.
pub(crate) fn note_places() {
    if orbit_linux::rlimit::address_space().is_none()
        && let Ok(kept) = Mapping::reserve(KEPT_FREE)
    {
        fill_gaps_above(Address::new(kept.leak().0));
    }
    fill_window();
    let maps = procfs::own_text("maps").unwrap_or_default();
    let ranges = maps.lines().filter_map(parse).map(|(start, end, ..)| (start, end));
    *PLACES.lock().unwrap_or_else(PoisonError::into_inner) = ranges.collect();
}

/// Reserves what the window lacks in this process: shared areas of main's, which no child has.
fn fill_window() {
    let Some(window) = existing() else { return };
    let (mut at, end) = (window.base(), window.base() + window.len());
    let maps = procfs::own_text("maps").unwrap_or_default();
    for (start, stop, ..) in maps.lines().filter_map(parse) {
        if start.min(end) > at {
            let _ = map::none_if_free(at.get(), (start.min(end) - at).get());
        }
        at = at.max(stop.min(end));
    }
}

/// Keeps free what lies between mappings from `at` on: the kernel takes such gaps first, where they
/// are large enough.
fn fill_gaps_above(at: Address) {
    let maps = procfs::own_text("maps").unwrap_or_default();
    let below_stack = || maps.lines().filter_map(parse).take_while(|(.., path)| *path != "[stack]");
    let above = || below_stack().filter(|(start, ..)| *start >= at);
    let gaps = above().zip(above().skip(1)).map(|((_, end, ..), (next, ..))| (end, next)).filter(|gap| gap.0 < gap.1);
    for (start, end) in gaps.take(MOST_GAPS) {
        let _ = map::none_if_free(start.get(), (end - start).get());
    }
}

/// Called in an orbit, before main's memory at `[base, base + len)` is put there: what of it was
/// not there at the template's time must be free, and becomes reserved.
///
/// # Errors
/// `EEXIST` where the orbit has memory of its own there; that is as it was.
pub(crate) fn make_place(base: Address, len: Bytes) -> io::Result<()> {
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    if places.is_empty() {
        return Ok(());
    }
    let (mut at, end) = (base, base + len);
    // The stack was there at the template's time, and is in use.
    if (base..end).contains(&Address::of(&raw const at)) {
        return Err(io::Error::from_raw_os_error(libc::EEXIST));
    }
    let mut next = places.partition_point(|place| place.1 <= base);
    while at < end {
        match places.get(next) {
            Some(&(start, stop)) if start <= at => at = stop,
            later => {
                let free_to = later.map_or(end, |place| place.0.min(end));
                map::none_if_free(at.get(), (free_to - at).get())?;
                places.insert(next, (at, free_to));
                at = free_to;
            }
        }
        next += 1;
    }
    Ok(())
}
