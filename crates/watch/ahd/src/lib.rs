//! Application hang detection: which thread of a program hangs, in what, and why, seen from
//! outside.
//!
//! Owns: [`Watcher`], which scans a set of processes some twelve times a second ([`Watcher::scan`])
//! and answers [`Event`]s. Promises: a scan of a sleeping program reads one small file a thread;
//! what decides is facts and time, without what the machine took, so a slow machine raises nothing;
//! the watched processes are never written. A thread is stopped (by ptrace, tens of microseconds)
//! only for its stack, once a hang is found. Refuses: to print; to act on a hang: that is the
//! caller's.
//!
//! How it decides stands in this crate's README. The words (section, check value, exit) are those
//! of RMK, section 5.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]

mod config;
mod event;
mod explain;
pub mod facts;
pub mod history;
pub mod json;
pub mod judge;
mod limits;
mod locks;
mod members;
pub mod replay;
pub mod report;
pub mod section;
pub mod sense;
pub mod stacks;
mod suspects;
pub mod wakers;
mod watcher;
mod words;

pub use config::Config;
pub use event::{Edge, Event, Hang, Involved, Kind, SectionUse, Times, Unit};
pub use limits::Limits;
pub use orbit_inspect::Sure;
pub use orbit_inspect::stacks::fold;
pub use watcher::{ThreadNow, Watcher};
pub use words::words;
