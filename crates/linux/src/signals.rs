//! Signals: blocking them for a while in one thread, ignoring them, sending them, raising their default action.
//!
//! Handlers are not this file's: whoever installs one owns what it may do.

use crate::check_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Whether the process ignores a signal. Async-signal-safe.
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: all-zero bytes are a valid sigaction, which the call fills; nothing is changed. Numbers that libc keeps to itself
    // are rejected and leave zeros, which is SIG_DFL.
    let action = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action);
        action
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// Has the process ignore a signal. Nothing happens for one that cannot be ignored. Async-signal-safe.
pub fn ignore(signal: i32) {
    // SAFETY: no handler is given.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Gives a signal its default action. Async-signal-safe.
pub fn set_default(signal: i32) {
    // SAFETY: no handler is given.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Sends a signal to a process by its number; 0 sends none and only checks that it could be sent. Async-signal-safe.
///
/// The number may be another process' by now: prefer [`crate::pidfd::send_signal`].
///
/// # Errors
/// `ESRCH`, `EPERM`; `InvalidInput` for a number that names no single process (0 or below).
pub fn send(pid: i32, signal: i32) -> io::Result<()> {
    if pid <= 0 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: no pointers are passed.
    check_int(unsafe { libc::kill(pid, signal) }).map(|_| ())
}

/// Sends a signal to one thread of a process. Async-signal-safe.
///
/// # Errors
/// `ESRCH`, `EPERM`, `EINVAL` for a number that is no signal.
pub fn send_to_thread(pid: i32, tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: numbers only.
    crate::check(unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) }).map(|_| ())
}

/// Sends one thread of a process a signal with a value, which its handler finds in `si_value` (`SI_QUEUE`).
///
/// The numbers may be another thread's by now: check before that it is the one that is meant.
///
/// # Errors
/// `ESRCH`, `EPERM`, `EAGAIN` where too many signals wait; `InvalidInput` for numbers of 0 or below.
pub fn queue_to_thread(pid: i32, tid: i32, signal: i32, value: usize) -> io::Result<()> {
    if pid <= 0 || tid <= 0 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    /// The head of a `siginfo_t` of that code, and the rest of its 128 bytes.
    #[repr(C)]
    struct Info {
        head: [i32; 4],
        sender: [u32; 2],
        value: usize,
        rest: [u64; 12],
    }
    const _: () = assert!(size_of::<Info>() == size_of::<libc::siginfo_t>());
    // SAFETY: no pointers are passed.
    let sender = unsafe { [libc::getpid() as u32, libc::getuid()] };
    let info = Info { head: [signal, 0, libc::SI_QUEUE, 0], sender, value, rest: [0; 12] };
    // SAFETY: the kernel reads a siginfo_t, whose size and form `info` has.
    let result = unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, &raw const info) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends the calling thread a signal. Returns once it has been handled, if it is not blocked. Async-signal-safe.
pub fn raise(signal: i32) {
    // SAFETY: no pointers are passed.
    unsafe { libc::raise(signal) };
}

/// A set of signals.
#[derive(Clone, Copy)]
pub struct Set(libc::sigset_t);

impl Set {
    /// These; numbers that are no signals are left out. Async-signal-safe.
    pub fn of(signals: impl IntoIterator<Item = i32>) -> Set {
        // SAFETY: a set is plain bits, which the first call fills and the others change.
        let set = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in signals {
                libc::sigaddset(&raw mut set, signal);
            }
            set
        };
        Set(set)
    }

    /// Blocks these in the calling thread, beside those that it blocks already; returns the former mask. Async-signal-safe.
    pub fn block(&self) -> Set {
        self.change(libc::SIG_BLOCK)
    }

    /// Makes this the calling thread's mask; returns the former one. Async-signal-safe.
    pub fn set_mask(&self) -> Set {
        self.change(libc::SIG_SETMASK)
    }

    fn change(&self, how: libc::c_int) -> Set {
        let mut before = Set::of([]);
        // SAFETY: both sets are live for the call.
        unsafe { libc::pthread_sigmask(how, &raw const self.0, &raw mut before.0) };
        before
    }

    /// Makes a descriptor that is readable while one of these waits for the process or the calling thread, close-on-exec. They
    /// must be blocked, else their action comes first. `blocks`: whether reading waits for one. Async-signal-safe.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn descriptor(&self, blocks: bool) -> io::Result<OwnedFd> {
        let flags = libc::SFD_CLOEXEC | if blocks { 0 } else { libc::SFD_NONBLOCK };
        // SAFETY: the set is live for the call.
        let fd = check_int(unsafe { libc::signalfd(-1, &raw const self.0, flags) })?;
        // SAFETY: the kernel just made this descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Takes the next waiting signal from a [`Set::descriptor`]. Async-signal-safe.
///
/// # Errors
/// `EAGAIN` where none waits and the descriptor does not block; `EINTR` after the process was stopped and continued.
pub fn next(descriptor: BorrowedFd<'_>) -> io::Result<libc::signalfd_siginfo> {
    // SAFETY: all-zero bytes are a valid value of this plain struct.
    let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
    // SAFETY: at most the size of the live struct is written to it; a signalfd gives whole ones.
    let n = unsafe { libc::read(descriptor.as_raw_fd(), (&raw mut info).cast(), size_of_val(&info)) };
    crate::check(n as libc::c_long).map(|_| info)
}

/// All signals that can be blocked are, in the thread that made it, while it lives; then the thread has the mask it had.
///
/// Threads and processes that begin meanwhile begin with all blocked. Must be dropped by the thread that made it, which the type sees to, and
/// not in another order than that of making, where there are several. Async-signal-safe.
#[derive(Debug)]
pub struct Blocked {
    before: libc::sigset_t,
    /// A mask is a thread's: not to be sent to another.
    _here: std::marker::PhantomData<*const ()>,
}

impl Blocked {
    /// Blocks them.
    pub fn all() -> Blocked {
        // SAFETY: sets of signals are plain bits, for which zeros are a value; both outlive the calls.
        let before = unsafe {
            let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            before
        };
        Blocked { before, _here: std::marker::PhantomData }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set was filled by `all`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_blocked_signal_comes_by_its_descriptor() {
        let set = Set::of([libc::SIGUSR2, 0, 4711]);
        let before = set.block();
        let descriptor = set.descriptor(false).expect("a descriptor");
        assert_eq!(next(descriptor.as_fd()).map(|_| ()).map_err(|e| e.kind()), Err(io::ErrorKind::WouldBlock));
        raise(libc::SIGUSR2);
        assert_eq!(next(descriptor.as_fd()).expect("it waits").ssi_signo, libc::SIGUSR2 as u32);
        before.set_mask();
        assert!(!blocked(libc::SIGUSR2));
    }

    #[test]
    fn ignored_and_default() {
        assert!(!is_ignored(libc::SIGWINCH));
        ignore(libc::SIGWINCH);
        assert!(is_ignored(libc::SIGWINCH));
        set_default(libc::SIGWINCH);
        assert!(!is_ignored(libc::SIGWINCH) && !is_ignored(libc::SIGKILL));
        assert!(send(std::process::id() as i32, 0).is_ok());
        assert_eq!(send(0, 0).map_err(|e| e.kind()), Err(io::ErrorKind::InvalidInput));
        assert_eq!(send(i32::MAX, 0).map_err(|e| e.raw_os_error()), Err(Some(libc::ESRCH)));
    }

    fn blocked(signal: i32) -> bool {
        // SAFETY: a set on the stack, which the call fills.
        unsafe {
            let mut now: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &raw mut now);
            libc::sigismember(&raw const now, signal) == 1
        }
    }

    #[test]
    fn as_it_was_afterwards() {
        let none = [libc::SIGSEGV, libc::SIGTERM, libc::SIGRTMAX()].map(blocked);
        let outer = Blocked::all();
        {
            let _inner = Blocked::all();
            assert!(blocked(libc::SIGSEGV) && blocked(libc::SIGRTMAX()));
        }
        assert!(blocked(libc::SIGTERM), "the outer one still holds");
        drop(outer);
        assert_eq!([libc::SIGSEGV, libc::SIGTERM, libc::SIGRTMAX()].map(blocked), none);
    }
}
