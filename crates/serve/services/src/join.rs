//! Joining from outside: a running program, or one that is about to start, becomes a member without
//! knowing of it. Stands on `graft`, which stops it for about a millisecond.

use crate::error::{Error, Kind, Result};
use crate::host::Host;
use crate::member::{self, Invitation, Role, Steps};
use graft::{Process, Stopped};
use orbit_sandbox_lib::abi;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

impl From<graft::Error> for Error {
    fn from(error: graft::Error) -> Error {
        let kind = match &error {
            graft::Error::Gone { .. } => Kind::NotFound,
            graft::Error::NotPermitted { .. } | graft::Error::Traced { .. } => Kind::Denied,
            graft::Error::Unsuitable { .. } | graft::Error::Filtered { .. } => Kind::Unsupported,
            other => Kind::System(other.errno()),
        };
        Error::new(kind, error.to_string())
    }
}

/// A stopped program.
struct Remote<'s, 'p>(&'s mut Stopped<'p>);

impl Steps for Remote<'_, '_> {
    fn call(&mut self, number: libc::c_long, arguments: [usize; 6]) -> io::Result<isize> {
        match self.0.call(number, arguments.map(|argument| argument as u64)) {
            Ok(result) => Ok(result as isize),
            Err(graft::Error::Call { errno, .. }) => Ok(-(errno as isize)),
            Err(error) => Err(io::Error::other(error.to_string())),
        }
    }

    fn write(&mut self, address: usize, bytes: &[u8]) -> io::Result<()> {
        self.0.write(address as u64, bytes).map_err(|error| io::Error::other(error.to_string()))
    }

    fn read(&mut self, address: usize, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read(address as u64, bytes).map_err(|error| io::Error::other(error.to_string()))
    }
}

/// Whether a thread of the program is in an upcall, or in a call of a service, which a signal's
/// handler may have interrupted.
fn is_inside(stopped: &mut Stopped<'_>) -> Result<bool> {
    let mut calls = [0u8; 4];
    let at = (abi::PRIVATE + std::mem::offset_of!(abi::Private, inside)) as u64;
    // One that has no private part is in none.
    if stopped.read(at, &mut calls).is_ok() && calls != [0; 4] {
        return Ok(true);
    }
    for tid in stopped.tids() {
        let at = stopped.thread(tid)?.general()?.rip as usize;
        if (abi::BASE..abi::END).contains(&at) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Maps the region into a stopped program. Descriptors that it needs meanwhile are closed when it
/// is released.
fn enter(stopped: &mut Stopped<'_>, host: &Host) -> Result<()> {
    let mut files = [0; 3];
    for (to, file) in files.iter_mut().zip(host.region().descriptors()) {
        // SAFETY: a descriptor of the region, which lives as long as the host, that is, longer than
        // this call.
        *to = stopped.send(unsafe { BorrowedFd::borrow_raw(file) })?;
    }
    member::join(&mut Remote(stopped), files, host.region().directory(), Role::Member)
}

/// Starts a program as a member of another process' region: it has joined before its first
/// instruction. `joined` runs while it stands there, with its process: it lets the host add the
/// member.
///
/// # Errors
/// As for [`Invitation::accept`] and [`Host::launch`]; those of `joined`: then the program is
/// killed.
pub fn launch(
    invitation: &Invitation,
    command: Command,
    joined: impl FnOnce(i32) -> Result<()> + Send,
) -> Result<Child> {
    let (files, first) = invitation.open()?;
    let (child, ()) = graft::launch(command, |stopped| -> Result<()> {
        let mut theirs = [0; 3];
        for (to, file) in theirs.iter_mut().zip(&files) {
            *to = stopped.send(file.as_fd())?;
        }
        member::join(&mut Remote(stopped), theirs, first.directory(), Role::Member)?;
        joined(stopped.pid())
    })?;
    Ok(child)
}

impl Host {
    /// Makes a running program a member. Answers how long it was stopped.
    ///
    /// # Errors
    /// `NotFound` when it is gone, `Denied` when it may not be entered (another user's, or it is
    /// being debugged), `Unsupported` for programs that cannot be entered, `Invalid` when the
    /// region's addresses are taken there: it is a member already.
    pub fn join(&mut self, process: i32) -> Result<Duration> {
        let target = Process::find(process)?;
        if member::has_own_filter(process) {
            let text = format!(
                "process {process} has a seccomp filter of its own, which may kill it for a call that an upcall makes \
                 (mprotect, timer_create, sched_setscheduler): agents take its events without it"
            );
            return Err(Error::new(Kind::Unsupported, text));
        }
        target.while_stopped(|stopped| {
            if !is_inside(stopped)? {
                let pid = stopped.pid();
                let mut memory = fs::File::open(format!("/proc/{pid}/mem")).ok();
                let is_member = self.members().any(|member| member == process);
                member::leave_stale(&mut Remote(stopped), pid, !is_member, |at, to| match &mut memory {
                    Some(memory) => memory.read_exact_at(to, at as u64),
                    None => Err(io::Error::from_raw_os_error(libc::EACCES)),
                })?;
            }
            enter(stopped, self)?;
            self.add_member(process)?;
            Ok(stopped.stopped_for())
        })
    }

    /// Starts a program as a member: it has joined before its first instruction.
    ///
    /// # Errors
    /// As for [`Host::join`]; `System` when it cannot be started.
    pub fn launch(&mut self, command: Command) -> Result<Child> {
        let (child, ()) = graft::launch(command, |stopped| {
            enter(stopped, self)?;
            self.add_member(stopped.pid())
        })?;
        Ok(child)
    }

    /// Takes the region out of a member: its handlers are what they were, nothing of the region is
    /// left there. One that fails leaves it a member, so that it can be repeated, also where it was
    /// cut short.
    ///
    /// # Errors
    /// As for [`Host::join`]; `System` with `EBUSY` when it is in an upcall for a whole second.
    pub fn leave(&mut self, process: i32) -> Result<()> {
        self.pause_upcalls(process);
        let left = self.take_region_out(process);
        match &left {
            // One that is gone has left as well.
            Ok(()) => self.remove_member(process),
            Err(error) if error.kind() == Kind::NotFound => self.remove_member(process),
            // Upcalls go on where all of the region is there still; else agents take its events.
            Err(_) => drop(self.add_member(process)),
        }
        left
    }

    fn take_region_out(&self, process: i32) -> Result<()> {
        let target = Process::find(process)?;
        let began = Instant::now();
        let signals = member::signals(self.region().directory());
        loop {
            let has_left = target.while_stopped(|stopped| -> Result<bool> {
                if is_inside(stopped)? {
                    return Ok(false);
                }
                if stopped.mappings()?.iter().any(|mapping| mapping.start == abi::PRIVATE as u64) {
                    member::leave(&mut Remote(stopped), signals)?;
                }
                Ok(true)
            })?;
            if has_left {
                return Ok(());
            }
            if began.elapsed() > Duration::from_secs(1) {
                let busy = io::Error::from_raw_os_error(libc::EBUSY);
                return Err(Error::system(
                    format!("process {process} does not come out of an upcall or a call of a service"),
                    &busy,
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
