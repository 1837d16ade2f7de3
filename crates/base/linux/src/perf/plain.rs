//! A counter that only counts: no samples, no sharing in turns. [`super::Counter`] is for those
//! that wake someone.

use super::{ATTR_EXCLUDE_KERNEL, Attr, PERF_EVENT_IOC_DISABLE, PERF_EVENT_IOC_ENABLE, open_attr};
use crate::check_int;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

const ATTR_DISABLED: u64 = 1;

/// Where a [`Plain`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// One thread, wherever it runs.
    Thread(i32),
    /// Everything on one CPU.
    Cpu(i32),
}

/// An open counter, closed on drop.
#[derive(Debug)]
pub struct Plain(OwnedFd);

impl Plain {
    /// Opens a stopped counter by its type and number in `<linux/perf_event.h>`. Where the user may
    /// not count what the kernel does for a program, it counts user space only.
    ///
    /// # Errors
    /// `ENOENT`, `EOPNOTSUPP` where there is no such counter; `EACCES`, `EPERM`; `ESRCH`; `ENODEV`
    /// without such a CPU.
    pub fn open(place: Place, kind: u32, config: u64) -> io::Result<Plain> {
        let (pid, cpu) = match place {
            Place::Thread(tid) => (tid, -1),
            Place::Cpu(cpu) => (-1, cpu),
        };
        let open = |flags| {
            let attr = Attr { kind, size: size_of::<Attr>() as u32, config, flags, ..Attr::default() };
            open_attr(&attr, pid, cpu).map(Plain)
        };
        open(ATTR_DISABLED).or_else(|_| open(ATTR_DISABLED | ATTR_EXCLUDE_KERNEL))
    }

    /// The count since opening; 0 if the kernel gives none.
    pub fn read(&self) -> u64 {
        let mut value = 0u64;
        // SAFETY: eight bytes are written to a live local; the format asked for is one value.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut value).cast(), 8) };
        value
    }

    /// Starts or stops counting; the count stays.
    ///
    /// # Errors
    /// None in practice.
    pub fn set_running(&self, on: bool) -> io::Result<()> {
        let request = if on { PERF_EVENT_IOC_ENABLE } else { PERF_EVENT_IOC_DISABLE };
        // SAFETY: these requests take no argument.
        check_int(unsafe { libc::ioctl(self.0.as_raw_fd(), request, 0) }).map(|_| ())
    }
}
