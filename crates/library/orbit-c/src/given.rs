//! What C gives, checked: bytes, strings, arrays of handles, and structures that may be older or
//! newer than the library.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::time::Duration;

use orbit_linux::map::may_be_mapped;

use crate::failure::{Answer, Failure};

/// Below this nothing is ever mapped: a null pointer with an offset.
const LOWEST: usize = 4096;
/// Below this memory can be wherever the machine has four levels of page tables or more; the last
/// page has none even there.
const SURE: usize = if cfg!(target_arch = "aarch64") { 1 << 48 } else { (1 << 47) - 4096 };

/// A pointer and a length from C, if they can be a range of memory at all. Whether it is mapped is
/// the caller's affair.
pub(crate) fn range(at: *const c_void, len: usize, what: impl fmt::Display) -> Answer<()> {
    if at.is_null() {
        return Err(Failure::invalid(format!("{what}: the pointer is NULL, but the size is {len} bytes")));
    }
    if len > isize::MAX as usize {
        let signed = len as isize;
        let text = format!("{what}: {len} bytes, {signed} as a signed number: was it negative, or did it overflow?");
        return Err(Failure::new(libc::E2BIG, text));
    }
    let possible = |end: usize| end <= SURE || may_be_mapped(end - 1);
    if at.addr() < LOWEST || !at.addr().checked_add(len).is_some_and(possible) {
        return Err(Failure::new(libc::EFAULT, format!("{what}: no memory can be at {at:p} for {len} bytes")));
    }
    Ok(())
}

/// Whether a range is surely one that memory can be at: quick, and false for some that are.
#[inline(always)]
pub(crate) fn is_sure(at: *const c_void, len: usize) -> bool {
    at.addr() >= LOWEST && len <= SURE && at.addr() <= SURE - len
}

/// The bytes of a pointer and a length.
///
/// # Safety
/// If not null and of a size above 0, the range is readable and stays as it is for as long as the
/// slice is used.
pub(crate) unsafe fn bytes<'a>(at: *const c_void, len: usize, what: &str) -> Answer<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    range(at, len, what)?;
    // SAFETY: as the caller vouches; not null and not empty.
    Ok(unsafe { std::slice::from_raw_parts(at.cast(), len) })
}

/// A string, or `None` for null. What is no UTF-8 is shown as such.
///
/// # Safety
/// If not null, the string ends with a zero and stays as it is for as long as the result is used.
pub(crate) unsafe fn text<'a>(at: *const c_char, what: &str) -> Answer<Option<Cow<'a, str>>> {
    if at.is_null() {
        return Ok(None);
    }
    range(at.cast(), 1, what)?;
    // SAFETY: as the caller vouches.
    Ok(Some(unsafe { CStr::from_ptr(at) }.to_string_lossy()))
}

/// An array.
///
/// # Safety
/// If not null and of a count above 0, there are so many readable values, and they stay as they are
/// for as long as the slice is used.
pub(crate) unsafe fn array<'a, T>(at: *const T, count: usize, most: usize, what: &str) -> Answer<&'a [T]> {
    if count > most {
        return Err(Failure::new(libc::E2BIG, format!("a list of {count} {what} is too long; the most is {most}")));
    }
    if count == 0 {
        return Ok(&[]);
    }
    if at.is_null() {
        return Err(Failure::invalid(format!("the list of {what} is NULL, but its count is {count}")));
    }
    range(at.cast(), count * size_of::<T>(), format_args!("the list of {count} {what}"))?;
    if !at.is_aligned() {
        return Err(Failure::invalid(format!("the list of {what} at {at:p} is not aligned")));
    }
    // SAFETY: as the caller vouches; not null, aligned, not too large.
    Ok(unsafe { std::slice::from_raw_parts(at, count) })
}

/// A structure of C that begins with its own size, so that programs may be older or newer than the
/// library.
///
/// # Safety
/// The type is `repr(C)`, begins with a `usize`, and may hold all zeros in every byte.
pub(crate) unsafe trait Sized0: Copy {
    /// Its name in C.
    const NAME: &str;
    /// The macro that makes one.
    const MAKER: &str;
}

/// Reads such a structure: what an older program leaves out is zero; what a newer one says beyond
/// the library's knowledge must be zero.
///
/// # Safety
/// If not null, the pointer is to such a structure, of the size that it says.
pub(crate) unsafe fn structure<T: Sized0>(at: *const T) -> Answer<T> {
    if at.is_null() {
        let text = format!("struct {} is NULL; give one that begins as {} and says what is wanted", T::NAME, T::MAKER);
        return Err(Failure::invalid(text));
    }
    range(at.cast(), size_of::<usize>(), format_args!("struct {}", T::NAME))?;
    // SAFETY: as the caller vouches; the size is the first field.
    let size = unsafe { at.cast::<usize>().read_unaligned() };
    if !(size_of::<usize>()..=1 << 16).contains(&size) {
        return Err(Failure::invalid(format!("struct {} has a size of {size}; begin with {}", T::NAME, T::MAKER)));
    }
    // SAFETY: as the caller vouches.
    let given = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), size) };
    let known = size.min(size_of::<T>());
    if given[known..].iter().any(|&byte| byte != 0) {
        let text = format!(
            "struct {} says something that this library, {}, does not know",
            T::NAME,
            env!("CARGO_PKG_VERSION")
        );
        return Err(Failure::new(libc::E2BIG, text));
    }
    // SAFETY: `Sized0` promises that zeros are a value; the bytes copied are within both.
    unsafe {
        let mut value: T = std::mem::zeroed();
        std::ptr::copy_nonoverlapping(given.as_ptr(), (&raw mut value).cast::<u8>(), known);
        Ok(value)
    }
}

/// A place for a result, which must be there.
pub(crate) fn place<T>(to: *const T, what: &str) -> Answer<()> {
    if to.is_null() {
        return Err(Failure::invalid(format!("{what}: NULL, where it is to be written")));
    }
    range(to.cast(), size_of::<T>(), what)
}

/// Writes through a pointer that C gave for a result, if it gave one.
///
/// # Safety
/// If not null, the pointer may be written to.
pub(crate) unsafe fn give<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: as the caller vouches.
        unsafe { to.write_unaligned(value) };
    }
}

/// Microseconds; 0 is none.
pub(crate) fn micros(us: u64) -> Option<Duration> {
    (us != 0).then(|| Duration::from_micros(us))
}
