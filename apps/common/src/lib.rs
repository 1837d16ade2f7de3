//! What the ports' tests and benches share: building with `make`, users of servers, and by name
//! what `orbit-testing` has.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod build;
mod directory;

pub use build::make;
pub use directory::{Directory, user_of_servers};
pub use orbit_testing::{
    PATIENCE, below, descriptors, family_cpu, free_port, is_root, is_zombie, lives, needs_root, own_cpu, parent,
    shared_writable, signal, started, until as wait_until,
};

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
