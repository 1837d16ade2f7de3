//! A signal to a thread while it runs: once in each period of its own CPU time, only when it is in
//! user mode.
//!
//! No rights are needed for threads of one's own user where `kernel.perf_event_paranoid` is at most
//! 2. A signal of the classic ones (below 32) is not queued twice: a thread that has it blocked
//! finds one later, not thousands.

use super::{
    ATTR_EXCLUDE_HV, ATTR_EXCLUDE_KERNEL, Attr, F_OWNER_TID, F_SETOWN_EX, F_SETSIG, Kind, PERF_COUNT_SW_TASK_CLOCK,
    PERF_TYPE_SOFTWARE, explain, open_attr,
};
use crate::check_int;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The event ends when the thread executes another program, which would not expect the signal.
/// Linux 5.13.
const ATTR_REMOVE_ON_EXEC: u64 = 1 << 36;

/// A running alarm; dropping it ends it. One more signal may be on its way then.
#[derive(Debug)]
pub struct Alarm {
    /// Keeps the clock going.
    _fd: OwnedFd,
}

impl Alarm {
    /// Sends `sig` to a thread, of any process of the same user, once in `period_ns` that it runs.
    ///
    /// # Errors
    /// As [`Counter::open_thread`](super::Counter::open_thread); `EINVAL` before Linux 5.13, or for
    /// a number that is no signal.
    pub fn start(tid: i32, period_ns: u64, sig: i32) -> io::Result<Alarm> {
        let attr = Attr {
            kind: PERF_TYPE_SOFTWARE,
            size: size_of::<Attr>() as u32,
            config: PERF_COUNT_SW_TASK_CLOCK,
            sample_period: period_ns,
            wakeup_events: 1,
            flags: ATTR_EXCLUDE_KERNEL | ATTR_EXCLUDE_HV | ATTR_REMOVE_ON_EXEC,
            ..Attr::default()
        };
        let fd = open_attr(&attr, tid, -1).map_err(|e| explain(e, Kind::TaskClock))?;
        let owner: [i32; 2] = [F_OWNER_TID, tid];
        let number = fd.as_raw_fd();
        // SAFETY: struct f_owner_ex is two integers; the other commands take one.
        unsafe {
            check_int(libc::fcntl(number, F_SETOWN_EX, owner.as_ptr()))?;
            check_int(libc::fcntl(number, F_SETSIG, sig))?;
            let flags = check_int(libc::fcntl(number, libc::F_GETFL))?;
            check_int(libc::fcntl(number, libc::F_SETFL, flags | libc::O_ASYNC))?;
        }
        Ok(Alarm { _fd: fd })
    }
}
