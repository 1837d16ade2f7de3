//! Signals as this command was started with: which of them were ignored.
//!
//! Promises: a program started with [`pass_on`] ignores what this command was told to ignore, as if started without it in
//! between. Rust's runtime ignores SIGPIPE before `main` and gives children the default, so a look is taken earlier still.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bit n-1: signal n was ignored. Written once, by [`look`].
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// Run by the loader, before Rust's runtime.
#[used]
// SAFETY: the section holds pointers to functions that are called once each, without a result, before `main`; this is one, and
// needs nothing that the runtime sets up.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    let ignored = (1..=64).filter(|signal| {
        // SAFETY: all-zero bytes are a valid sigaction, which the call fills; nothing is changed. Those that libc keeps to
        // itself are refused and stay zero, which is SIG_DFL.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(*signal, ptr::null(), &raw mut action);
            action
        };
        action.sa_sigaction == libc::SIG_IGN
    });
    IGNORED.store(ignored.fold(0, |all, signal| all | 1 << (signal - 1)), Relaxed);
}

/// Lets this process know how its children end: the kernel keeps no status for one that ignores SIGCHLD.
pub fn keep_statuses() {
    // SAFETY: no handler is given.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Has the program ignore what this command was told to ignore.
pub fn pass_on(command: &mut Command) {
    let ignored = IGNORED.load(Relaxed);
    let ignore = move || {
        for signal in (1..=64).filter(|signal| ignored >> (signal - 1) & 1 == 1) {
            // SAFETY: no handler is given; that they were ignored before says that they can be.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        Ok(())
    };
    // SAFETY: only async-signal-safe calls, on a value copied beforehand.
    unsafe { command.pre_exec(ignore) };
}
