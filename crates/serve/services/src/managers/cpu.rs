//! The CPU manager: real-time priority and niceness of threads, the CPU time of processes, and
//! their weight and most CPU time by control group, which need no privilege where the group is
//! delegated.

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
        about: "niceness of a thread: its CPU time beside others falls by a tenth with each step",
    },
    AttributeClass {
        id: attribute::CPU_WEIGHT,
        name: "cpu:weight",
        unit: "weight",
        min: 1,
        max: 10_000,
        settable: true,
        about: "weight of a process's control group, 100 is usual; its niceness where that group may not be written",
    },
    AttributeClass {
        id: attribute::CPU_MAX,
        name: "cpu:max",
        unit: "% of a CPU",
        min: 0,
        max: 1_000_000,
        settable: true,
        about: "the most CPU time of a process's control group; 0 is no limit",
    },
];
