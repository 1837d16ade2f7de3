//! `orbit analyse`: which allocations of a program does a task read and write?
//!
//! Given a program and the entry function of its task, [`analyse`] names the allocation points that
//! must move into areas (section 4.7 of the paper), from a run of the unmodified program.
//!
//! How: a recorder is preloaded, which notes each allocation with its call stack in memory that
//! this process shares. A breakpoint stands at the entry. Where a thread comes to it, it makes a
//! copy of the process; the copy runs the function in single steps under ptrace, each instruction
//! is decoded, and each address that it accesses is looked up among the objects and the global
//! variables. Nothing is closed, so system calls work as ever. Then the copy is killed, and the
//! thread itself runs the function at full speed.
//!
//! Promises: the program's own results are those of a run without it, but for what a task does to
//! the outside (see `docs/analyse.md`). Refuses: statically linked and 32-bit programs.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("orbit-analyse decodes the instructions of x86_64 Linux only");

mod access;
mod ast;
mod bytes;
mod cargo;
mod copy;
mod error;
mod flow;
mod instances;
mod ir;
mod keeps;
mod keyboard;
mod likely;
mod names;
mod objects;
mod patch;
mod program;
mod report;
mod table;
mod tally;
mod wait;

pub use ast::Source;
pub use error::Error;
pub use likely::{Found, Likely, likely};
pub use orbit_inspect::functions::{Missing, Wanted};
pub use patch::{sketch, top};
pub use program::{Options, analyse};
pub use report::{GlobalUse, Place, Report, Site, StackUse};
