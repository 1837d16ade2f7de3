//! Orbit: auxiliary tasks in address spaces of their own.
//!
//! A program (*main*) makes an [`Orbit`] with an entry function, puts the state its task reads
//! into [`Area`]s, and calls: the task sees a consistent snapshot of the areas at the same
//! addresses, in its own process. What it wants changed in main it pushes as an [`Update`], which
//! main checks and applies. When the task crashes, hangs or leaks, main gets an [`Outcome`] and
//! continues; the task is started again.
//!
//! ```
//! use std::ffi::{c_long, c_void};
//!
//! // Runs in the orbit: `args` is a copy of the caller's bytes, here the address of a counter in the area.
//! unsafe extern "C" fn inspect(_store: *mut c_void, args: *mut c_void) -> c_long {
//!     unsafe { **(args as *const *const i64) as c_long }
//! }
//!
//! fn main() -> Result<(), orbit::Error> {
//!     let orbit = orbit::Orbit::new("inspector", inspect)?;
//!     let area = orbit::Area::new(4096)?;
//!     let counter = area.place(41i64)?;
//!     unsafe { *counter.as_ptr() += 1 };
//!     let outcome = orbit.call(&[&area], &(counter.as_ptr() as usize).to_ne_bytes())?;
//!     assert_eq!(outcome.returned(), Some(42));
//!     Ok(())
//! }
//! ```
//!
//! Orbits keep the rights (user, groups, capabilities) that main had when the library was set up: a
//! program that gives some up does so before, or knows this. Limits of such orbits can no longer be
//! changed by main.
//!
//! [`Task`] is the same with Rust functions and types, [`Orbit`] what it stands on.
//!
//! The semantics are those of *orbit* (OSDI '22), sections 3 to 4.6. Main never trusts a byte that
//! an orbit can write.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod answers;
pub mod area;
mod attach;
mod blackbox;
mod border;
mod call;
mod calls;
mod channel;
mod clock;
mod copier;
mod core;
mod costs;
mod delegate;
mod error;
mod future;
mod gather;
mod generation;
mod inherited;
pub mod keep;
mod kept;
mod left_threads;
mod life;
mod limits;
mod log;
mod mains_shared;
mod names;
mod orbit;
mod own;
mod page;
mod per_process;
mod pins;
mod queue;
mod refills;
mod replica;
mod runtime;
mod shared;
mod side;
pub mod status;
mod stream;
mod stuck;
mod supervisor;
mod task;
mod template;
mod typed;
#[doc(hidden)]
pub mod units;
mod update;
mod usual;
#[doc(hidden)]
pub mod value;
mod wire;

pub use crate::core::{Pending, Restart, Stats, WhenFull};
pub use area::{Area, AreaBuilder, Engine};
pub use blackbox::{Crash, Frame, signal_name};
pub use call::{CallOptions, Coalesce, MOST_WAITING_BYTES as MAX_WAITING_BYTES, Outcome};
pub use calls::MAX_ARGS;
pub use delegate::{Delegate, Delegated};
pub use error::{Error, Kind, Result};
pub use future::Future;
pub use kept::MOST_BYTES as MAX_KEPT_BYTES;
pub use limits::{Limits, MAX_CPUS, MIN_MEMORY};
pub use mains_shared::SharedMemory;
pub use orbit::{Orbit, OrbitBuilder};
pub use runtime::{Config, init, init_with, shutdown};
pub use side::{Entry, Init, is_orbit};
pub use typed::{Task, TaskFuture};
pub use update::{Item, MAX_BYTES, MAX_ITEMS, Operation, Plain, Update, register_operation, unregister_operation};
pub use value::{Answer, Shown, Value};

/// Hands an update from the task that runs now to main, for the future of its call (section 4.5 of
/// the paper), or for [`Orbit::pull`] where the call was a synchronous one. A task may push as much
/// as it likes in a call. Blocks while the ring of updates is full, and while [`MAX_WAITING_BYTES`]
/// wait for main to pull them: a caller that waits for the end of a call that brings more, and
/// pulls none, waits for ever. Only in an orbit.
pub fn push(update: &Update) -> Result<()> {
    let mut bytes = Vec::new();
    update.encode(&mut bytes)?;
    task::push(&bytes)
}

#[doc(hidden)]
pub mod fuzzing {
    //! Bodies of fuzz targets.
    pub use crate::answers::fuzzing::queue;
    pub use crate::log::fuzzing::log;
    pub use crate::update::fuzzing::*;
}
