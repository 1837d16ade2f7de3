//! Collections of other crates in an area, by the allocator interface of `allocator-api2` (feature
//! of that name).
//!
//! A collection lies in an area with all it holds, and a task reads it there. Its allocator is then
//! part of the picture that an orbit has, where main's books do not exist: there it is never
//! followed, and memory comes from the orbit's own heap.

use std::alloc::Layout;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use allocator_api2::alloc::{AllocError, Allocator, Global};

use super::inner::AreaInner;
use super::{Area, is_carved};
use crate::side::is_own_side;
use crate::units::{Address, Bytes};

/// Allocates in an area. While one lives, [`Area::destroy`] is rejected, and the area outlives its
/// handles. In an orbit it allocates from the orbit's own heap, and frees nothing of an area.
///
/// ```
/// use std::hash::RandomState;
/// use hashbrown::HashMap;
/// let area = orbit::Area::new(1 << 20)?;
/// let mut map = HashMap::with_hasher_in(RandomState::new(), area.allocator());
/// map.insert("key", 1);
/// let map = area.place(map)?;      // a task reads it by this address
/// # // SAFETY: nothing else uses it, and it is not used again.
/// # unsafe { std::ptr::drop_in_place(map.as_ptr()); area.free(map.cast())? };
/// # Ok::<(), orbit::Error>(())
/// ```
///
/// A map needs a hasher that has its keys in itself, as `std::hash::RandomState`: hashbrown's
/// default has a seed in a global variable, which is another one in an orbit, and finds nothing
/// there.
///
/// A collection that gets no memory (the area is full) ends the program, unless asked by its `try_`
/// functions.
pub struct AreaAllocator {
    /// Of main: a counted reference. Followed in main only.
    area: *const AreaInner,
}

// SAFETY: areas may be used from any thread, and the pointer is a counted reference to one.
unsafe impl Send for AreaAllocator {}
// SAFETY: as above.
unsafe impl Sync for AreaAllocator {}

impl Area {
    /// An allocator for collections in this area. Adopted memory has none: its allocator fails
    /// always.
    pub fn allocator(&self) -> AreaAllocator {
        if !is_own_side() {
            self.inner.stays.fetch_add(1, Ordering::AcqRel);
        }
        AreaAllocator { area: Arc::into_raw(self.inner.clone()) }
    }
}

impl AreaAllocator {
    /// The area, in main.
    fn area(&self) -> Option<&AreaInner> {
        // SAFETY: in main, and what was forked from it without being its orbit, the reference is
        // counted there.
        (!is_own_side()).then(|| unsafe { &*self.area })
    }
}

impl Clone for AreaAllocator {
    fn clone(&self) -> AreaAllocator {
        if let Some(area) = self.area() {
            area.stays.fetch_add(1, Ordering::AcqRel);
            // SAFETY: it came from `Arc::into_raw`, and this one's reference lives.
            unsafe { Arc::increment_strong_count(self.area) };
        }
        AreaAllocator { area: self.area }
    }
}

impl Drop for AreaAllocator {
    fn drop(&mut self) {
        if let Some(area) = self.area() {
            area.stays.fetch_sub(1, Ordering::AcqRel);
            // SAFETY: this one's reference, given up once.
            unsafe { Arc::decrement_strong_count(self.area) };
        }
    }
}

impl fmt::Debug for AreaAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AreaAllocator")
    }
}

// SAFETY: memory stays where it is until it is freed: the area is neither destroyed nor dropped
// while an allocator lives. Clones share the area.
unsafe impl Allocator for AreaAllocator {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let Some(area) = self.area() else { return Global.allocate(layout) };
        if layout.size() == 0 {
            let nothing = std::ptr::without_provenance_mut(layout.align());
            return NonNull::new(nothing).map(|at| NonNull::slice_from_raw_parts(at, 0)).ok_or(AllocError);
        }
        // SAFETY: the reference is counted, and this one is released by the `Arc` made of it.
        let area = unsafe {
            Arc::increment_strong_count(std::ptr::from_ref(area));
            Arc::from_raw(self.area)
        };
        let object = area.alloc(Bytes::new(layout.size()), layout.align(), false).map_err(|_| AllocError)?;
        Ok(NonNull::slice_from_raw_parts(object, layout.size()))
    }

    unsafe fn deallocate(&self, object: NonNull<u8>, layout: Layout) {
        match self.area() {
            None if is_carved(object.addr().get()) => {}
            // SAFETY: of an orbit's own heap, as `allocate` gives it there.
            None => unsafe { Global.deallocate(object, layout) },
            Some(_) if layout.size() == 0 => {}
            Some(area) => {
                // An error is one of the collection's; the area is unharmed.
                let _ = area.free(Address::of(object.as_ptr()));
            }
        }
    }
}
