//! Stock nginx servers with the module `orbit_dav`, for its tests and bench: each has a directory
//! of its own with a unix socket in it, and is gone with everything when it is dropped.
//!
//! The module itself is C, in `extension/`, with a Makefile of its own.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod client;
mod load;
mod processes;
mod server;

pub use client::{Client, Response};
pub use load::{Load, Loaded};
pub use processes::{cpu_seconds, is_gone, started, title};
pub use server::{How, Put, Server, build};

use std::time::{Duration, Instant};

/// Longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until this holds.
///
/// # Panics
/// With the sentence, where it does not hold after [`PATIENCE`].
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "waited {} s in vain: {what}", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(10));
    }
}
