//! Servers that run natively or as guests, and the share of their calls that comes by signal.

use orbit_hijack::{Options, Session};
use orbit_linux::child::Exit;
use std::ffi::OsString;
use std::io;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// After this time a server's sites have been rewritten.
const SETTLED: Duration = Duration::from_secs(1);

/// What a figure of a server is made of.
pub struct Served<const KINDS: usize> {
    /// Requests a second, of each kind.
    pub rates: [f64; KINDS],
    /// Of all calls after the first second, the percentage that came by signal; 0 natively.
    pub by_signal: f64,
}

/// A program that runs.
pub enum Server {
    Native(Child),
    Guest {
        session: Box<Session>,
        began: Instant,
        /// Calls by signal, and all, when the first second was over.
        marked: (u64, u64),
    },
}

fn counts(session: &Session) -> (u64, u64) {
    let outcome = session.outcome();
    (outcome.traps, outcome.calls.values().sum())
}

impl Server {
    /// Starts a program without input and output.
    pub fn start(is_guest: bool, arguments: &[OsString], configure: impl FnOnce(&mut Command)) -> io::Result<Server> {
        let quiet = |command: &mut Command| {
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            configure(command);
        };
        if is_guest {
            let session = Session::start_with(&Options::default(), arguments, quiet)?;
            return Ok(Server::Guest { session: Box::new(session), began: Instant::now(), marked: (0, 0) });
        }
        let mut command = Command::new(&arguments[0]);
        command.args(&arguments[1..]);
        quiet(&mut command);
        command.spawn().map(Server::Native)
    }

    /// Waits until a guest has run for a second; calls count from here on.
    pub fn settle(&mut self) {
        if let Server::Guest { session, began, marked } = self {
            std::thread::sleep(SETTLED.saturating_sub(began.elapsed()));
            *marked = counts(session);
        }
    }

    /// Asks it to end if that was not done, waits, and returns the percentage of calls by signal
    /// since it settled.
    pub fn end(self, was_asked: bool) -> io::Result<f64> {
        let pid = match &self {
            Server::Native(child) => child.id(),
            Server::Guest { session, .. } => session.pid(),
        };
        if !was_asked {
            // A child that has not been reaped.
            orbit_linux::signals::send(pid as i32, libc::SIGTERM)?;
        }
        match self {
            Server::Native(mut child) => child.wait_for_exit().map(|_| 0.0),
            Server::Guest { mut session, marked, .. } => {
                session.follow(|_| Ok(()))?;
                let (traps, calls) = counts(&session);
                Ok(100.0 * (traps - marked.0) as f64 / (calls - marked.1).max(1) as f64)
            }
        }
    }
}
