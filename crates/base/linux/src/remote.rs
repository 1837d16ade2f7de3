//! Memory of another process: reading and writing it without stopping the process.
//!
//! What is read while the process runs may be torn. Nothing is opened or kept. Functions need the
//! right to trace the process.

use crate::{check, invalid};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;

/// Reads memory at `address` into `buffer`; returns how many bytes were mapped and read before the
/// first gap.
///
/// # Errors
/// `EFAULT` when not even the first byte is mapped, `EPERM`, `ESRCH`.
pub fn read(pid: i32, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        let rest = &mut buffer[done..];
        let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        let remote = part(address, done, rest.len())?;
        // SAFETY: `local` describes live bytes of this process; the remote range is a pair of
        // numbers to the kernel.
        let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
        match check(read as libc::c_long) {
            Ok(0) => break,
            Ok(n) => done += n as usize,
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Reads the parts, in order, into `buffer`: stops at the first part that is not mapped. Returns
/// how many bytes were read.
///
/// # Errors
/// `EFAULT` when not even the first byte is mapped, `EPERM`, `ESRCH`; `EINVAL` for more than 1,024
/// parts.
pub fn gather(pid: i32, parts: &[libc::iovec], buffer: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: `local` describes live bytes of this process; the remote parts are numbers to the
    // kernel, which never writes there.
    let n =
        unsafe { libc::process_vm_readv(pid, &raw const local, 1, parts.as_ptr(), parts.len() as libc::c_ulong, 0) };
    check(n as libc::c_long).map(|n| n as usize)
}

/// Writes all of `bytes` at `address`, where the process itself may write.
///
/// # Errors
/// `EFAULT` where it is not mapped or not writable: a part may be written then. `EPERM`, `ESRCH`.
pub fn write(pid: i32, address: u64, bytes: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &bytes[done..];
        let local = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
        let remote = part(address, done, rest.len())?;
        // SAFETY: as in `read`; the local bytes are only read.
        let n = check(
            unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) } as libc::c_long
        )?;
        if n == 0 {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        done += n as usize;
    }
    Ok(())
}

/// Writes all of `bytes` at `address`, also where the process itself may not write (code, read-only
/// data): of a private mapping the pages are copied first, so no file changes.
///
/// # Errors
/// `EIO`, `EFAULT` where nothing is mapped, where shared memory may not be written, and on kernels
/// that forbid such writes (`proc_mem.force_override`); then [`crate::ptrace::state::poke`] is the
/// way. `EACCES`, `ENOENT`.
pub fn write_through_protection(pid: i32, address: u64, bytes: &[u8]) -> io::Result<()> {
    let memory = OpenOptions::new().write(true).open(format!("/proc/{pid}/mem"))?;
    memory.write_all_at(bytes, address)
}

/// Advises the kernel about `len` bytes at `address` of a process; returns for how many bytes that
/// was done. `advice` is one of `libc::MADV_*` that changes no content.
///
/// # Errors
/// `EINVAL` for advice that is not for other processes, `ENOMEM` where nothing is mapped, `EPERM`,
/// `ESRCH`.
pub fn advise(process: BorrowedFd<'_>, address: u64, len: u64, advice: i32) -> io::Result<u64> {
    let range = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: len as usize };
    // SAFETY: the range is the other process' and is checked there; the kernel takes only advice
    // that changes no bytes.
    let n = unsafe { libc::syscall(libc::SYS_process_madvise, process.as_raw_fd(), &raw const range, 1, advice, 0) };
    check(n).map(|n| n as u64)
}

fn part(address: u64, done: usize, len: usize) -> io::Result<libc::iovec> {
    let start = address
        .checked_add(done as u64)
        .filter(|start| start.checked_add(len as u64).is_some())
        .ok_or_else(|| invalid(format!("{len} bytes at {address:#x} go beyond the address space")))?;
    Ok(libc::iovec { iov_base: start as *mut libc::c_void, iov_len: len })
}
