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

pub use orbit_apps::{PATIENCE, wait_until};
