//! Hijack: an executive in every guest process sees and controls all its system calls.
//!
//! The *executive* is a small freestanding program (`executive/`, in C) that loads the *guest* into
//! its own process, has the kernel's Syscall User Dispatch hand it each call, and rewrites the
//! guest's call sites as it goes. The *host* is the process that starts guests: this library. Host
//! and guests share one memory segment with counters, rules and a ring of trace records for each
//! thread.
//!
//! The guest can write that segment and the executive: the host checks every value it reads from
//! it, and what the executive enforces is containment, not a security boundary.
//!
//! | file | what it owns |
//! |---|---|
//! | [`calls`] | the table of system calls: names, arguments, what is captured |
//! | [`session`] | starting a guest, its end, its counters |
//! | [`reader`] | records of the rings, checked |
//! | [`show`] | a call as text in the form of `strace`, and as JSON |
//! | [`campaign`] | a run for each fault of each site, compared with the run without |
//! | [`object`] | policy objects: code that runs on the executive's side of guests |
//! | [`attendant`] | the host's thread that answers guests' questions and ends loops of policy objects |
//! | [`control`] | stop, inspect, step and resume threads of guests |
//! | [`guest`] | the executive as a guest sees it that knows of it |
//! | [`inputs`] | recording and replaying what a program reads |
//! | [`time`] | the speed of guests' clocks, and their jumps |
//! | [`rules`] | the small language of rules, compiled for the executive |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod attendant;
pub mod calls;
pub mod campaign;
pub mod control;
pub mod guest;
pub mod inputs;
pub mod object;
pub mod reader;
pub mod rules;
pub mod session;
mod shared;
pub mod show;
pub mod time;

pub use attendant::{Answer, Decider, Question};
pub use object::Object;
pub use session::{OnFailure, Options, Outcome, Session};
pub use time::{Jump, Speed};
