//! Services for anyone (class 1): wasm modules, run by an interpreter on an agent thread.
//!
//! A module can reach its own memory and the calls of `orbit_service.h`, nothing else; a handle is
//! an index into a table that the host keeps, so it cannot be forged. Its CPU time is bounded by
//! fuel, which host calls also consume by the time they take; its memory by a limit; its stack by
//! the interpreter. A module that traps, loops, recurses or allocates without end is aborted; one
//! that is aborted too often is revoked. See [`Runner`].

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

pub mod calls;
mod engine;
mod guest;
mod runner;

pub use engine::{Handler, Loader, Outcome};
pub use guest::{Engine, Service, WasmSpec};
pub use runner::{Id, Runner, Status};
