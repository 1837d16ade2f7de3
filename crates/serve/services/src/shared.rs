//! What threads of the host share of a region: the control words and the agents' doorbells. Posting
//! an event is all they do with them; any thread may, without a lock.

use crate::error::{Error, Result};
use crate::region::Region;
use orbit_linux::eventfd;
use orbit_linux::map::Mapping;
use orbit_sandbox_lib::abi::{self, Control};
use orbit_sandbox_lib::published::Table;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Shared {
    control: Mapping,
    doorbells: Vec<OwnedFd>,
}

impl Shared {
    /// A mapping of its own, and a doorbell for each of so many agents.
    pub(crate) fn new(region: &Region, agents: usize) -> Result<Shared> {
        let failed = |error: std::io::Error| Error::system("mapping the control words", &error);
        let control = Mapping::shared(region.control_file(), abi::CONTROL_LEN, true, true).map_err(failed)?;
        let doorbells = (0..agents).map(|_| eventfd::create()).collect::<std::io::Result<Vec<_>>>().map_err(failed)?;
        Ok(Shared { control, doorbells })
    }

    /// The control words of a slot. Any member may write them at any time.
    pub(crate) fn control(&self, slot: usize) -> &Control {
        let at = slot % abi::SLOTS * abi::CONTROL_SLOT;
        // SAFETY: inside the mapping; the structure is all atomics.
        unsafe { &*self.control.as_ptr().add(at).cast::<Control>() }
    }

    /// What was set through the grant at this place of the ledger.
    pub(crate) fn set(&self, entry: usize) -> &abi::Set {
        let at = abi::LIBRARY * abi::CONTROL_SLOT + entry % abi::LEDGER * size_of::<abi::Set>();
        // SAFETY: inside the mapping; the structure is an atomic.
        unsafe { &*self.control.as_ptr().add(at).cast::<abi::Set>() }
    }

    /// What programs publish. Any member may write it at any time.
    pub(crate) fn table(&self) -> &Table {
        // SAFETY: the first slot of the mapping, large enough for a table, all atomics.
        unsafe { &*self.control.as_ptr().cast::<Table>() }
    }

    /// Wakes all agents.
    pub(crate) fn ring(&self) {
        self.doorbells.iter().for_each(|doorbell| eventfd::signal(doorbell.as_fd()));
    }

    /// The doorbell of an agent.
    pub(crate) fn doorbell(&self, agent: usize) -> BorrowedFd<'_> {
        self.doorbells[agent % self.doorbells.len()].as_fd()
    }

    /// Posts an event to a slot. False when its queue is full: the event is counted as lost.
    pub(crate) fn post(&self, slot: usize, kind: u32, value: u64) -> bool {
        let control = self.control(slot);
        let is_queued = control.queue.put(kind, value);
        control.wake.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        orbit_sandbox_lib::sys::wake(&control.wake);
        self.ring();
        is_queued
    }
}
