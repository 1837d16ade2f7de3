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

mod config;
mod event;
mod explain;
pub mod facts;
pub mod history;
pub mod json;
pub mod judge;
mod judged;
mod limits;
pub mod module;
mod old;
pub mod replay;
pub mod report;
pub mod sense;
pub mod wakers;
mod watcher;

pub use config::{Config, Method};
pub use event::{Edge, Event, Hang, Involved, Kind, SectionUse, Unit};
pub use limits::Limits;
pub use old::named::Named;
pub use old::watch::Ahd;
pub use orbit_inspect::Sure;
pub use watcher::Watcher;
