//! The CPU manager: real-time priority and niceness of threads, and the CPU time of processes.

use crate::error::{Error, Kind, Result};
use crate::manager::{AttributeClass, Manager};
use orbit_sandbox_lib::attribute;
use std::fs;
use std::io;

/// See the module's head.
#[derive(Debug)]
pub struct Cpu;

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

/// What the kernel answered, as an error about a target.
fn refused(class: &AttributeClass, target: i32, error: i64) -> Error {
    let error = io::Error::from_raw_os_error(i32::try_from(-error).unwrap_or(libc::EIO));
    let text = format!("{} of {target}: {error}", class.name);
    match error.raw_os_error() {
        Some(libc::ESRCH) => Error::new(Kind::NotFound, text),
        Some(libc::EPERM | libc::EACCES) => Error::new(
            Kind::Denied,
            format!(
                "{text}: real-time priorities need root, CAP_SYS_NICE, or a limit of real-time priorities; so does lowering a niceness"
            ),
        ),
        _ => Error::system(format!("{} of {target}", class.name), &error),
    }
}

impl Manager for Cpu {
    fn classes(&self) -> &'static [AttributeClass] {
        CLASSES
    }

    fn read(&self, class: &AttributeClass, target: i32) -> Result<i64> {
        attribute::read(class.id, target).map_err(|error| refused(class, target, error))
    }

    fn apply(&self, class: &AttributeClass, target: i32, value: i64) -> Result<()> {
        attribute::apply(class.id, target, value).map_err(|error| refused(class, target, error))
    }

    fn may(&self, user: u32, target: i32) -> Result<()> {
        use std::os::unix::fs::MetadataExt;
        let gone = |_| Error::new(Kind::NotFound, format!("process {target} is gone"));
        let owner = fs::metadata(format!("/proc/{target}")).map_err(gone)?.uid();
        if user == 0 || user == owner {
            return Ok(());
        }
        Err(Error::new(
            Kind::Denied,
            format!(
                "process {target} is user {owner}'s: a service of user {user} may have handles on processes of that user only"
            ),
        ))
    }
}
