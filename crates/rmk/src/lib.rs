//! The reliability microkernel: *pins* wrap one facility of the system each, *modules* watch and help programs, and a *core*
//! between them loads pins, hands events on and keeps modules apart. After the RMK of Wang et al. (sections 3 to 5), brought
//! to an unmodified Linux kernel by eBPF, perf, ptrace and /proc.
//!
//! A [`Core`] admits modules as [`Client`]s. A client uses pins, issues commands and subscribes to events:
//!
//! ```
//! use orbit_rmk::{Core, Filter, Kind};
//! use std::time::Duration;
//!
//! let core = Core::new()?;
//! let module = core.client("metronome");
//! module.use_pin("P_PERI")?;
//! module.subscr_event("P_PERI", Kind::Period, Filter::everyone().interval(Duration::from_millis(5)))?;
//! let mut events = Vec::new();
//! while events.is_empty() {
//!     module.wait(10, Duration::from_secs(1), &mut events);
//! }
//! assert_eq!(events[0].kind(), Some(Kind::Period));
//! # Ok::<(), orbit_rmk::Error>(())
//! ```
//!
//! Everything that can be counted is counted in the kernel; only what passes a subscription's [`Filter`] is sent, and what finds
//! no room is counted ([`Counts::lost`]), never silently dropped. README.md shows a module, PINS.md describes the twelve pins.

mod command;
mod core;
mod error;
mod event;
mod filter;
pub mod modules;
mod pin;
mod pins;
mod wire;

pub use crate::core::{
    Client, Context, Core, CoreBuilder, Dispatcher, Env, Installed, Module, ModuleOptions, ModuleStatus, PinStatus,
    Registration, Report, Source, Subscription,
};
pub use command::{
    Access, CallNow, CallVerdict, Channel, Command, CpuState, Delivery, InterruptCount, Measure, OpenFile,
    PageProperty, Range, Region, Reply, Socket, Target, ThreadTime, Unit, Verdict,
};
pub use error::{Error, PinError, Result};
pub use event::{Event, Kind, now};
pub use filter::{Counts, Filter, Who};
pub use pin::{Pin, PinKind, Probe};
