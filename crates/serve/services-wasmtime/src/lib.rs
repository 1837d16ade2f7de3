//! Services for anyone whose handlers are long (class 1): wasm modules, compiled to machine code
//! when they are loaded.
//!
//! The same modules as `orbit-services-wasm` interprets, with the same calls, and the same verdicts
//! on them. What differs: a handler's own code runs some ten times as fast; loading takes as long
//! as the compiler does; a run is bounded by its CPU time itself and not by fuel. See [`Compiler`].
//!
//! The life of a run: its alarm is set to the budget ([`alarm`]); the handler runs; when the alarm
//! fires, the next loop or call of the module asks how much CPU time is used, which includes the
//! host's calls; used up, it traps; else the alarm is set to what is left.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod alarm;
mod compiler;
mod handler;

pub use compiler::Compiler;
pub use handler::Compiled;
