//! Application hang detection: tells which thread of a program hangs, in what, and why, from outside.
//!
//! Owns: [`Ahd`], which looks at a set of processes once a period ([`Ahd::tick`]) and answers [`Event`]s. Promises: a
//! healthy look reads one small file a thread; progress is CPU time a thread got, so a slow machine raises nothing; time
//! is the monotonic clock's, and a watcher that was itself held up counts at most two periods. The watched processes are
//! never written. A thread is stopped (by ptrace, tens of microseconds) only once it is suspected. Refuses: to judge a thread
//! that is stopped, traced by another program, or in an uninterruptible wait; to print; to act on a hang: that is the caller's.
//!
//! How it decides is told in this crate's README. The words (section, check value, exit) are those of RMK, section 5.
#![deny(unsafe_op_in_unsafe_fn)]

mod at_lock;
mod blocked;
mod busy;
mod common_memory;
mod config;
mod describe;
mod exam;
mod executions;
mod history;
mod holders;
pub mod json;
mod learn;
pub mod module;
mod named;
mod passes;
mod proc;
mod progress;
mod queues;
mod report;
mod rests;
mod sections;
mod shares;
mod sight;
mod signals;
mod standstill;
mod stays;
mod thread;
mod watch;

pub use config::Config;
pub use named::Named;
pub use report::{Edge, Event, Hang, Involved, Kind, SectionUse, Unit};
pub use watch::Ahd;
