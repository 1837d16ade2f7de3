//! Stock Apache 2.4 servers with the module `mod_orbit`, for its tests and benches: each has a
//! directory and a port of its own, and is gone with everything when it is dropped.
//!
//! The module itself is C, in `extension/`, with a Makefile of its own.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod backend;
mod client;
mod server;

pub use backend::Backend;
pub use client::{Answer, Client, get};
pub use server::{Module, Server, Setup, build};

pub use orbit_apps::{
    Named, PATIENCE, below, family_cpu, is_zombie, lives, named_below, signal, started, wait_until, wait_until_gone,
};
