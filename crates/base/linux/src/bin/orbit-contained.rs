//! Runs a command as inside a container: as an ordinary user, under a model of Docker's seccomp
//! profile; or as on an older kernel.
//!
//! `orbit-contained [--user UID] COMMAND [ARGUMENT]...` replaces itself by the command, so its exit
//! status is the command's. Started by root it becomes user and group UID (65534 unless given) and
//! leaves all groups; started by an ordinary user it stays that user.
//! `orbit-contained --without NAME[,NAME]... COMMAND [ARGUMENT]...` stays the user it is, without
//! that profile, but with these system calls missing
//! ([`MISSABLE`](orbit_linux::seccomp::MISSABLE)). What it cannot do it says, and ends with 125.
#![deny(unsafe_op_in_unsafe_fn)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

const NOBODY: u32 = 65534;
const USAGE: &str = "usage: orbit-contained [--user UID | --without NAME[,NAME]...] COMMAND [ARGUMENT]...";

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1).peekable();
    let mut user = NOBODY;
    if args.peek().is_some_and(|a| a == "--user") {
        args.next();
        match args.next().and_then(|u| u.to_str()?.parse().ok()).filter(|&u| u != 0) {
            Some(u) => user = u,
            None => return fail("--user takes the number of an ordinary user"),
        }
    }
    let mut missing = None;
    if args.peek().is_some_and(|a| a == "--without") {
        args.next();
        missing = args.next();
        if missing.is_none() {
            return fail("--without takes names of system calls");
        }
    }
    if args.peek().is_some_and(|a| a == "--help" || a == "-h") {
        println!(
            "{USAGE}\n\nRuns a command as an ordinary user ({NOBODY} if root does not say which) under a model of \
             Docker's seccomp profile;\nwith --without as it is, but with these system calls missing."
        );
        return ExitCode::SUCCESS;
    }
    let Some(program) = args.next() else {
        return fail(USAGE);
    };
    let filtered = match missing {
        Some(names) => {
            let names = names.to_string_lossy();
            orbit_linux::seccomp::install_without(&names.split(',').collect::<Vec<_>>())
        }
        None => {
            if let Err(e) = become_user(user) {
                return fail(&format!("cannot become user {user}: {e}"));
            }
            orbit_linux::seccomp::install_docker_like()
        }
    };
    if let Err(e) = filtered {
        return fail(&format!("cannot install the seccomp filter: {e}"));
    }
    let e = Command::new(&program).args(args).exec();
    fail(&format!("cannot run {}: {e}", program.display()))
}

/// Gives up root, if it is root: groups first, while it may.
fn become_user(user: u32) -> io::Result<()> {
    // SAFETY: geteuid reads a number; the others take numbers and an empty list.
    unsafe {
        if libc::geteuid() != 0 {
            return Ok(());
        }
        if libc::setgroups(0, std::ptr::null()) != 0
            || libc::setresgid(user, user, user) != 0
            || libc::setresuid(user, user, user) != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn fail(why: &str) -> ExitCode {
    eprintln!("orbit-contained: {why}");
    ExitCode::from(125)
}
