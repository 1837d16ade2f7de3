//! The functions of `rmk.h`. The header and `orbit-section` document them.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]

use orbit_section::layout::Slot;
use std::ffi::{CStr, c_char, c_int};

/// The number of the section with this name; -1 if there is no room or no name.
///
/// # Safety
/// `name` is null or a string that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rmk_section(name: *const c_char) -> c_int {
    if name.is_null() {
        return -1;
    }
    // SAFETY: a string that ends with a zero, by contract.
    let name = unsafe { CStr::from_ptr(name) };
    orbit_section::register(name.to_bytes()).map_or(-1, |n| n as c_int)
}

/// Enters a section: 1, or 0 if nothing was marked.
#[unsafe(no_mangle)]
pub extern "C" fn rmk_section_enter(section: c_int) -> c_int {
    c_int::from(orbit_section::enter_number(section as u32))
}

/// Leaves a section by an exit.
#[unsafe(no_mangle)]
pub extern "C" fn rmk_section_leave(section: c_int, exit: c_int) {
    orbit_section::leave_number(section as u32, exit.max(0) as u32);
}

/// For marks that a compiler writes inline: see [`orbit_section::slot_cached`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rmk_section_slot(cached: *mut *const Slot) -> *const Slot {
    // SAFETY: by contract.
    unsafe { orbit_section::slot_cached(cached) }
}
