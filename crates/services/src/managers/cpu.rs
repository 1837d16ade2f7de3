//! The CPU manager: real-time priority and niceness of threads, and the CPU time of processes.

use crate::manager::AttributeClass;
use orbit_sandbox_lib::attribute;

/// Its classes.
pub const CLASSES: &[AttributeClass] = &[
    AttributeClass {
        id: attribute::CPU_PRIORITY,
        name: "cpu:priority",
        unit: "priority",
        min: 0,
        // Kernel threads that must run have 97 and more, agents 99.
        max: 95,
        settable: true,
        about: "real-time priority of a thread; 0 is an ordinary thread, else it is scheduled first in, first out",
    },
    AttributeClass {
        id: attribute::CPU_USED,
        name: "cpu:used",
        unit: "ns",
        min: 0,
        max: i64::MAX,
        settable: false,
        about: "CPU time of a process so far",
    },
    AttributeClass {
        id: attribute::CPU_NICE,
        name: "cpu:nice",
        unit: "nice",
        min: -20,
        max: 19,
        settable: true,
        about: "niceness of a thread: the weight of an ordinary thread falls by a tenth with each step",
    },
];
