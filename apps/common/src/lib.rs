//! What the ports' tests and benches share: building with `make`, waiting, what `/proc` says of a
//! server's processes.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod build;
mod directory;
mod processes;

pub use build::make;
pub use directory::{Directory, is_root, user_of_servers};
pub use processes::{
    below, descriptors, family_cpu, is_zombie, lives, own_cpu, parent, shared_writable, signal, started,
};

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

/// Processes named for good: pid and start.
pub type Named = Vec<(i32, Option<u64>)>;

/// The processes below this one.
pub fn named_below(pid: i32) -> Named {
    below(pid).into_iter().map(|pid| (pid, started(pid))).collect()
}

/// Waits until none of these processes is left, not even as a zombie.
///
/// # Panics
/// Where one stays.
pub fn wait_until_gone(processes: &Named, how: &str) {
    wait_until(&format!("{how}: nothing of {processes:?} is left"), || {
        processes.iter().all(|(pid, since)| started(*pid) != *since || (!lives(*pid) && !is_zombie(*pid)))
    });
}
