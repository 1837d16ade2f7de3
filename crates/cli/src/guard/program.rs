//! The guarded program: starting it, handing signals on, its end.
//!
//! Promises: the program gets the guard's own descriptors, signal mask, ignored signals and limits as they were given to the
//! guard; a signal sent to the guard goes on to the program, one that the terminal sent to both does not go twice; the end of the
//! guard, however it comes, does not end the program.

use crate::given;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};

/// Signals that are handed on.
const FORWARDED: [i32; 7] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2, libc::SIGWINCH];

/// Signals that came for the guard, read from a descriptor.
pub struct Signals {
    fd: OwnedFd,
    /// The mask the guard was started with.
    before: libc::sigset_t,
}

impl Signals {
    /// From now on signals wait here. To be called before there are other threads.
    pub fn catch() -> io::Result<Signals> {
        given::keep_statuses();
        // SAFETY: a sigset is plain bits, filled by the calls below.
        let (mut set, mut before): (libc::sigset_t, libc::sigset_t) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: both sets are valid for the calls.
        let fd = unsafe {
            libc::sigemptyset(&raw mut set);
            for s in FORWARDED {
                libc::sigaddset(&raw mut set, s);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
            libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just made this descriptor for us.
        Ok(Signals { fd: unsafe { OwnedFd::from_raw_fd(fd) }, before })
    }

    /// Signals that came, but for those that `program` got by itself.
    ///
    /// What the kernel sends comes from the terminal, to a whole group: to the program too if that is in the guard's.
    pub fn take(&self, program: Option<i32>) -> Vec<i32> {
        const SI_KERNEL: i32 = 0x80;
        let mut out = Vec::new();
        loop {
            // SAFETY: all-zero bytes are a valid siginfo.
            let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
            let size = size_of::<libc::signalfd_siginfo>();
            // SAFETY: the struct is as large as said.
            let n = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut info).cast(), size) };
            if n != size as isize {
                return out;
            }
            if info.ssi_code != SI_KERNEL || !program.is_some_and(in_own_group) {
                out.push(info.ssi_signo as i32);
            }
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether the process, a child not reaped yet, is in the guard's own process group.
fn in_own_group(pid: i32) -> bool {
    // SAFETY: no pointers are passed.
    unsafe { libc::getpgid(pid) == libc::getpgrp() }
}

/// Raises the limit of open files, of which every watched thread takes one; answers what it was.
pub fn raise_limit() -> libc::rlimit {
    let mut was = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `was` is a valid place for the answer.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut was) } == 0 {
        let more = libc::rlimit { rlim_cur: was.rlim_max, rlim_max: was.rlim_max };
        // SAFETY: a limit that cannot be raised stays as it was: then fewer descriptors are kept open.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const more) };
    }
    was
}

/// Starts the program.
pub fn start(program: &[OsString], signals: &Signals, limit: libc::rlimit) -> io::Result<Child> {
    let (name, args) = program.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(name);
    as_given(command.args(args), signals, limit);
    command.spawn()
}

/// Gives the command what the guard was given, in place of what the guard has made of it.
pub fn as_given(command: &mut Command, signals: &Signals, limit: libc::rlimit) {
    let mask = signals.before;
    given::pass_on(command);
    // SAFETY: only async-signal-safe calls, on values copied beforehand.
    unsafe {
        command.pre_exec(move || {
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
            Ok(())
        });
    }
}

/// The exit status a shell would give: the program's own, or 128 and the signal that ended it.
pub fn status(of: std::process::ExitStatus) -> u8 {
    match (of.code(), of.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128u8.wrapping_add(signal as u8),
        (None, None) => 125,
    }
}

/// The exit status for a program that could not be started, as `env` has it.
pub fn not_started(e: &io::Error) -> u8 {
    if e.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}
