//! What a copy of a process must not do in the original's name: write out what stands in the
//! original's stdio buffers, run the functions it has registered with `atexit`, and move the
//! position of a descriptor that both have.
//!
//! The C library does all three in whichever copy calls `exit`; the first also in one that flushes.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use libc::FILE;

unsafe extern "C" {
    /// All open streams, linked by [`NEXT_STREAM`].
    static _IO_list_all: *mut FILE;
    fn __fpending(stream: *mut FILE) -> usize;
    fn __fpurge(stream: *mut FILE);
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Where a stream has the address of the next one, in bytes: `_chain` of glibc's `struct _IO_FILE`,
/// part of its interface for programs. Before it: the flags and twelve pointers.
const NEXT_STREAM: usize = 13 * size_of::<*mut FILE>();

/// Drops what stands in the output buffers of all streams but those that lie in `shared`, ranges
/// `(start, end)`: these are the original's too. What streams have read ahead stays.
///
/// # Safety
/// The process has one thread, a copy of one that was in no function of stdio.
pub unsafe fn drop_unwritten(shared: &[(usize, usize)]) {
    // SAFETY: the list and its streams are not changed meanwhile, as the caller says.
    unsafe {
        let mut stream = _IO_list_all;
        while !stream.is_null() {
            let is_shared = shared.iter().any(|(start, end)| (*start..*end).contains(&stream.addr()));
            if !is_shared && __fpending(stream) > 0 {
                __fpurge(stream);
            }
            stream = stream.byte_add(NEXT_STREAM).cast::<*mut FILE>().read();
        }
    }
}

/// `exit` runs the functions registered from now on, writes out all output, and ends the process:
/// no function registered before runs, and no input is given back.
///
/// # Errors
/// The C library has no memory for it.
pub fn end_without_earlier_handlers() -> std::io::Result<()> {
    // SAFETY: the function takes any status and does not use the argument.
    match unsafe { on_exit(write_out_and_end, null_mut()) } {
        0 => Ok(()),
        _ => Err(std::io::ErrorKind::OutOfMemory.into()),
    }
}

extern "C" fn write_out_and_end(status: c_int, _argument: *mut c_void) {
    // SAFETY: NULL stands for all streams that have output.
    unsafe { libc::fflush(null_mut()) };
    // SAFETY: does not return.
    unsafe { libc::_exit(status) }
}
