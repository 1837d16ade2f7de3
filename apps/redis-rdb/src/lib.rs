//! Stock Redis servers with the module `orbit_rdb`, for its tests and bench: each has a directory
//! of its own with a unix socket in it, and is gone with everything when it is dropped.
//!
//! The module itself is C, in `extension/`, with a Makefile of its own.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod connection;
mod server;

pub use connection::Connection;
pub use server::{Server, build};

pub use orbit_apps::{PATIENCE, wait_until};
