//! The manager of descriptors: how many a process has open, how many it may have, and how long a
//! program's connections may be idle.
//!
//! `descriptors:idle` belongs to the program, which publishes it and closes what has been idle for
//! longer.

use crate::manager::AttributeClass;
use orbit_sandbox_lib::attribute;

/// Its classes.
pub const CLASSES: &[AttributeClass] = &[
    AttributeClass {
        id: attribute::DESCRIPTORS_OPEN,
        name: "descriptors:open",
        unit: "descriptors",
        min: 0,
        max: i64::MAX,
        settable: false,
        about: "open descriptors of a process (Linux 6.2 or later)",
    },
    AttributeClass {
        id: attribute::DESCRIPTORS_LIMIT,
        name: "descriptors:limit",
        unit: "descriptors",
        min: 0,
        max: i64::MAX,
        settable: false,
        about: "the largest number of descriptors that a process may have open",
    },
    AttributeClass {
        id: attribute::DESCRIPTORS_IDLE,
        name: "descriptors:idle",
        unit: "ms",
        min: 0,
        max: 86_400_000,
        settable: true,
        about: "how long a connection may be idle before the program closes it, if the program publishes that",
    },
];
