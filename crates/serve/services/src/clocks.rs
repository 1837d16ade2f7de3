//! Upcalls without rights: a clock of each thread of a member sends it the signal of upcalls while
//! it runs in user mode. That is a perf event on the thread's own CPU time, which a user may have
//! on processes of its own.
//!
//! What it lacks against the kernel half ([`crate::ticks`]): threads that begin later are found by
//! the next [`Clocks::refresh`]; a thread's ticks come by the time that it runs, not by the time
//! that passes.

use crate::error::{Error, Kind, Result};
use orbit_linux::perf::Alarm;
use orbit_linux::procfs;
use std::collections::BTreeMap;

/// Clocks of all members.
#[derive(Debug)]
pub(crate) struct Clocks {
    signal: i32,
    period_ns: u64,
    members: BTreeMap<i32, BTreeMap<i32, Alarm>>,
}

impl Clocks {
    /// Clocks of this period, as far as this user may have one of its own thread.
    ///
    /// # Errors
    /// `Unsupported`, with what the kernel said, or for a signal that would be queued again and
    /// again.
    pub(crate) fn start(signal: i32, period_ns: u64) -> Result<Clocks> {
        if signal >= 32 {
            let text = format!("clocks of members need a classic signal for upcalls, such as 16, and not {signal}");
            return Err(Error::new(Kind::Unsupported, text));
        }
        // So long a period that it is not over when the clock is closed.
        Alarm::start(0, 3_600_000_000_000, signal)
            .map_err(|error| Error::new(Kind::Unsupported, format!("clocks of members: {error}")))?;
        Ok(Clocks { signal, period_ns: period_ns.max(100_000), members: BTreeMap::new() })
    }

    /// A clock for each thread of a process, which must have joined.
    ///
    /// # Errors
    /// `Denied` when the process is another user's; `NotFound` when it is gone.
    pub(crate) fn add(&mut self, process: i32) -> Result<()> {
        self.members.entry(process).or_default();
        let started = self.cover(process);
        if started.is_err() {
            self.members.remove(&process);
        }
        started
    }

    /// No more upcalls in this process, but for one that is on its way.
    pub(crate) fn remove(&mut self, process: i32) {
        self.members.remove(&process);
    }

    /// Finds threads that began since.
    pub(crate) fn refresh(&mut self) {
        let members: Vec<i32> = self.members.keys().copied().collect();
        for process in members {
            // A thread that ended meanwhile needs no clock.
            let _ = self.cover(process);
        }
    }

    fn cover(&mut self, process: i32) -> Result<()> {
        if crate::member::has_own_filter(process) {
            // Since it joined.
            self.members.entry(process).or_default().clear();
            return Ok(());
        }
        let threads = procfs::ids(format!("/proc/{process}/task"));
        if threads.is_empty() {
            return Err(Error::new(Kind::NotFound, format!("process {process} is gone")));
        }
        let Some(clocks) = self.members.get_mut(&process) else { return Ok(()) };
        clocks.retain(|thread, _| threads.contains(thread));
        for thread in threads {
            if clocks.contains_key(&thread) {
                continue;
            }
            match Alarm::start(thread, self.period_ns, self.signal) {
                Ok(alarm) => drop(clocks.insert(thread, alarm)),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => return Err(Error::new(Kind::Denied, format!("a clock of thread {thread}: {error}"))),
            }
        }
        Ok(())
    }
}
