//! Sleeping on a word of memory until another thread or process changes it.
//!
//! The shared kind of futex: the word may lie in memory shared between processes. Every wait may
//! end early without a reason, so callers test their condition again in a loop. A peer that dies
//! never wakes anyone: wait with a timeout, or watch the peer's pidfd as well. All functions are
//! async-signal-safe.

use crate::Support;
use std::io;
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while `*word == expected`, at most for `timeout` (`None`: no limit).
///
/// `Ok` when woken, when the value was already another, or when a signal came: check the word
/// again.
///
/// # Errors
/// `ETIMEDOUT` when the time is over; `EFAULT` when the memory is gone (a shared file was cut
/// short).
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> io::Result<()> {
    let spec = timeout.map(timespec);
    let spec_ptr = spec.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `word` is a live aligned u32, the timespec (if any) lives until the call returns.
    let r = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, spec_ptr) };
    if r == 0 {
        return Ok(());
    }
    let e = io::Error::last_os_error();
    match e.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR) => Ok(()),
        _ => Err(e),
    }
}

/// Wakes at most `n` sleepers on `word`; answers how many were woken. `i32::MAX` wakes all.
///
/// Inlined, past libc: where the caches are cold, each page of code that a call runs through costs
/// a page walk.
#[inline(always)]
pub fn wake(word: &AtomicU32, n: i32) -> usize {
    #[cfg(target_arch = "x86_64")]
    let r = {
        let r: isize;
        // SAFETY: `word` is a live aligned u32; waking reads no memory of ours, and the kernel
        // changes rcx and r11 alone.
        unsafe {
            std::arch::asm!(
                "syscall",
                inlateout("rax") libc::SYS_futex as isize => r,
                in("rdi") word.as_ptr(),
                in("rsi") libc::FUTEX_WAKE,
                in("rdx") n,
                out("rcx") _,
                out("r11") _,
                options(nostack)
            );
        }
        r
    };
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as above.
    let r = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, n) };
    usize::try_from(r).unwrap_or(0)
}

/// A duration as the kernel takes it; what does not fit becomes the longest that does.
pub(crate) fn timespec(d: Duration) -> libc::timespec {
    // SAFETY: a timespec is plain numbers; all zero is a value of it.
    let mut t: libc::timespec = unsafe { std::mem::zeroed() };
    t.tv_sec = libc::time_t::try_from(d.as_secs()).unwrap_or(libc::time_t::MAX);
    t.tv_nsec = d.subsec_nanos().into();
    t
}

/// A wait that must end at once because the value differs.
pub fn probe() -> Support {
    let word = AtomicU32::new(1);
    Support::from_result("futex", wait(&word, 0, Some(Duration::ZERO)), |_| String::new())
}
