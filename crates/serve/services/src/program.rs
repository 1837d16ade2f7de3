//! The side of a program that lets services set something of its own: how large its cache may be,
//! how long a connection may be idle. It publishes the attribute, waits for values in a thread of
//! its own, and reports what it has then.
//!
//! The C face of the same is `orbit_program.h`.

use crate::error::{Error, Kind, Result};
use crate::managers;
use crate::member::Invitation;
use orbit_linux::map::Mapping;
use orbit_linux::{futex, pidfd};
use orbit_sandbox_lib::abi;
use orbit_sandbox_lib::attribute;
use orbit_sandbox_lib::published::{self, Published, Table};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

impl Invitation {
    /// Asks the host that listens at `socket` for its invitation: `orbit service run` is such a
    /// host.
    ///
    /// # Errors
    /// `NotFound` when nobody listens there, `Denied` for another user's host, `Invalid` for an
    /// answer that is none.
    pub fn ask(socket: &Path) -> Result<Invitation> {
        let failed = |error: std::io::Error| {
            let text = format!("host of services at {}: {error}", socket.display());
            match error.kind() {
                std::io::ErrorKind::PermissionDenied => Error::new(Kind::Denied, text),
                _ => Error::new(Kind::NotFound, text),
            }
        };
        let mut stream = UnixStream::connect(socket).map_err(failed)?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).map_err(failed)?;
        stream.write_all(b"{\"command\":\"invite\"}\n").map_err(failed)?;
        let mut answer = String::new();
        BufReader::new(stream.take(4096)).read_line(&mut answer).map_err(failed)?;
        let invitation = answer.split('"').find_map(Invitation::parse);
        invitation.ok_or_else(|| {
            Error::new(Kind::Invalid, format!("{} does not answer with an invitation: {answer:?}", socket.display()))
        })
    }
}

/// A program's connection to a host. Any thread may use it.
#[derive(Debug)]
pub struct Program {
    control: Mapping,
    host: OwnedFd,
}

impl Program {
    /// Connects to the host that an invitation is of. The program need not be a member.
    ///
    /// # Errors
    /// `System` when the host is gone or another user's.
    pub fn connect(invitation: &Invitation) -> Result<Arc<Program>> {
        let (files, _) = invitation.open()?;
        let host = pidfd::open(invitation.host).map_err(|error| Error::system("the host of services", &error))?;
        let control = Mapping::shared(files[2].as_fd(), abi::CONTROL_LEN, true, false);
        let control = control.map_err(|error| Error::system("mapping the control words", &error))?;
        Ok(Arc::new(Program { control, host }))
    }

    /// Whether the host is there. When it is gone, what services set comes back through
    /// [`Attribute::wait`] first.
    pub fn has_host(&self) -> bool {
        !pidfd::has_ended(self.host.as_fd())
    }

    fn table(&self) -> &Table {
        // SAFETY: the first slot of the mapping, large enough for a table, all atomics.
        unsafe { &*self.control.as_ptr().cast::<Table>() }
    }

    /// Publishes an attribute of the calling process: its class, as `memory:cache`, the range it
    /// accepts, and its value now.
    ///
    /// # Errors
    /// `NotFound` for a class that programs cannot publish, `Full` when all places of the region
    /// are taken.
    pub fn publish(self: &Arc<Program>, class: &str, range: (i64, i64), present: i64) -> Result<Attribute> {
        let found = managers::classes().find(|found| found.name == class && attribute::is_published(found.id));
        let class = found.ok_or_else(|| {
            let names: Vec<_> = managers::classes().filter(|c| attribute::is_published(c.id)).map(|c| c.name).collect();
            Error::new(Kind::NotFound, format!("programs cannot publish {class:?}, but {}", names.join(", ")))
        })?;
        let process = std::process::id() as i32;
        let place = published::publish(self.table(), class.id, process, range, present).ok_or_else(|| {
            let text =
                format!("{} attributes are published in this region, as many as it has room for", published::PUBLISHED);
            Error::new(Kind::Full, text)
        })?;
        let seen = place.changes.load(Acquire);
        Ok(Attribute { program: self.clone(), class: class.id, process, seen })
    }
}

/// A published attribute; withdrawn when it is dropped. One thread waits, any may report.
#[derive(Debug)]
pub struct Attribute {
    program: Arc<Program>,
    class: u32,
    process: i32,
    seen: u32,
}

impl Attribute {
    fn place(&self) -> Option<&Published> {
        published::find(self.program.table(), self.class, self.process)
    }

    /// Waits until a service asks for a value, at most this long. Answers the value.
    pub fn wait(&mut self, timeout: Duration) -> Option<i64> {
        let place = self.place()?;
        if place.changes.load(Acquire) == self.seen {
            // A word that changed meanwhile and a time that is over are both checked below.
            let _ = futex::wait(&place.changes, self.seen, Some(timeout));
        }
        let changes = place.changes.load(Acquire);
        let value = (changes != self.seen).then(|| place.wanted.load(Acquire));
        self.seen = changes;
        value
    }

    /// Says what the program has now.
    pub fn report(&self, present: i64) {
        if let Some(place) = self.place() {
            place.present.store(present, Release);
            place.applied.store(self.seen, Relaxed);
        }
    }
}

impl Drop for Attribute {
    fn drop(&mut self) {
        if let Some(place) = self.place() {
            place.withdraw();
        }
    }
}
