//! The managers that come with the crate. All their attributes are read and applied by system calls
//! or through the control words, so that native services can do both inside a member.

pub mod cpu;
pub mod descriptors;
pub mod memory;

use crate::error::{Error, Kind, Result};
use crate::manager::{AttributeClass, Manager};
use crate::shared::Shared;
use orbit_sandbox_lib::attribute;
use std::io;
use std::sync::Arc;

/// All classes of these managers.
pub fn classes() -> impl Iterator<Item = &'static AttributeClass> {
    [cpu::CLASSES, memory::CLASSES, descriptors::CLASSES].into_iter().flatten()
}

/// One of these managers: its classes say which.
#[derive(Debug)]
pub(crate) struct BuiltIn {
    classes: &'static [AttributeClass],
    shared: Arc<Shared>,
}

impl BuiltIn {
    /// All of them.
    pub(crate) fn all(shared: &Arc<Shared>) -> Vec<Arc<dyn Manager>> {
        let one = |classes| Arc::new(BuiltIn { classes, shared: shared.clone() }) as Arc<dyn Manager>;
        vec![one(cpu::CLASSES), one(memory::CLASSES), one(descriptors::CLASSES)]
    }
}

/// What the kernel answered, as an error about a target.
fn refused(class: &AttributeClass, target: i32, error: i64) -> Error {
    if error == attribute::NOT_PUBLISHED {
        let text = format!("process {target} does not publish {}: see orbit_program.h", class.name);
        return Error::new(Kind::NotFound, text);
    }
    if error == -i64::from(libc::EOPNOTSUPP) && class.id == attribute::CPU_MAX {
        let text =
            format!("{} of {target}: the process is in no control group of its own that limits CPU time", class.name);
        return Error::new(Kind::Unsupported, text);
    }
    let error = io::Error::from_raw_os_error(i32::try_from(-error).unwrap_or(libc::EIO));
    let text = format!("{} of {target}: {error}", class.name);
    let is_root = orbit_linux::host::user() == 0;
    match error.raw_os_error() {
        Some(libc::EPERM) if is_root && class.id == attribute::CPU_PRIORITY => {
            let why = "its control group has no real-time CPU time (cpu.rt_runtime_us of its cpu group is 0), or this \
                       user namespace lacks CAP_SYS_NICE";
            Error::new(Kind::Denied, format!("{text}: {why}"))
        }
        Some(libc::ESRCH) => Error::new(Kind::NotFound, text),
        Some(libc::EPERM | libc::EACCES) => Error::new(
            Kind::Denied,
            format!(
                "{text}: real-time priorities need root, CAP_SYS_NICE, or a limit of real-time priorities; so does \
                 lowering a niceness"
            ),
        ),
        _ => Error::system(format!("{} of {target}", class.name), &error),
    }
}

impl Manager for BuiltIn {
    fn classes(&self) -> &'static [AttributeClass] {
        self.classes
    }

    fn read(&self, class: &AttributeClass, target: i32) -> Result<i64> {
        attribute::read(class.id, target, self.shared.table()).map_err(|error| refused(class, target, error))
    }

    fn apply(&self, class: &AttributeClass, target: i32, value: i64) -> Result<()> {
        attribute::apply(class.id, target, value, self.shared.table()).map_err(|error| refused(class, target, error))
    }
}
