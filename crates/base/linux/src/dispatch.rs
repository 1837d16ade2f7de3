//! Syscall User Dispatch (Linux 5.11): system calls from outside one range of addresses become
//! SIGSYS.

use crate::Support;
use std::io;

const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;

/// Arms dispatch in the calling thread: while `selector` is 1, each of its system calls, wherever
/// it is made, raises SIGSYS; while it is 0, calls pass.
///
/// # Errors
/// `EINVAL` before Linux 5.11 and on other processors than x86-64.
pub fn arm(selector: &'static std::sync::atomic::AtomicU8) -> io::Result<()> {
    // SAFETY: the kernel reads the selector, which is static.
    let armed = unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, 1usize, 0usize, 0usize, selector.as_ptr()) };
    crate::check_int(armed).map(|_| ())
}

/// Whether this process may arm dispatch. Tried in a child, which arms it with a range that lets
/// everything through.
pub fn probe() -> Support {
    if !cfg!(target_arch = "x86_64") {
        return Support::No("the executive is written for x86-64".into());
    }
    static SELECTOR: u8 = 0;
    // SAFETY: the child makes two system calls and ends; it neither allocates nor locks.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the selector is static and says "let through".
        unsafe {
            let result = libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, 1usize, 0usize, 0usize, &raw const SELECTOR);
            libc::_exit(if result == 0 { 0 } else { *libc::__errno_location() & 127 });
        }
    }
    if child == -1 {
        return Support::No(format!("cannot fork to try it: {}", io::Error::last_os_error()));
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } == -1 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Support::No(format!("the trial got lost: {error}"));
        }
    }
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, 0) => Support::Yes,
        (true, errno) => Support::No(format!("prctl: {}", io::Error::from_raw_os_error(errno))),
        (false, _) => Support::No("the trial was killed".into()),
    }
}

/// Whether programs may read and set the base of gs by instructions (FSGSBASE: Linux 5.9, and a CPU
/// that has it).
pub fn probe_gs_base() -> Support {
    const FSGSBASE: libc::c_ulong = 2;
    // SAFETY: reads a word that the kernel gave this process at its start.
    match unsafe { libc::getauxval(libc::AT_HWCAP2) } & FSGSBASE {
        _ if !cfg!(target_arch = "x86_64") => Support::No("the executive is written for x86-64".into()),
        0 => Support::No("the kernel or the processor does not offer the gs base to programs".into()),
        _ => Support::Yes,
    }
}
