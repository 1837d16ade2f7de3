//! `orbit guard --system`: watches the kernel instead of a program, and tells when a CPU hangs.
//!
//! Owns: where the events go, and until when. The detection is `orbit-shd`'s. Ends with status 0 at SIGINT or SIGTERM, with
//! 1 if it could not begin.

use crate::out::{Done, Failure};
use orbit_shd::{Action, Error, Options, watch};
use std::{fs::File, io, os::fd::AsFd, process::ExitCode};

/// Watches until a signal asks it to leave; `events` is a file to append to, else stdout.
pub fn run(action: Action, events: Option<&str>) -> Done {
    let signals = leave_signals();
    // SAFETY: the set was filled. Blocked before any thread is made, the signals wait for `sigwait`.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut()) };
    let options = Options::default();
    match events {
        None | Some("-") => begin(&options, action, io::stdout(), &signals),
        Some(path) => {
            let cannot = |e| Failure::Text(format!("cannot write events to {path}: {e}"));
            let file = File::options().create(true).append(true).open(path).map_err(cannot)?;
            begin(&options, action, file, &signals)
        }
    }
    .map_err(|e| Failure::Text(format!("cannot watch the system: {e}")))?;
    Ok(ExitCode::SUCCESS)
}

fn begin(options: &Options, action: Action, to: impl AsFd, signals: &libc::sigset_t) -> Result<(), Error> {
    watch(options, action, to, |_| {
        let mut which = 0;
        // SAFETY: the set was filled, and the call writes one number.
        unsafe { libc::sigwait(signals, &mut which) };
    })
}

fn leave_signals() -> libc::sigset_t {
    // SAFETY: the calls fill the set that they are given.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::sigaddset(&mut set, libc::SIGTERM);
        set
    }
}
