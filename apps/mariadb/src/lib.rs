//! Stock MariaDB 10.11 servers with the plugin `orbit_deadlock`, for its tests and benches: each
//! has a directory of its own and a unix socket in it, and is gone with everything when it is
//! dropped.
//!
//! The plugin itself is C, in `extension/`, with a Makefile of its own.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod ring;
mod server;
mod session;

pub use ring::Ring;
pub use server::{Detector, Server, build};
pub use session::{Reply, Session};

pub use orbit_apps::{
    Named, PATIENCE, below, family_cpu, is_zombie, lives, parent, signal, started, wait_until, wait_until_gone,
};
