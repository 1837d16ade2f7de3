//! The two descriptors that the `track` engine works with, shared by all trackers of this process.
//!
//! `/proc/self/pagemap` is bound to the address space when it is opened, so a descriptor opened
//! early continues working after `setuid`; it, and the userfaultfd, would also continue acting on
//! main's memory in a forked child, so they carry the generation they were opened in.

use crate::generation::generation;
use crate::own::{self, Own};
use crate::per_process::{Inherit, PerProcess};
use orbit_linux::pagemap::Pagemap;
use orbit_linux::uffd::Uffd;
use std::io;
use std::sync::{Arc, PoisonError, Weak};

/// An asynchronous userfaultfd and the pagemap of the same address space.
#[derive(Debug)]
pub(super) struct Kernel {
    pub uffd: Own<Uffd>,
    pub pagemap: Own<Pagemap>,
    generation: u64,
}

/// What was not available, and the kernel's answer.
#[derive(Debug)]
pub(super) struct Missing {
    pub facility: &'static str,
    pub error: io::Error,
}

static SHARED: PerProcess<Weak<Kernel>> = PerProcess::new();

/// A child opens its own.
impl Inherit for Weak<Kernel> {
    fn inherit(&self) -> Self {
        Weak::new()
    }
}

impl Kernel {
    /// The one of this process, opened if no tracker holds it.
    pub fn open() -> Result<Arc<Kernel>, Missing> {
        let mut shared = SHARED.lock().write().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = shared.upgrade().filter(|kernel| kernel.is_whole()) {
            return Ok(kernel);
        }
        let uffd = Uffd::open_wp_async().and_then(|uffd| Own::over(uffd.map_fd(own::up)));
        let uffd = uffd.map_err(|error| Missing { facility: "userfaultfd", error })?;
        let pagemap = Pagemap::own().and_then(|pagemap| Own::over(pagemap.map_fd(own::up)));
        let pagemap = pagemap.map_err(|error| Missing { facility: "/proc/self/pagemap", error })?;
        if !pagemap.get().is_ok_and(Pagemap::has_scan) {
            let error = io::Error::from_raw_os_error(libc::ENOTTY);
            return Err(Missing { facility: "PAGEMAP_SCAN", error });
        }
        let kernel = Arc::new(Kernel { uffd, pagemap, generation: generation() });
        *shared = Arc::downgrade(&kernel);
        Ok(kernel)
    }

    /// Whether the program has closed neither.
    pub fn is_whole(&self) -> bool {
        self.uffd.is_there() && self.pagemap.is_there()
    }

    /// Whether this process opened it, and not one it was forked from.
    pub fn is_ours(&self) -> bool {
        self.generation == generation()
    }
}

impl Missing {
    /// The reason and the way out, for a message.
    pub fn reason(&self) -> String {
        let hint = match self.error.raw_os_error() {
            Some(libc::EPERM) => "; allow userfaultfd in the container's seccomp profile",
            Some(libc::EACCES) => "; after setuid call prctl(PR_SET_DUMPABLE, 1) first, or make the area before it",
            Some(libc::ENOSYS | libc::EINVAL | libc::ENOTTY) => "; it came with Linux 6.7",
            Some(libc::EMFILE) => "; raise the limit of descriptors (ulimit -n)",
            _ => "",
        };
        format!("{} is missing: {}{hint}", self.facility, self.error)
    }
}
