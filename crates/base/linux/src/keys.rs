//! Memory protection keys: whether there are any.

use crate::{Support, check};

/// Takes a protection key and releases it.
pub fn probe() -> Support {
    // SAFETY: numbers only.
    let key = check(unsafe { libc::syscall(libc::SYS_pkey_alloc, 0usize, 0usize) });
    if let Ok(key) = key {
        // SAFETY: the key is ours, and no page has it.
        unsafe { libc::syscall(libc::SYS_pkey_free, key) };
    }
    Support::from_result("pkey_alloc", key, |_| "the processor has none, or the hypervisor hides them".into())
}
