//! Shared memory without a name in any file system (`memfd_create`), and the seals that bound what
//! a peer may do to it.
//!
//! A descriptor given to a process that is not trusted lets it shrink the file, after which
//! touching the lost pages kills the other side by SIGBUS: [`seal_size`] rules that out.
//! [`seal_future_write`] leaves writing to mappings that exist now.

use crate::{Support, check_int, invalid};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Linux 6.3: never executable. Missing from older headers.
const MFD_NOEXEC_SEAL: libc::c_uint = 0x0008;
/// Linux 5.1.
const F_SEAL_FUTURE_WRITE: libc::c_int = 0x0010;

/// Creates a memory file of `len` zero bytes, close-on-exec, never executable where the kernel can
/// say so.
///
/// `name` (at most 249 bytes) shows in `/proc/PID/maps`. Only a `sealable` file takes seals later.
///
/// # Errors
/// `InvalidInput` for a name with a NUL byte, `EINVAL` for one that is too long, `EMFILE`,
/// `ENFILE`, `ENOMEM`, `EFBIG` beyond the limit of file sizes (without SIGXFSZ).
pub fn create(name: &str, len: usize, sealable: bool) -> io::Result<OwnedFd> {
    let c_name = CString::new(name).map_err(|_| invalid(format!("memfd name {name:?} has a NUL byte")))?;
    let Ok(size) = libc::off_t::try_from(len) else {
        return Err(invalid(format!("memfd {name:?}: {len} bytes are more than a file can have")));
    };
    let base = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string that outlives the call.
    let mut raw = unsafe { libc::memfd_create(c_name.as_ptr(), base | MFD_NOEXEC_SEAL) };
    if raw == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
        // SAFETY: as above.
        raw = unsafe { libc::memfd_create(c_name.as_ptr(), base) };
    }
    check_int(raw)?;
    // SAFETY: the kernel just made this descriptor for us; nothing else has it.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    set_size(fd.as_fd(), size)?;
    if !sealable {
        add_seals(fd.as_fd(), libc::F_SEAL_SEAL)?;
    }
    Ok(fd)
}

/// Linux 6.3: executable although the system asks for the opposite. Missing from older headers.
const MFD_EXEC: libc::c_uint = 0x0010;

/// Creates a memory file that holds a program: executable, close-on-exec, sealed against every
/// change.
///
/// # Errors
/// `InvalidInput` for a name with a NUL byte; `EACCES` where the system forbids executable memory
/// files (`vm.memfd_noexec` 2); `EMFILE`, `ENFILE`, `ENOMEM`.
pub fn program(name: &str, image: &[u8]) -> io::Result<OwnedFd> {
    let c_name = CString::new(name).map_err(|_| invalid(format!("memfd name {name:?} has a NUL byte")))?;
    let base = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string that outlives the call.
    let mut raw = unsafe { libc::memfd_create(c_name.as_ptr(), base | MFD_EXEC) };
    if raw == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
        // SAFETY: as above.
        raw = unsafe { libc::memfd_create(c_name.as_ptr(), base) };
    }
    check_int(raw)?;
    // SAFETY: the kernel just made this descriptor for us; nothing else has it.
    let mut file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(raw) });
    std::io::Write::write_all(&mut file, image)?;
    let fd = OwnedFd::from(file);
    add_seals(fd.as_fd(), libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL)?;
    Ok(fd)
}

/// Gives a file its size. Beyond the limit of file sizes that is `EFBIG` and no SIGXFSZ, which
/// would end the program.
fn set_size(fd: BorrowedFd<'_>, size: libc::off_t) -> io::Result<()> {
    // SAFETY: calls on local sets and an own descriptor. The kernel sends SIGXFSZ to the calling
    // thread, which blocks it meanwhile and takes it back, unless one that is not ours was waiting
    // already; then its mask is as before.
    unsafe {
        let (mut blocked, mut before, mut pending): (libc::sigset_t, libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&raw mut blocked);
        libc::sigaddset(&raw mut blocked, libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, &raw mut before);
        libc::sigpending(&raw mut pending);
        let result = check_int(libc::ftruncate(fd.as_raw_fd(), size)).map(|_| ());
        if libc::sigismember(&raw const pending, libc::SIGXFSZ) == 0 {
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            while result.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EFBIG))
                && libc::sigtimedwait(&raw const blocked, std::ptr::null_mut(), &raw const at_once) == -1
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
}

/// From now on nobody can make the file shorter or longer.
///
/// # Errors
/// `EPERM` when the file is not sealable.
pub fn seal_size(fd: BorrowedFd<'_>) -> io::Result<()> {
    add_seals(fd, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)
}

/// From now on nobody can write the file (neither `write(2)` nor a new writable shared mapping),
/// except through writable mappings that exist already. The size is sealed with it.
///
/// # Errors
/// `EPERM` when the file is not sealable, `EINVAL` before Linux 5.1.
pub fn seal_future_write(fd: BorrowedFd<'_>) -> io::Result<()> {
    add_seals(fd, F_SEAL_FUTURE_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)
}

fn add_seals(fd: BorrowedFd<'_>, seals: libc::c_int) -> io::Result<()> {
    // SAFETY: F_ADD_SEALS takes an integer.
    check_int(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) }).map(|_| ())
}

/// Creates and seals one page.
pub fn probe() -> Support {
    let tried = create("orbit-probe", crate::map::page_size(), true).and_then(|fd| seal_future_write(fd.as_fd()));
    Support::from_result("memfd_create", tried, |_| String::new())
}
