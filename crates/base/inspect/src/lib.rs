//! Inspection of another process from outside.
//!
//! Owns: what can be learnt of a process that does not help, with nothing loaded into it and no
//! eBPF: the stacks of its threads ([`stacks`], [`python`]), what each thread waits for ([`waits`])
//! and rings of threads that wait for each other ([`rings`]).
//!
//! Promises: the watched process is stopped only by [`stacks::Unwinder::capture`], one thread at a
//! time, and that time is measured and reported. Nothing in it is written; a JVM alone is asked for
//! its threads, where [`runtimes`] is ([`runtimes::java`]). Whatever it holds in its
//! memory and files, be it rubbish made to do harm, the reader neither crashes nor hangs nor grows
//! without bound: each read has a limit and each chain a length. What is not certain says so, by
//! [`Sure`].
//!
//! Refuses: 32-bit programs (their calls are reported by number only), writing to the process,
//! stopping it as a whole.
//!
//! Everything needs the right to trace: the same user (and `kernel.yama.ptrace_scope` 0) or
//! CAP_SYS_PTRACE. Without it an [`Error::NotPermitted`] says so, or the one field that was not
//! available is empty.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("orbit-inspect knows the registers and lock layouts of x86_64 Linux only");

pub mod contention;
mod error;
mod family;
pub mod functions;
pub mod globals;
pub mod goroutines;
pub mod java;
mod maps;
mod memory;
mod procfs;
pub mod python;
pub mod rings;
pub mod runtimes;
pub mod stacks;
pub mod waits;

pub use error::Error;
pub use family::Family;
pub use maps::{Mapping, Maps};
pub use memory::Memory;

/// How sure a statement about another process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sure {
    /// Found by a rule of thumb; may be wrong.
    Guess,
    /// Everything seen fits, but something else could have the same form.
    Likely,
    /// Read from the place where the program or the kernel itself keeps it.
    Certain,
}

impl std::fmt::Display for Sure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Sure::Guess => "guess",
            Sure::Likely => "likely",
            Sure::Certain => "certain",
        })
    }
}
