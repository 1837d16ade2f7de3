//! What tests share: random numbers with a printed seed, waiting for a condition, folders of a
//! test's own, what `/proc` says of a process, programs built from C, ports on loopback,
//! what commands give out as JSON, certificates.
//!
//! Only tests use it (`scripts/floors.py`): no program that is installed has code of it.
//!
//! - A wait is for a condition, never for a time, and ends after [`PATIENCE`] with a sentence.
//! - A skip names what is missing, on a line that begins with `SKIP: needs`.
//! - A random history prints the seed that repeats it.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod authority;
mod folder;
mod machine;
mod process;
mod program;
mod random;
mod schema;
mod wait;

pub use authority::Authority;
pub use folder::Folder;
pub use machine::{free_port, has, is_full, is_installed, is_root, needs_root, runs, times};
pub use process::{
    Killed, below, children, descriptors, family_cpu, field, is_zombie, lives, own_cpu, parent, shared_writable,
    signal, started, status,
};
pub use program::{compile, copy_of_program};
pub use random::Random;
pub use schema::{described, fault};
pub use wait::{PATIENCE, until, until_some};
