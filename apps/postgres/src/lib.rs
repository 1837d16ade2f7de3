//! Stock PostgreSQL servers with the extension `orbit_deadlock`, for its tests and benches: each server has a directory of its
//! own and a unix socket in it, runs as an ordinary user, and is gone with everything when it is dropped.
//!
//! The extension itself is C, in `extension/`, with a Makefile of its own.

mod build;
mod cluster;
pub mod deadlock;
mod processes;
mod session;

pub use build::{Extension, build};
pub use cluster::{Cluster, Stop, programs};
pub use processes::{below, descriptors, family_cpu, is_zombie, lives, parent, shared_writable, started};
pub use session::{Reply, Session};

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
