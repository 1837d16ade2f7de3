//! Entries and exits of functions of another process, counted in the kernel by uprobes. The program
//! need not know.
//!
//! Owns: the kernel half, the probes, what a hit costs here ([`Costs`]), and keeping that cost
//! below a bound ([`Duty`]). Promises: a probe fires in the one process it was attached to; return
//! addresses are never touched, as return probes would do, so exceptions, `longjmp`, stack readers
//! and Go's moving stacks work as before: exits are probed at the function's own instructions, or
//! behind the call in its caller ([`code`]). All probes go with the [`Duty`], and with this
//! process however it ends. Leaves to others: finding functions, judging.
//!
//! Needs root, or CAP_BPF and CAP_PERFMON, and a kernel with uprobes; else an [`Error`] says which
//! is missing.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("orbit-uprobe knows the instructions of x86_64 only");

mod callers;
pub mod code;
mod copies;
mod cost;
mod duty;
mod error;
mod file;
mod keeper;
mod prober;
mod programs;
mod table;

pub use callers::Behind;
pub use cost::Costs;
pub use duty::{Duty, State, Tally, Target};
pub use error::Error;
pub use file::CodeFile;
pub use table::{EXITS, Hits, Record, SLOTS, THREADS};
