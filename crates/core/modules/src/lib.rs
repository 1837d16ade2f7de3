//! Modules of the reliability microkernel as a command has them: by name ([`builtin`]), among them
//! hang detection ([`hangs`]), in a core ([`hosted`]), and reached from other processes
//! ([`control`]).
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]

/// A core with the twelve pins, also with what they can do by `orbit-keep`.
///
/// # Errors
/// If its thread cannot be started.
pub fn core() -> orbit_rmk::Result<orbit_rmk::Core> {
    orbit_rmk::Core::builder().pins(checkpoint::all()).build()
}

pub mod builtin;
pub mod checkpoint;
pub mod control;
pub mod hangs;
pub mod hosted;
