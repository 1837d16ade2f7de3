//! An installed module: its status, its reports, and the programs guarded for it.
//!
//! Reports are bounded in number and in bytes; older ones go first, and are counted.

use super::{Client, subscription::lock};
use crate::error::{Error, Result};
use orbit::Orbit;
use orbit_linux::eventfd;
use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// A report by a module, or by the core about it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Report {
    /// The module reported this.
    Said(String),
    /// The module failed and was unloaded: how, in words ([`orbit::Outcome`]'s).
    Failed(String),
    /// It was loaded again; events missed so far.
    Reloaded {
        /// As [`ModuleStatus::missed`].
        missed: u64,
    },
    /// It failed too often and stays unloaded.
    GaveUp,
    /// A request without a ticket failed.
    Refused(String),
    /// So many reports were dropped here, since they were not read in time.
    Dropped(u64),
}

/// The status of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleStatus {
    /// Its name.
    pub name: String,
    /// Its process; 0 while it is down.
    pub pid: i32,
    /// True while it is loaded and started.
    pub up: bool,
    /// Events handed to it, without those of a call in which it failed.
    pub handled: u64,
    /// Events that came while it was down, and those of the calls in which it failed: up to 1,022
    /// each time, of which it may have seen the first.
    pub missed: u64,
    /// Events that found its queue full while it was up, over all its lives.
    pub lost: u64,
    /// Times it failed.
    pub failures: u64,
    /// Reports that were dropped since they were not read in time.
    pub unread: u64,
}

/// What the module's thread shares with the program that installed it.
pub(super) struct Shared {
    pub state: Mutex<Known>,
    changed: Condvar,
    /// Signalled while reports wait.
    ready: OwnedFd,
}

#[derive(Default)]
pub(super) struct Known {
    pub status: ModuleStatus,
    reports: VecDeque<Report>,
    /// Bytes of the texts of `reports`.
    bytes: usize,
    /// Dropped reports that the reader does not know of yet: older than all that wait.
    dropped: u64,
    /// That of the life that started last, and beside it, while another starts, that one's.
    pub clients: Vec<Arc<Client>>,
    pub guarded: Vec<u32>,
    pub stop: bool,
}

/// Reports kept for a reader that is late; older ones are dropped first.
const MAX_KEPT_REPORTS: usize = 1024;
/// Bytes of their texts; one that alone has more is kept alone.
const REPORT_BYTES: usize = 32 << 20;

impl Report {
    /// Bytes of its text.
    fn bytes(&self) -> usize {
        match self {
            Report::Said(text) | Report::Failed(text) | Report::Refused(text) => text.len(),
            Report::Reloaded { .. } | Report::GaveUp | Report::Dropped(_) => 0,
        }
    }
}

impl Known {
    /// Guards a program for all lives that there are, or for none if it fails for one of them.
    fn guard(&mut self, pid: u32) -> Result<()> {
        let guarded = self.clients.iter().try_for_each(|client| client.guard(pid));
        self.guarded.retain(|guarded| *guarded != pid);
        match &guarded {
            Ok(()) => self.guarded.push(pid),
            Err(_) => self.clients.iter().for_each(|client| client.unguard(pid)),
        }
        guarded
    }

    fn next_report(&mut self) -> Option<Report> {
        let report = self.reports.pop_front()?;
        self.bytes -= report.bytes();
        Some(report)
    }
}

impl Shared {
    /// For a module of this name.
    pub fn new(name: &str) -> Result<Shared> {
        let ready = eventfd::create()
            .map_err(|source| Error::System { what: "a descriptor for a module's reports".into(), source })?;
        let status = ModuleStatus { name: name.into(), ..ModuleStatus::default() };
        Ok(Shared { state: Mutex::new(Known { status, ..Known::default() }), changed: Condvar::new(), ready })
    }

    pub fn report(&self, report: Report) {
        let mut known = lock(&self.state);
        while (known.reports.len() == MAX_KEPT_REPORTS || known.bytes + report.bytes() > REPORT_BYTES)
            && known.next_report().is_some()
        {
            known.status.unread += 1;
            known.dropped += 1;
        }
        known.bytes += report.bytes();
        known.reports.push_back(report);
        eventfd::signal(self.ready.as_fd());
        self.changed.notify_all();
    }

    /// Waits, but not when the module is being removed; true: it is.
    pub fn pause(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        let mut known = lock(&self.state);
        while !known.stop {
            let Some(left) = until.checked_duration_since(Instant::now()) else { return false };
            known = self.changed.wait_timeout(known, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// An installed module. Dropping it removes the module.
pub struct Installed {
    pub(super) shared: Arc<Shared>,
    pub(super) orbit: Arc<Orbit>,
    pub(super) thread: Option<JoinHandle<()>>,
}

impl Installed {
    /// Its status.
    pub fn status(&self) -> ModuleStatus {
        lock(&self.shared.state).status.clone()
    }

    /// The next report, waiting up to `timeout` for one.
    pub fn report(&self, timeout: Duration) -> Option<Report> {
        let until = Instant::now() + timeout;
        let mut known = lock(&self.shared.state);
        loop {
            if known.dropped != 0 {
                return Some(Report::Dropped(std::mem::take(&mut known.dropped)));
            }
            if let Some(report) = known.next_report() {
                if known.reports.is_empty() {
                    eventfd::drain(self.shared.ready.as_fd());
                }
                return Some(report);
            }
            let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            known = self.shared.changed.wait_timeout(known, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Guards a program for this module only, through all its lives; see [`crate::Core::guard`].
    /// After an error it is guarded for none of them.
    pub fn guard(&self, pid: u32) -> Result<()> {
        lock(&self.shared.state).guard(pid)
    }

    /// No longer guards it for this module.
    pub fn unguard(&self, pid: u32) {
        let mut known = lock(&self.shared.state);
        known.guarded.retain(|guarded| *guarded != pid);
        for client in &known.clients {
            client.unguard(pid);
        }
    }

    /// Removes the module: its process is killed, in the middle of a call too, and its pins are
    /// released. Waits for the process to be gone, never for the module; and for a command at a pin
    /// that it asked for, if the core is at one.
    pub fn remove(self) {}
}

impl AsFd for Installed {
    /// A descriptor to poll, never to read: readable while a report waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.ready.as_fd()
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let clients = {
            let mut known = lock(&self.shared.state);
            known.stop = true;
            known.clients.clone()
        };
        self.shared.changed.notify_all();
        for client in clients {
            client.wake();
        }
        // The thread may wait for a call that does not end, or for a start; both end with the
        // orbit. One that is down already is as gone as one that was just ended.
        let _ = self.orbit.destroy();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        command::{Command, Reply},
        core::{Core, Counted, KernelSide, Subscription},
        error::PinError,
        event::Kind,
        filter::Filter,
        pin::{Pin, PinKind, Probe},
    };

    /// A kernel side, and its pin, that have no room for any process.
    struct Full;

    impl KernelSide for Full {
        fn took(&self, _slot: usize, _events: u64) {}
        fn counted(&self, _slot: usize) -> Counted {
            Counted::default()
        }
        fn list(
            &self,
            _pid: u32,
            _subscription: u64,
            _slot: usize,
            _follow: bool,
        ) -> std::result::Result<(), PinError> {
            Err(PinError::Refused("no room".into()))
        }
        fn unlist(&self, _pid: u32, _subscription: u64, _slot: usize) {}
    }

    impl Pin for Full {
        fn command(&mut self, _user: u64, _command: &Command) -> std::result::Result<Reply, PinError> {
            Err(PinError::NotMine)
        }
        fn subscribe(&mut self, subscription: &Arc<Subscription>) -> std::result::Result<(), PinError> {
            subscription.bind(Arc::new(Full), 0);
            Ok(())
        }
        fn unsubscribe(&mut self, _subscription: &Subscription) {}
        fn forget(&mut self, _user: u64) {}
    }

    const FULL: PinKind = PinKind {
        name: "P_FULL",
        about: "lists no process",
        facility: "",
        operations: &[],
        events: &[Kind::CallBegun],
        probe: &|_| Probe::Full,
        load: &|_| Ok(Box::new(Full)),
    };

    #[test]
    fn a_program_is_guarded_for_all_lives_or_none_and_once() {
        let core = Core::builder().pins([FULL]).build().expect("a core");
        let (old, new) = (Arc::new(core.client("old")), Arc::new(core.client("new")));
        let mut known = Known { clients: vec![old.clone(), new.clone()], ..Known::default() };
        let pid = std::process::id();
        let of = |client: &Client| client.newly_guarded(&mut 0).unwrap_or_default();
        known.guard(pid).expect("guarded");
        known.guard(pid).expect("guarded again");
        assert_eq!((known.guarded.as_slice(), of(&old), of(&new)), (&[pid][..], vec![pid], vec![pid]));
        known.clients.iter().for_each(|client| client.unguard(pid));
        known.guarded.clear();
        new.use_pin("P_FULL").expect("the pin");
        new.subscr_event("P_FULL", Kind::CallBegun, Filter::guarded()).expect("a subscription");
        let parent = std::os::unix::process::parent_id();
        known.guard(parent).expect_err("there is no room to list it");
        assert_eq!((known.guarded.as_slice(), of(&old), of(&new)), (&[][..], vec![], vec![]));
    }
}
