//! How main hands replicas to an orbit: many in one message, and never waiting for the orbit, which
//! reads them when it begins the call that names them. Everything here runs under the orbit's lock.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use orbit_linux::socket;

use crate::area::{Area, fault};
use crate::core::{Core, Given, Inner};
use crate::error::{Error, Kind, Result};
use crate::own::Own;
use crate::queue::Obstacle;
use crate::replica::Replica;
use crate::wire::{BATCH, Passed, bytes_of};

/// How long an orbit that is just starting may take to read replicas for which its socket has no
/// room.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(1);

impl Inner {
    /// Makes the replicas of those of the areas that the orbit does not have yet, and hands them
    /// over. Those for which there is no room are dropped: the next attempt makes them again.
    /// `may_write`: no calls have been taken back for this one.
    pub fn attach_new(&self, core: &mut Core, areas: &[&Area], may_write: bool) -> std::result::Result<(), Obstacle> {
        let mut made: Vec<Replica> = Vec::new();
        for (at, area) in areas.iter().enumerate() {
            if !core.replicas.iter().chain(&made).any(|r| r.area.id() == area.id()) {
                made.push(self.replica(core, area)?);
            }
            if made.is_empty() || (made.len() < BATCH && at + 1 < areas.len()) {
                continue;
            }
            if let Some(process) = core.life.process() {
                match send(&process.socket, &made) {
                    Ok(()) => core.queue.note_attached(made.len() as u32),
                    // What becomes of the call is decided at the end of the process; its next one
                    // is given all replicas.
                    Err(e) if matches!(e.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)) => {}
                    Err(e) if is_full(&e) => {
                        let there = core.queue.attached();
                        if !core.queue.is_empty() || !may_write {
                            return Err(Obstacle::NoRoom(format!("{there} new areas wait to be mapped by the orbit")));
                        }
                        let more = made.len() + areas.len() - at - 1;
                        let why = format!(
                            "orbit \"{}\" is given up to {there} new areas before one call ({e}), and this call \
                             names up to {more} \
                             more: name them in later calls",
                            self.options.name
                        );
                        return Err(Error::new(Kind::Limit, why).into());
                    }
                    Err(e) => return Err(Error::system("handing replicas to the orbit", e).into()),
                }
            }
            core.replicas.append(&mut made);
        }
        Ok(())
    }

    fn replica(&self, core: &Core, area: &Area) -> Result<Replica> {
        let first_call = core.queue.next_number();
        match Replica::make(area, first_call) {
            Err(e) if e.kind() == Kind::Limit && self.runtime.release_spares() => Replica::make(area, first_call),
            made => made,
        }
    }
}

/// Hands passed descriptors and replicas to a process that reads them now, for it has just received
/// its identity.
pub(crate) fn hand_all_over(socket: &Own, passed: &[Arc<Given>], replicas: &[Replica]) -> Result<()> {
    for batch in passed.chunks(BATCH) {
        patiently("handing an orbit the descriptors that it is passed", || pass(socket, batch))?;
    }
    for batch in replicas.chunks(BATCH) {
        patiently("handing an orbit its replicas", || send(socket, batch))?;
    }
    Ok(())
}

/// Sends again while there is no room.
fn patiently(doing: &str, send: impl Fn() -> io::Result<()>) -> Result<()> {
    let until = Instant::now() + ATTACH_TIMEOUT;
    while let Err(e) = send() {
        if !is_full(&e) || Instant::now() >= until {
            return Err(Error::system(doing, e));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// One message; does not wait.
fn pass(socket: &Own, passed: &[Arc<Given>]) -> io::Result<()> {
    let message = |one: &Arc<Given>| Passed { number: one.number as u32, inherited: u32::from(one.inherited) };
    let messages: Vec<Passed> = passed.iter().map(message).collect();
    let bytes: Vec<u8> = messages.iter().flat_map(bytes_of).copied().collect();
    let fds = passed.iter().map(|one| one.fd.fd()).collect::<io::Result<Vec<_>>>()?;
    socket::send_now(socket.fd()?, &bytes, &fds).map(|_| ())
}

/// One message; does not wait.
fn send(socket: &Own, replicas: &[Replica]) -> io::Result<()> {
    let messages: Vec<_> = replicas.iter().map(Replica::message).collect();
    let bytes: Vec<u8> = messages.iter().flat_map(bytes_of).copied().collect();
    let fds = replicas.iter().map(|replica| replica.fd.fd()).collect::<io::Result<Vec<_>>>()?;
    fault::check().and_then(|()| socket::send_now(socket.fd()?, &bytes, &fds)).map(|_| ())
}

/// Whether there is room again once the orbit has read what is on its way.
fn is_full(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::ETOOMANYREFS))
}
