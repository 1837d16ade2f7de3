//! Modules of the reliability microkernel as a command has them: by name ([`builtin`]), among them hang detection ([`hangs`]), in a core ([`hosted`]), and reached
//! from other processes ([`control`]).
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod builtin;
pub mod control;
pub mod hangs;
pub mod hosted;
