//! The reliability microkernel: *pins* wrap one facility of the system each, *modules* watch and
//! help programs, and a *core* between them loads pins, hands events on and keeps modules apart.
//! After the RMK of Wang et al. (sections 3 to 5), brought to an unmodified Linux kernel by eBPF,
//! perf, ptrace and /proc.
//!
//! A [`Core`] admits modules as [`Client`]s. A client uses pins, issues commands and subscribes to
//! events. A core knows the pins that it was given: the crate `orbit-pins` has twelve, and shows
//! the whole in an example.
//!
//! Everything that can be counted is counted in the kernel; only what passes a subscription's
//! [`Filter`] is sent, and what finds no room is counted ([`Counts::lost`]), never silently
//! dropped. docs/modules.md shows a module.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod command;
mod core;
mod error;
mod event;
mod filter;
pub mod modules;
mod pin;
mod touches;
pub mod wire;

pub use crate::core::{
    Client, Context, Core, CoreBuilder, Counted, Dispatcher, Env, Installed, KernelSide, Module, ModuleOptions,
    ModuleStatus, PinStatus, Registration, Report, Shared, Source, Subscription, lock, timer,
};
pub use command::{
    Access, CallNow, CallVerdict, Channel, Command, CpuState, Delivery, Holder, InterruptCount, Measure, OpenFile,
    PageProperty, Range, Region, Reply, Socket, Target, ThreadTime, Unit, Verdict,
};
pub use error::{Error, PinError, Result};
pub use event::{Event, Kind, now};
pub use filter::{Counts, Filter, Scope};
pub use pin::{Loads, Pin, PinKind, Probe, Tries};
pub use touches::Touches;
