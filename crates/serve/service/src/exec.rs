//! `orbit service exec`: starts a program as a member, passes requests to end on to it, and exits
//! as it does.

use crate::protocol::{Reply, Request};
use crate::{ask, said};
use orbit_console::out::{Done, Failure};
use orbit_linux::child::Exit;
use orbit_linux::{pidfd, poll, signals};
use orbit_services::{Error, Invitation, Kind, join};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode};

/// What is passed on to the program. A terminal sends its own to both.
const PASSED: [i32; 7] =
    [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2, libc::SIGWINCH];

/// Starts the program and waits for its end.
pub fn run(socket: &Path, command: &[String]) -> Done {
    let Reply::Done(text) = ask(socket, &Request::Invite)? else {
        return Err(Failure::text("the host did not answer with an invitation"));
    };
    let invitation = Invitation::parse(&text).ok_or_else(|| Failure::text(format!("{text:?} is no invitation")))?;
    let passed = signals::Set::of(PASSED);
    // Before the program is there: one that comes while it starts waits for it.
    let before = passed.block();
    let requests = passed.descriptor(false)?;
    let mut program = Command::new(&command[0]);
    program.args(&command[1..]);
    // SAFETY: the closure makes one system call.
    unsafe {
        program.pre_exec(move || {
            before.set_mask();
            Ok(())
        });
    }
    let joined = |pid: i32| {
        let refused = |error: Failure| Error::new(Kind::Invalid, error.to_string());
        ask(socket, &Request::Add { pid }).map(drop).map_err(refused)
    };
    let mut child = join::launch(&invitation, program, joined).map_err(said)?;
    let life = pidfd::open(child.id() as i32)?;
    let status = loop {
        // Before the wait: what came while the program started is passed on at once.
        while let Ok(request) = signals::next(requests.as_fd()) {
            let is_the_terminals = request.ssi_code == libc::SI_KERNEL;
            if !is_the_terminals {
                // Fails only for a program that has ended, which is seen below.
                let _ = pidfd::send_signal(life.as_fd(), request.ssi_signo as i32);
            }
        }
        if let Some(status) = child.exited()? {
            break status;
        }
        let of = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut polled = [of(life.as_raw_fd()), of(requests.as_raw_fd())];
        // One that is interrupted is made again.
        let _ = poll::poll(&mut polled, None);
    };
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ok(ExitCode::from(code as u8))
}
