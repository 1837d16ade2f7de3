//! The twelve pins of the paper's Table 3, and a core that has them. PINS.md beside this crate says
//! what each does, raises, needs and costs. The reliability microkernel itself, with what a module
//! sees of it, is the crate `orbit-rmk`.
//!
//! ```
//! use orbit_rmk::{Filter, Kind};
//! use std::time::Duration;
//!
//! let core = orbit_pins::core()?;
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

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod apic;
mod calls;
mod dbr;
mod descriptors;
mod flow;
mod holders;
mod inject;
mod intr;
mod kernel;
mod layout;
mod mem;
mod overflow;
mod peri;
mod pmc;
mod proc;
mod schl;
mod sig;
mod traced;
mod tracer;

use orbit_rmk::{Core, CoreBuilder, PinKind, Result};

/// A core with the twelve pins: one thread, asleep; no pin loaded.
///
/// # Errors
/// If its thread cannot be started.
pub fn core() -> Result<Core> {
    builder().build()
}

/// The choices of a core that has the twelve pins.
pub fn builder() -> CoreBuilder {
    Core::builder().pins(all())
}

/// The twelve pins.
pub fn all() -> [PinKind; 12] {
    [
        pmc::KIND,
        apic::KIND,
        dbr::KIND,
        intr::KIND,
        sig::KIND,
        mem::KIND,
        schl::KIND,
        peri::KIND,
        calls::NET_PIN,
        calls::SYSC,
        calls::FILE_PIN,
        calls::IPC_PIN,
    ]
}
