//! Modules of the kernel: loading and unloading them. Needs `CAP_SYS_MODULE`.

use crate::check;
use std::io;

/// Loads a module from the bytes of its file, without parameters. Returns once its start function
/// has.
///
/// # Errors
/// `EPERM` without the capability, `ENOEXEC` for bytes that are no module for this kernel, `EEXIST`
/// for one that is loaded, and what the module's start function returns.
pub fn load(file: &[u8]) -> io::Result<()> {
    // SAFETY: the call reads the file's bytes and an empty string.
    check(unsafe { libc::syscall(libc::SYS_init_module, file.as_ptr(), file.len(), c"".as_ptr()) }).map(|_| ())
}

/// Unloads a module that nothing uses, by its name.
///
/// # Errors
/// `EPERM`, `ENOENT` where there is none, `EWOULDBLOCK` where it is used; `InvalidInput` for a name
/// with a zero byte.
pub fn unload(name: &str) -> io::Result<()> {
    let name = std::ffi::CString::new(name)?;
    // SAFETY: the call reads a C string.
    check(unsafe { libc::syscall(libc::SYS_delete_module, name.as_ptr(), libc::O_NONBLOCK) }).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_module_is_not_loaded_and_what_is_not_loaded_not_unloaded() {
        assert!(load(b"no module").is_err());
        assert!(unload("orbit_there_is_none").is_err());
        assert_eq!(unload("a\0b").map_err(|e| e.kind()), Err(io::ErrorKind::InvalidInput));
    }
}
