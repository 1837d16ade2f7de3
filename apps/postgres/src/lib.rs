//! Stock PostgreSQL servers with the extension `orbit_deadlock`, for its tests and benches: each
//! server has a directory of its own and a unix socket in it, runs as an ordinary user, and is gone
//! with everything when it is dropped.
//!
//! The extension itself is C, in `extension/`, with a Makefile of its own.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod build;
mod cluster;
pub mod deadlock;
mod session;

pub use build::{Extension, build};
pub use cluster::{Cluster, Stop, programs};
pub use orbit_apps::{
    PATIENCE, below, descriptors, family_cpu, is_zombie, lives, parent, shared_writable, signal, started, wait_until,
};
pub use session::{Reply, Session};
