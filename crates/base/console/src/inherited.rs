//! What this command inherited: which signals were ignored, and environment variables that hold its
//! process number.
//!
//! Promises:
//! - A program started with [`restore_ignored_signals`] ignores what this command was started with
//!   ignored. Rust's runtime ignores SIGPIPE before `main` and resets it in children, so the state
//!   is recorded before the runtime starts.
//! - A program started with [`rename_pid_variables`] accepts what systemd passed to this command's
//!   process: sockets, the watchdog.

use orbit_linux::signals;
use std::ffi::{CStr, c_char};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bit n-1: signal n was ignored. Written once, by [`record`].
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// Run by the loader, before Rust's runtime.
#[used]
// SAFETY: the section holds pointers to functions that are called once each, without a result,
// before `main`; this is one, and needs nothing that the runtime sets up.
#[unsafe(link_section = ".init_array")]
static RECORD: extern "C" fn() = record;

extern "C" fn record() {
    let ignored = (1..=64).filter(|signal| signals::is_ignored(*signal));
    IGNORED.store(ignored.fold(0, |all, signal| all | 1 << (signal - 1)), Relaxed);
}

/// Makes the kernel keep the exit status of children: it keeps none for a parent that ignores
/// SIGCHLD.
pub fn keep_child_statuses() {
    signals::set_default(libc::SIGCHLD);
}

/// Makes the program ignore the signals that this command was started with ignored.
pub fn restore_ignored_signals(command: &mut Command) {
    let ignored = IGNORED.load(Relaxed);
    let ignore = move || {
        for signal in (1..=64).filter(|signal| ignored >> (signal - 1) & 1 == 1) {
            signals::ignore(signal);
        }
        Ok(())
    };
    // SAFETY: only async-signal-safe calls, on a value copied beforehand.
    unsafe { command.pre_exec(ignore) };
}

/// Variables with the number of the process for which other variables are meant.
const NAMING: [&str; 3] = ["LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"];
/// Names the process of the first of them a second time, by a number that only systemd assigns.
/// Without it, only the first counts.
const TWICE: &[u8] = b"LISTEN_PIDFDID=";

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Makes variables with this process' number hold the program's.
pub fn rename_pid_variables(command: &mut Command) {
    let own = std::process::id().to_string();
    let naming = NAMING.into_iter().filter(|name| std::env::var_os(name).is_some_and(|value| value == own.as_str()));
    // Each with the length of its name, and room for a number and a zero byte.
    let mut variables: Vec<(usize, Vec<u8>)> =
        naming.map(|name| (name.len() + 1, format!("{name}={}", "\0".repeat(11)).into_bytes())).collect();
    if variables.is_empty() {
        return;
    }
    let rename = move || {
        for (name, variable) in &mut variables {
            number(std::process::id(), &mut variable[*name..]);
        }
        // SAFETY: the list is the child's own copy, used by nothing else, and ends with a null
        // pointer; each entry ends with a zero byte. The variables live in the command until exec.
        unsafe {
            let (mut from, mut to) = (environ, environ);
            while !from.is_null() && !(*from).is_null() {
                let entry = CStr::from_ptr(*from).to_bytes();
                if !entry.starts_with(TWICE) {
                    let own = variables.iter_mut().find(|(name, variable)| entry.starts_with(&variable[..*name]));
                    *to = own.map_or(*from, |(_, variable)| variable.as_mut_ptr().cast());
                    to = to.add(1);
                }
                from = from.add(1);
            }
            if !to.is_null() {
                *to = ptr::null_mut();
            }
        }
        Ok(())
    };
    // SAFETY: only async-signal-safe calls, on values made beforehand.
    unsafe { command.pre_exec(rename) };
}

/// Writes a number in decimal and a zero byte. Async-signal-safe.
fn number(mut n: u32, to: &mut [u8]) {
    let digits = n.checked_ilog10().unwrap_or(0) as usize + 1;
    for at in (0..digits).rev() {
        to[at] = b'0' + (n % 10) as u8;
        n /= 10;
    }
    to[digits] = 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for n in [0, 1, 9, 10, 4194304, i32::MAX as u32] {
            let mut to = [b'x'; 11];
            number(n, &mut to);
            assert_eq!(CStr::from_bytes_until_nul(&to).expect("a zero").to_str(), Ok(&n.to_string()[..]));
        }
    }
}
