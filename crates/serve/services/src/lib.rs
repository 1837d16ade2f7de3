//! First-class services (SafeX and User-Level Sandboxing, RTAS '06) on a stock kernel: application
//! code that runs when its event comes, within a budget, charged to its owner, whether or not its
//! program is running.
//!
//! The key types: a [`Host`] owns a [`Region`], which members have mapped at the same address. A
//! service is loaded from a [`Spec`] into a slot of the region. It reads and sets attributes of an
//! [`AttributeClass`] through handles, each under a guard; a [`Manager`] owns the class. Its
//! [`Budget`] bounds each run and each window of time; its [`Account`] says what it used.
//!
//! The life of an event: a tick is due; in the kernel a program finds out whether a member is
//! current and in user mode, and sends it a signal; the library inside the region claims the event,
//! opens the service's slot, arms the budget, calls the handler, closes the slot, charges the
//! account. If no member took it in time, an agent does the same. Other events (pressure stalls,
//! descriptors, tracepoints: [`Source`]; what a program or a command posts) wait in a bounded queue
//! of the slot. A handler that wants to wait begins again in a thread of its service's own.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

pub mod account;
pub mod agent;
pub mod ask;
pub mod budget;
pub mod call;
mod clocks;
pub mod elf;
pub mod error;
mod given;
pub mod grant;
pub mod host;
pub mod join;
pub mod kernel;
mod kernel_calls;
pub mod manager;
pub mod managers;
pub mod member;
pub mod objects;
pub mod program;
pub mod region;
mod sets;
mod shared;
pub mod source;
pub mod spec;
pub mod support;
pub mod ticks;
mod tracepoint;

pub use account::Account;
pub use agent::Agent;
pub use ask::{Pending, Question};
pub use budget::Budget;
pub use call::Callee;
pub use error::{Error, Kind, Result};
pub use given::Given;
pub use grant::Granted;
pub use host::Host;
pub use kernel::{Kernel, KernelSpec};
pub use manager::{AttributeClass, GrantRequest, Manager};
pub use member::Invitation;
pub use orbit_sandbox_lib::abi as layout;
pub use orbit_sandbox_lib::abi::Event;
pub use orbit_sandbox_lib::control::Control;
pub use orbit_sandbox_lib::guard::{Guard, Verdict};
pub use orbit_sandbox_lib::question::{Answer, Questions, WORDS};
pub use orbit_sandbox_lib::{attribute, gate, group, published, sys};
pub use program::Program;
pub use region::Region;
pub use source::{Opened, Source, Sources};
pub use spec::{Dispatch, Happened, Options, ServiceId, Spec, Status, Upcalls};
