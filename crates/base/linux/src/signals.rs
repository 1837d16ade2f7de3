//! Signals: blocking them for a while in one thread, ignoring them, sending them, raising their
//! default action, and the actions and stacks of handlers. What a handler may do is its owner's
//! concern.

use crate::check_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Whether the process ignores a signal. Async-signal-safe.
pub fn is_ignored(signal: i32) -> bool {
    Action::of(signal).is_ok_and(|action| action.address() == libc::SIG_IGN)
}

/// Has the process ignore a signal. Nothing happens for one that cannot be ignored.
/// Async-signal-safe.
pub fn ignore(signal: i32) {
    // SAFETY: no handler is given.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Gives a signal its default action. Async-signal-safe.
pub fn set_default(signal: i32) {
    // SAFETY: no handler is given.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Dies of a signal by its default action, as another process has, so that a parent sees the same
/// end. Leaves no core. Returns where the signal does not kill: the first process of a namespace,
/// or a signal with another default.
pub fn die_of(signal: i32) {
    // A core's helper program runs whatever the limit is; it does not for what is not dumpable.
    // SAFETY: numbers only.
    let is_without_core = unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) } == 0;
    if !is_without_core {
        return;
    }
    set_default(signal);
    Set::of([signal]).unblock();
    // SAFETY: a number only. It goes to this thread, which does not block it.
    unsafe { libc::raise(signal) };
}

/// Sends a signal to a process by its number; 0 sends none and only checks that it could be sent.
/// Async-signal-safe.
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

/// Sends a signal to all processes of a group by its number. Async-signal-safe.
///
/// # Errors
/// `ESRCH` where the group has no process, `EPERM`; `InvalidInput` for a number that names no group
/// (1 or below).
pub fn send_to_group(group: i32, signal: i32) -> io::Result<()> {
    if group <= 1 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: no pointers are passed.
    check_int(unsafe { libc::kill(-group, signal) }).map(|_| ())
}

/// Sends a signal to one thread of a process. Async-signal-safe.
///
/// # Errors
/// `ESRCH`, `EPERM`, `EINVAL` for a number that is no signal.
pub fn send_to_thread(pid: i32, tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: numbers only.
    crate::check(unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) }).map(|_| ())
}

/// Sends one thread of a process a signal with a value, which its handler finds in `si_value`
/// (`SI_QUEUE`).
///
/// The numbers may be another thread's by now: check before that it is the one that is meant.
///
/// # Errors
/// `ESRCH`, `EPERM`, `EAGAIN` where too many signals wait; `InvalidInput` for numbers of 0 or
/// below.
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

/// Sends the calling thread a signal. Returns once it has been handled, if it is not blocked.
/// Async-signal-safe.
pub fn raise(signal: i32) {
    // SAFETY: no pointers are passed.
    unsafe { libc::raise(signal) };
}

/// What the process does on a signal, as `sigaction(2)` has it.
#[derive(Clone, Copy)]
pub struct Action(libc::sigaction);

impl Action {
    /// The default action of the signal.
    pub const fn default_action() -> Action {
        // SAFETY: all-zero bytes are a valid sigaction: SIG_DFL, no flags, an empty mask.
        Action(unsafe { std::mem::zeroed() })
    }

    /// A handler by its address, or `SIG_IGN`. `flags`: `SA_*`. `mask`: the signals that are
    /// blocked while it runs. Async-signal-safe.
    pub fn handler(address: usize, flags: libc::c_int, mask: &Set) -> Action {
        let mut action = Action::default_action();
        (action.0.sa_sigaction, action.0.sa_flags, action.0.sa_mask) = (address, flags, mask.0);
        action
    }

    /// The action of a signal now. Async-signal-safe.
    ///
    /// # Errors
    /// `EINVAL` for a number that is no signal, or one that libc keeps to itself.
    pub fn of(signal: i32) -> io::Result<Action> {
        let mut action = Action::default_action();
        // SAFETY: the live struct is filled; nothing is changed.
        check_int(unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action.0) })?;
        Ok(action)
    }

    /// Makes this the action of a signal. Async-signal-safe.
    ///
    /// # Safety
    /// The address is that of a function with the signature that the flags ask for (`SA_SIGINFO`),
    /// which does only what a handler may do, or `SIG_DFL`, or `SIG_IGN`. The code stays mapped
    /// while the action stands.
    ///
    /// # Errors
    /// `EINVAL` for a number that is no signal, or one whose action cannot be changed.
    pub unsafe fn install(&self, signal: i32) -> io::Result<()> {
        // SAFETY: the struct is live and only read; the handler is the caller's promise.
        check_int(unsafe { libc::sigaction(signal, &raw const self.0, std::ptr::null_mut()) }).map(|_| ())
    }

    /// The address of the handler, `SIG_DFL` or `SIG_IGN`.
    pub fn address(&self) -> usize {
        self.0.sa_sigaction
    }

    /// The flags, `SA_*`.
    pub fn flags(&self) -> libc::c_int {
        self.0.sa_flags
    }
}

/// Makes this function handle a signal; interrupted system calls are made again (`SA_RESTART`).
///
/// # Safety
/// The function does only what a signal handler may do, and its code stays mapped.
///
/// # Errors
/// `EINVAL` for a number that is no signal, or one that cannot be handled.
pub unsafe fn handle(signal: i32, handler: extern "C" fn(libc::c_int)) -> io::Result<()> {
    let action = Action::handler(handler as *const () as usize, libc::SA_RESTART, &Set::of([]));
    // SAFETY: the function has the signature for no `SA_SIGINFO`; the rest is the caller's
    // contract.
    unsafe { action.install(signal) }
}

/// Gives a signal its default action by `sigaction`, which also clears flags and mask.
/// Async-signal-safe.
pub fn reset(signal: i32) {
    // SAFETY: no handler is given. What cannot be changed has its default action.
    let _ = unsafe { Action::default_action().install(signal) };
}

/// Has handlers that ask for it (`SA_ONSTACK`) run on this stack, in the calling thread.
///
/// # Safety
/// `[bottom, bottom + bytes)` is writable, and nothing else uses it while the thread lives.
///
/// # Errors
/// `ENOMEM` for a stack that is too small, `EPERM` on the present one.
pub unsafe fn use_stack(bottom: *mut u8, bytes: usize) -> io::Result<()> {
    let stack = libc::stack_t { ss_sp: bottom.cast(), ss_flags: 0, ss_size: bytes };
    // SAFETY: the struct is live and only read; the memory is the caller's promise.
    check_int(unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) }).map(|_| ())
}

/// Sleeps until a signal has been handled. Async-signal-safe.
pub fn pause() {
    // SAFETY: takes no arguments.
    unsafe { libc::pause() };
}

/// Has the kernel send SIGALRM in so many seconds; 0 takes an earlier request back.
/// Async-signal-safe.
pub fn alarm(seconds: u32) {
    // SAFETY: a number.
    unsafe { libc::alarm(seconds) };
}

/// A set of signals.
#[derive(Clone, Copy)]
pub struct Set(libc::sigset_t);

impl Set {
    /// All signals. Async-signal-safe.
    pub fn all() -> Set {
        let mut set = Set::of([]);
        // SAFETY: a set is plain bits, which the call fills.
        unsafe { libc::sigfillset(&raw mut set.0) };
        set
    }

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

    /// Blocks these in the calling thread, beside those that it blocks already; returns the former
    /// mask. Async-signal-safe.
    pub fn block(&self) -> Set {
        self.change(libc::SIG_BLOCK)
    }

    /// Makes this the calling thread's mask; returns the former one. Async-signal-safe.
    pub fn set_mask(&self) -> Set {
        self.change(libc::SIG_SETMASK)
    }

    /// Unblocks these in the calling thread; returns the former mask. Async-signal-safe.
    pub fn unblock(&self) -> Set {
        self.change(libc::SIG_UNBLOCK)
    }

    fn change(&self, how: libc::c_int) -> Set {
        let mut before = Set::of([]);
        // SAFETY: both sets are live for the call.
        unsafe { libc::pthread_sigmask(how, &raw const self.0, &raw mut before.0) };
        before
    }

    /// Makes a descriptor that is readable while one of these waits for the process or the calling
    /// thread, close-on-exec. They must be blocked, else their action comes first. `blocks`:
    /// whether reading waits for one. Async-signal-safe.
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
/// `EAGAIN` where none waits and the descriptor does not block; `EINTR` after the process was
/// stopped and continued.
pub fn next(descriptor: BorrowedFd<'_>) -> io::Result<libc::signalfd_siginfo> {
    // SAFETY: all-zero bytes are a valid value of this plain struct.
    let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
    // SAFETY: at most the size of the live struct is written to it; a signalfd gives whole ones.
    let n = unsafe { libc::read(descriptor.as_raw_fd(), (&raw mut info).cast(), size_of_val(&info)) };
    crate::check(n as libc::c_long).map(|_| info)
}

/// All signals that can be blocked are, in the thread that made it, while it lives; then the thread
/// has the mask it had.
///
/// Threads and processes that begin meanwhile begin with all blocked. Must be dropped by the thread
/// that made it, which the type sees to, and not in another order than that of making, where there
/// are several. Async-signal-safe.
#[derive(Debug)]
pub struct Blocked {
    before: libc::sigset_t,
    /// A mask is a thread's: not to be sent to another.
    _here: std::marker::PhantomData<*const ()>,
}

impl Blocked {
    /// Blocks them.
    pub fn all() -> Blocked {
        // SAFETY: sets of signals are plain bits, for which zeros are a value; both outlive the
        // calls.
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

    #[test]
    fn an_action_is_installed_and_put_back() {
        static CALLS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        extern "C" fn handler(_: i32) {
            CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        let before = Action::of(libc::SIGURG).expect("a signal");
        let handler: extern "C" fn(i32) = handler;
        // SAFETY: the handler has the signature without SA_SIGINFO and adds to an atomic.
        unsafe { Action::handler(handler as usize, libc::SA_RESTART, &Set::all()).install(libc::SIGURG) }
            .expect("ours");
        raise(libc::SIGURG);
        assert_eq!(CALLS.load(std::sync::atomic::Ordering::Relaxed), 1);
        let now = Action::of(libc::SIGURG).expect("a signal");
        assert_eq!((now.address(), now.flags() & libc::SA_RESTART), (handler as usize, libc::SA_RESTART));
        // SAFETY: what was there before.
        unsafe { before.install(libc::SIGURG) }.expect("as before");
        assert_eq!(Action::of(libc::SIGURG).expect("a signal").address(), before.address());
        assert!(Action::of(0).is_err());
    }

    #[test]
    fn a_mask_is_taken_back_in_part() {
        let before = Set::of([libc::SIGUSR1, libc::SIGHUP]).block();
        Set::of([libc::SIGUSR1]).unblock();
        assert!(!blocked(libc::SIGUSR1) && blocked(libc::SIGHUP));
        before.set_mask();
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
