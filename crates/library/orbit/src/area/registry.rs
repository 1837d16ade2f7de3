//! All living areas by address: which area a pointer belongs to.
//!
//! A look-up takes a shared lock and a search of a few nodes, and may run in any number of threads
//! at once; making and dropping an area takes the lock alone.

use super::inner::AreaInner;
use crate::error::{Error, Kind, Result};
use crate::per_process::{Inherit, PerProcess};
use crate::units::{Address, Bytes};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, Weak};

/// One living area. The pointer is valid while the entry is in the map: an area takes its entry
/// out, under the exclusive lock, before it goes.
#[derive(Clone)]
struct Entry {
    len: Bytes,
    here: *const AreaInner,
    handle: Weak<AreaInner>,
}

// SAFETY: the pointer is only read through, under the lock, and `AreaInner` may be used from any
// thread.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

/// By base address; no two overlap.
static AREAS: PerProcess<Areas> = PerProcess::new();

type Areas = BTreeMap<Address, Entry>;

/// A child knows its parent's areas, to say whose they are.
impl Inherit for Areas {
    fn inherit(&self) -> Areas {
        self.clone()
    }
}

/// Refuses a range that overlaps an area.
fn clash(areas: &Areas, name: &str, base: Address, len: Bytes) -> Result<()> {
    let end = base.saturating_add(len);
    match areas.range(..end).next_back() {
        Some((&other, entry)) if other + entry.len > base => {
            // SAFETY: the entry is in the map, and the caller holds the lock.
            let theirs = unsafe { &(*entry.here).name };
            Err(Error::new(
                Kind::Invalid,
                format!(
                    "area \"{name}\" at {base:#x} to {end:#x} overlaps area \"{theirs}\" at {other:#x} to {:#x}; \
                     adopt each range once",
                    other + entry.len
                ),
            ))
        }
        _ => Ok(()),
    }
}

/// Whether an area could be entered at this range now.
///
/// # Errors
/// `Invalid` when it overlaps another one.
pub(super) fn check(name: &str, base: Address, len: Bytes) -> Result<()> {
    clash(&AREAS.lock().read().unwrap_or_else(PoisonError::into_inner), name, base, len)
}

/// Enters an area.
///
/// # Errors
/// As [`check`].
pub(super) fn enter(area: &Arc<AreaInner>) -> Result<()> {
    let mut areas = AREAS.lock().write().unwrap_or_else(PoisonError::into_inner);
    clash(&areas, &area.name, area.base, area.limit)?;
    areas.insert(area.base, Entry { len: area.limit, here: Arc::as_ptr(area), handle: Arc::downgrade(area) });
    Ok(())
}

/// Takes an area out, if it is in.
pub(super) fn leave(area: &AreaInner) {
    let mut areas = AREAS.lock().write().unwrap_or_else(PoisonError::into_inner);
    if areas.get(&area.base).is_some_and(|entry| std::ptr::eq(entry.here, area)) {
        areas.remove(&area.base);
    }
}

/// Calls `f` with the area that holds `addr`; it cannot go away meanwhile.
pub(super) fn with<R>(addr: Address, f: impl FnOnce(&AreaInner) -> R) -> Option<R> {
    let areas = AREAS.lock().read().unwrap_or_else(PoisonError::into_inner);
    let (&base, entry) = areas.range(..=addr).next_back()?;
    if addr - base >= entry.len {
        return None;
    }
    // SAFETY: the entry is in the map and we hold the lock.
    Some(f(unsafe { &*entry.here }))
}

/// The area that holds `addr`.
pub(super) fn find(addr: Address) -> Option<Arc<AreaInner>> {
    let areas = AREAS.lock().read().unwrap_or_else(PoisonError::into_inner);
    let (&base, entry) = areas.range(..=addr).next_back()?;
    if addr - base >= entry.len { None } else { entry.handle.upgrade() }
}
