//! The memory manager: what a process uses, and what a program's own cache may use.
//!
//! `memory:cache` belongs to the program: it publishes the attribute (`orbit_program.h`,
//! [`crate::program`]) and shrinks or grows its cache when a service asks for it. Events come from
//! pressure stalls, `--on psi=memory:150ms/2s`: those of the owner's control group where it has one
//! of its own.

use crate::manager::AttributeClass;
use orbit_sandbox_lib::attribute;

/// Its classes.
pub const CLASSES: &[AttributeClass] = &[
    AttributeClass {
        id: attribute::MEMORY_USED,
        name: "memory:used",
        unit: "bytes",
        min: 0,
        max: i64::MAX,
        settable: false,
        about: "resident memory of a process",
    },
    AttributeClass {
        id: attribute::MEMORY_CACHE,
        name: "memory:cache",
        unit: "bytes",
        min: 0,
        max: i64::MAX,
        settable: true,
        about: "what the cache of a program may use, if the program publishes that; it bounds the value itself too",
    },
];
