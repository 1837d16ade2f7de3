//! The way into another process: stop it, run system calls in it, map memory, move descriptors, and
//! leave it as it was.
//!
//! ```no_run
//! use graft::{Process, Protection, Source};
//!
//! # fn main() -> Result<(), graft::Error> {
//! let process = Process::find(4711)?;
//! let address = graft::free_address(&[&process], 4096)?;
//! process.while_stopped(|stopped| -> Result<(), graft::Error> {
//!     let code = [0xb8, 0x2a, 0, 0, 0, 0xc3]; // mov $42, %eax; ret
//!     let region = stopped.map(Some(address), 4096, Protection::READ_EXECUTE, Source::Bytes(&code))?;
//!     stopped.leave(region)?; // it stays; all else is given back
//!     Ok(())
//! })
//! # }
//! ```
//!
//! [`Process::while_stopped`] stops all threads, runs a closure with the [`Stopped`] process, gives
//! back what the closure did not [`leave`](Stopped::leave), and lets the threads continue: calls
//! that were in progress continue too.
//!
//! # A tracer that dies
//! A thread of the program never has registers from which it could not continue alone. An injected
//! call stands in a *stub*: code in unused bytes after the vdso's image, which makes the call, then
//! undoes what was not left, restores the signal mask and the registers, and jumps to where the
//! thread was. The tracer stops the thread after the call and resets it; if the tracer was killed,
//! the thread runs the rest of the stub.
//!
//! Linux on x86-64 only; 32-bit programs are rejected.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod batch;
mod call;
mod denial;
mod descriptor;
mod error;
mod launch;
mod leaf;
mod limits;
mod process;
mod region;
mod restart;
mod seize;
mod stopped;
mod stub;
mod thread;
mod threads;

pub use batch::{Batch, Call};
pub use denial::Denial;
pub use error::Error;
pub use launch::launch;
pub use leaf::Leaf;
pub use orbit_linux::maps::Entry;
pub use process::Process;
pub use region::{Protection, Region, Source, free_address};
pub use restart::{Interrupted, Restart};
pub use stopped::Stopped;
pub use thread::{Regs, Thread};
pub use threads::NewThread;
