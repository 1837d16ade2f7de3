//! Agents: processes that run what no member took. Forked from the host, they join the region, drop
//! the host's memory of it and its descriptors, and stay in the library's loop; a wild handler
//! there reaches neither host nor members.

use crate::error::{Error, Result};
use crate::member::{self, Local, Role};
use crate::region::Region;
use orbit_linux::process::{self, RawChild};
use orbit_linux::{descriptors, pidfd, rlimit};
use orbit_sandbox_lib::agent::{LONGEST_STRETCH_NS, Start};
use orbit_sandbox_lib::{abi, sys};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Which services an agent runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Those whose slot is congruent to `part` of `parts`.
    Of {
        /// Which part.
        part: u32,
        /// How many agents there are.
        parts: u32,
    },
    /// The one in this slot: the process is the service's thread, where its handler may wait.
    Only(u32),
    /// None: it puts back what services set when the host is gone.
    Restorer,
}

/// A running agent. Ends with its host, or when dropped.
#[derive(Debug)]
pub struct Agent {
    child: RawChild,
    /// The agent reads the end of this from its own end.
    life: Option<OwnedFd>,
    /// The processor it is bound to.
    cpu: usize,
}

impl Agent {
    /// Starts an agent on a processor; `priority` 0 makes an ordinary process. The doorbell makes
    /// it check its slots. Of the host's other descriptors it keeps these.
    ///
    /// # Errors
    /// `System` when the process cannot be made.
    pub fn start(
        region: &Region,
        cpu: usize,
        priority: i32,
        part: Part,
        doorbell: BorrowedFd<'_>,
        keeps: &[RawFd],
    ) -> Result<Agent> {
        let failed = |error: std::io::Error| Error::system("starting an agent", &error);
        let (here, there) = orbit_linux::socket::pair().map_err(failed)?;
        let (part, parts, only, restores) = match part {
            Part::Of { part, parts } => (part, parts, 0, 0),
            Part::Only(slot) => (0, 1, slot, 0),
            Part::Restorer => (0, 1, 0, 1),
        };
        let (cpu_number, life, doorbell) = (cpu as u32, there.as_raw_fd(), doorbell.as_raw_fd());
        let start = Start { cpu: cpu_number, priority, life, doorbell, parts, part, only, restores };
        // SAFETY: the child makes system calls only, in functions that neither allocate nor lock,
        // and does not return. An error in it makes a sentence, which allocates: a child that hangs
        // there is killed when its agent is dropped.
        match unsafe { process::raw_fork(0) }.map_err(failed)? {
            Some(child) => Ok(Agent { child, life: Some(here), cpu }),
            None => inside(region, &start, keeps),
        }
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        self.child.pid
    }

    /// The processor it is bound to.
    pub fn cpu(&self) -> usize {
        self.cpu
    }

    /// Kills it at once. Dropping it waits for its end.
    pub fn kill(&self) {
        if let Some(fd) = &self.child.pidfd {
            let _ = pidfd::send_signal(fd.as_fd(), libc::SIGKILL);
        }
    }

    /// Waits for its end, so long at most. Whether it has ended.
    pub fn wait(&self, most: std::time::Duration) -> bool {
        self.child.pidfd.as_ref().is_none_or(|fd| wait(fd.as_fd(), most.as_millis() as u64))
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.child.pidfd.as_ref().is_none_or(|fd| pidfd::has_ended(fd.as_fd()))
    }
}

/// The child's part.
fn inside(region: &Region, start: &Start, keeps: &[RawFd]) -> ! {
    let [public, protected, control] = region.descriptors();
    if start.restores == 0 {
        // Whatever its handler does, it ends with its host, and runs no longer than this.
        let real_time = rlimit::Resource::RealTime;
        let most = rlimit::get(0, real_time).map_or(rlimit::INFINITE, |(_, hard)| hard);
        let stretch = most.min(LONGEST_STRETCH_NS / 1000);
        if process::set_parent_death_signal(libc::SIGKILL).is_err()
            || rlimit::set(0, real_time, stretch, stretch).is_err()
        {
            process::end(1);
        }
    }
    let mut kept = [start.life; 5 + abi::FILES];
    let all = [public, protected, control, start.life, start.doorbell];
    for (to, from) in kept.iter_mut().zip(all.iter().chain(keeps)) {
        *to = *from;
    }
    process::close_all_but(&kept);
    if member::join(&mut Local, [public, protected, control], region.directory(), Role::Agent).is_err() {
        process::end(1);
    }
    for (address, length) in region.own_mappings() {
        // SAFETY: the host's mappings in this copy of its memory, which nothing here uses any more.
        unsafe { sys::call(libc::SYS_munmap as usize, [address, length, 0, 0, 0, 0]) };
    }
    for file in [public, protected, control] {
        // Nothing uses them any more.
        descriptors::close_number(file);
    }
    let _ = process::set_name(c"orbit-agent");
    // SAFETY: the region's library was loaded by this host, and `agent` is its loop, of this
    // signature; the process has joined, as that demands.
    unsafe {
        let enter: extern "C" fn(*const Start) -> ! =
            std::mem::transmute(orbit_sandbox_lib::abi::directory().library.agent as usize);
        enter(start)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It exits by itself. One that does not is killed.
        drop(self.life.take());
        let Some(fd) = &self.child.pidfd else { return };
        let ended = wait(fd.as_fd(), 2_000);
        if !ended {
            let _ = pidfd::send_signal(fd.as_fd(), libc::SIGKILL);
        }
        let _ = pidfd::wait(fd.as_fd(), false);
    }
}

/// Waits for the end of a process.
fn wait(fd: BorrowedFd<'_>, milliseconds: u64) -> bool {
    let mut polled = [libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    matches!(orbit_linux::poll::poll(&mut polled, Some(std::time::Duration::from_millis(milliseconds))), Ok(1))
}
