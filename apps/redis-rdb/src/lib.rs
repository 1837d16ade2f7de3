//! Stock Redis servers with the module `orbit_rdb`, for its tests and bench: each has a directory
//! of its own with a unix socket in it, and is gone with everything when it is dropped.
//!
//! The module itself is C, in `extension/`, with a Makefile of its own.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod connection;
mod server;

pub use connection::Connection;
pub use server::{Server, build};

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
