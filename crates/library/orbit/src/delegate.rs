//! Delegate objects (section 4.6.3 of the paper): of a large struct, only the fields that a task
//! reads are in an area.
//!
//! A snapshot ships whole pages. Where the fields a task needs are spread over large structs, most
//! of what is shipped is of no use, and every write to any field dirties a page. A [`Delegated`]
//! keeps the struct where main likes it and a small object with those fields in the area.
//! `orbit-derive` makes the small struct: `#[derive(Delegate)]`.

use std::ops::Deref;
use std::panic::{self, AssertUnwindSafe};
use std::ptr::NonNull;

use crate::area::{Area, Stay};
use crate::error::Result;

/// A struct that has a delegate. Use `#[derive(orbit_derive::Delegate)]`.
pub trait Delegate {
    /// What the task sees: the fields it needs, and nothing that owns anything.
    type Object: Copy;

    /// Those fields as they are now.
    fn delegate(&self) -> Self::Object;
}

/// A value and its delegate in an area, one to one. Reading goes to the value; changes go through
/// [`Delegated::change`], which brings the delegate up to date. The delegate is freed with it;
/// until then the area cannot be destroyed.
#[derive(Debug)]
pub struct Delegated<T: Delegate> {
    value: T,
    area: Area,
    /// In `area`, placed after `_stay` began: so it is mapped for as long as this lives, and main's
    /// alone.
    object: NonNull<T::Object>,
    _stay: Stay,
}

impl<T: Delegate> Delegated<T> {
    /// Places the delegate of `value` in the area. An error if the area is full.
    pub fn new(area: &Area, value: T) -> Result<Delegated<T>> {
        let stay = area.stay();
        let object = area.place(value.delegate())?;
        Ok(Delegated { value, area: area.clone(), object, _stay: stay })
    }

    /// Changes the value, then the delegate, if a byte of it is different: a change of other fields
    /// dirties no page of the area. Calls that snapshot the area meanwhile must be locked out by
    /// the caller, as for any object. Should `change` panic, the delegate is brought up to date
    /// first with what it has changed by then.
    pub fn change<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        // Unwind safe: the panic continues once the delegate is what the value is.
        let result = panic::catch_unwind(AssertUnwindSafe(|| change(&mut self.value)));
        let now = self.value.delegate();
        // SAFETY: the object is alive, mapped, and main's alone while self is borrowed mutably (see
        // the field). Bytes are compared by the C library, to which padding is bytes like any: at
        // worst it differs where the fields do not, and then the object is written.
        unsafe {
            let there = self.object.as_ptr();
            if libc::memcmp((&raw const now).cast(), there.cast(), size_of::<T::Object>()) != 0 {
                there.write(now);
            }
        }
        result.unwrap_or_else(|panic| panic::resume_unwind(panic))
    }

    /// Where the delegate lies: the address to hand to a task.
    pub fn object(&self) -> NonNull<T::Object> {
        self.object
    }
}

impl<T: Delegate> Deref for Delegated<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Delegate> Drop for Delegated<T> {
    fn drop(&mut self) {
        // SAFETY: placed by `new` and never handed out for freeing. In a forked child it stays, as
        // all objects do there.
        let _ = unsafe { self.area.free(self.object.cast()) };
    }
}

// SAFETY: the object is owned like the value; all changes to it go through `&mut self`.
unsafe impl<T: Delegate + Send> Send for Delegated<T> where T::Object: Send {}
// SAFETY: sharing gives out only `&T` and the object's address.
unsafe impl<T: Delegate + Sync> Sync for Delegated<T> where T::Object: Sync {}
