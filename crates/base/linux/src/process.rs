//! Making processes without libc's help, and what a fresh child does first.
//!
//! [`raw_fork`] is the legacy `clone` system call: unlike `clone3` it passes Docker's seccomp
//! profile, and unlike libc's `fork` it runs no atfork handlers and lets the caller choose the exit
//! signal. With exit signal 0 the child never raises SIGCHLD and a plain `waitpid(-1)` does not see
//! it; it is reaped through its pidfd ([`crate::pidfd::wait`]). `CLONE_PARENT` is rejected: it
//! would hand the caller's own exit signal on.

use crate::status::Status;
use crate::{Support, check, check_int, invalid};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// Linux 3.5, with checkpoint/restore support: where the kernel clears the thread id at a thread's
/// end.
const PR_GET_TID_ADDRESS: libc::c_int = 40;
/// What `kcmp` compares: the memory.
const KCMP_VM: libc::c_long = 1;

/// A child as its parent sees it.
#[derive(Debug)]
pub struct RawChild {
    /// Process id. May name another process once the child is reaped: prefer the pidfd.
    pub pid: i32,
    /// Handle of the child, close-on-exec. `None` only on kernels before 5.2.
    pub pidfd: Option<OwnedFd>,
}

/// Page faults of this process so far, of all its threads and of children that it has waited for:
/// memory that is mapped privately gets a page of its own by a fault only.
///
/// # Errors
/// `EPERM` or `ENOSYS` where a filter denies `getrusage`.
pub fn page_faults() -> io::Result<u64> {
    let mut all = 0;
    for of in [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN] {
        // SAFETY: all-zero bytes are a valid rusage.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the struct is writable and outlives the call.
        check_int(unsafe { libc::getrusage(of, &mut usage) })?;
        all += (usage.ru_minflt + usage.ru_majflt) as u64;
    }
    Ok(all)
}

/// Forks the calling thread into a process of its own. `None` in the child. Async-signal-safe.
///
/// `exit_signal` is what the parent gets at the child's end: 0 for nothing, `libc::SIGCHLD` as
/// `fork` does.
///
/// # Safety
/// The child is a copy of the whole address space with one thread. If the caller had others, their
/// locks (malloc, stdio) stay as they were, held or not, for ever: such a child may only do what is
/// async-signal-safe until it execs or exits. No atfork handlers run in either process. The child
/// must end by `_exit`, not by returning through its caller's frames into code that does not expect
/// to run twice.
///
/// # Errors
/// `EAGAIN` (limit of processes), `ENOMEM`, `EPERM`; `InvalidInput` for a signal beyond 0..=64.
pub unsafe fn raw_fork(exit_signal: i32) -> io::Result<Option<RawChild>> {
    // SAFETY: the caller's contract.
    unsafe { raw_clone(exit_signal, 0) }
}

/// The same, with one table of descriptors for parent and child: what either closes or opens is so
/// for both, and the child keeps no file of the parent's open. It takes a table of its own by
/// [`crate::descriptors::keep_only_unshared`].
///
/// # Safety
/// That of [`raw_fork`]; the child closes nothing before it has a table of its own.
///
/// # Errors
/// Those of [`raw_fork`].
pub unsafe fn raw_fork_sharing_descriptors(exit_signal: i32) -> io::Result<Option<RawChild>> {
    // SAFETY: the caller's contract.
    unsafe { raw_clone(exit_signal, libc::CLONE_FILES) }
}

/// # Safety
/// That of [`raw_fork`], and of sharing what the flag says.
unsafe fn raw_clone(exit_signal: i32, shared: libc::c_int) -> io::Result<Option<RawChild>> {
    if !(0..=64).contains(&exit_signal) {
        return Err(invalid(format!("exit signal {exit_signal} is not in 0..=64")));
    }
    let mut flags = libc::c_long::from(libc::CLONE_PIDFD | shared | exit_signal);
    let mut pidfd: RawFd = -1;
    // libc keeps the thread's id in memory and takes it for the owner of locks: let the kernel
    // write the child's own id there, as libc's fork does. Without this, parent and child would
    // seem to be one owner of a shared recursive lock.
    let mut tid: usize = 0;
    // SAFETY: PR_GET_TID_ADDRESS writes one pointer to the given place.
    if unsafe { libc::prctl(PR_GET_TID_ADDRESS, &raw mut tid) } == 0 && tid != 0 {
        flags |= libc::c_long::from(libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID);
    } else {
        tid = 0;
    }
    // SAFETY: without CLONE_VM the child gets its own copy of memory and continues on a copy of
    // this stack (stack 0). The kernel writes the pidfd to the third argument in the parent. The
    // places of child_tid and tls differ between architectures: on x86-64 the fourth argument is
    // child_tid, on arm64 and riscv the fifth; tls is not used as CLONE_SETTLS is not given. What
    // the child may do is in the caller's contract.
    let r = unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, &raw mut pidfd, tid, tid) };
    let pid = check(r)?;
    if pid == 0 {
        return Ok(None);
    }
    // SAFETY: the kernel made this descriptor for us in the clone call.
    let pidfd = (pidfd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(pidfd) });
    Ok(Some(RawChild { pid: pid as i32, pidfd }))
}

/// Forks the calling process by libc's `fork`, which runs atfork handlers and leaves libc's state
/// in order in the child. The child's number in the parent, `None` in the child.
///
/// # Safety
/// If the caller has other threads, the child does only what is async-signal-safe, or what libc's
/// fork puts in order. The child ends by [`end`], not by returning through frames that do not
/// expect to run twice.
///
/// # Errors
/// `EAGAIN` (limit of processes), `ENOMEM`.
pub unsafe fn fork() -> io::Result<Option<i32>> {
    // SAFETY: the caller's contract.
    let pid = check_int(unsafe { libc::fork() })?;
    Ok((pid != 0).then_some(pid))
}

/// Forks the calling process by the bare system call, with exit signal SIGCHLD: no atfork handlers,
/// no pidfd. The child's number in the parent, `None` in the child.
///
/// # Safety
/// The child makes system calls only, and ends by [`end`].
///
/// # Errors
/// `EAGAIN` (limit of processes), `ENOMEM`.
pub unsafe fn bare_fork() -> io::Result<Option<i32>> {
    let flags = libc::c_long::from(libc::SIGCHLD);
    // SAFETY: a copy of the process with one thread, on a copy of this stack; what the child may do
    // is in the caller's contract.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, 0usize, 0usize, 0usize) })?;
    Ok((pid != 0).then_some(pid as i32))
}

/// Ends the process at once, without exit handlers, and without libc: in place of its `_exit` a
/// sanitizer or a preloaded library may have put one that takes a lock, which a thread that a fork
/// has not copied may hold. Async-signal-safe.
pub fn end(status: i32) -> ! {
    loop {
        // SAFETY: does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

/// How many threads the calling process has.
///
/// # Errors
/// Those of reading `/proc/self/status` (no `/proc` mounted); `InvalidData` if it has no such line.
pub fn thread_count() -> io::Result<usize> {
    Status::own()?
        .threads()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/self/status has no Threads line"))
}

/// Whether two threads work on the same memory: those of one process, and of processes made with
/// `CLONE_VM`, as by `vfork`.
///
/// # Errors
/// `EPERM` without the right to trace both, and under Docker's seccomp profile; `ESRCH` when one is
/// gone; `ENOSYS` without `CONFIG_KCMP`.
pub fn same_memory(a: i32, b: i32) -> io::Result<bool> {
    // SAFETY: five integers.
    check(unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_VM, 0, 0) }).map(|order| order == 0)
}

/// Closes every descriptor of the process but those in `keep` (any order, repeats allowed).
/// Async-signal-safe.
///
/// For a fresh child only: Rust values that own one of the closed descriptors must never be dropped
/// afterwards.
pub fn close_all_but(keep: &[RawFd]) {
    let mut from: libc::c_uint = 0;
    loop {
        // The smallest kept descriptor at or above `from`: no sorting, as this may run where memory
        // is not available.
        let next = keep.iter().filter_map(|&fd| libc::c_uint::try_from(fd).ok()).filter(|&fd| fd >= from).min();
        match next {
            Some(fd) => {
                if fd > from {
                    close_between(from, fd - 1);
                }
                from = fd + 1;
            }
            None => {
                close_between(from, libc::c_uint::MAX);
                return;
            }
        }
    }
}

/// Closes `first..=last`. Async-signal-safe.
fn close_between(first: libc::c_uint, last: libc::c_uint) {
    // SAFETY: closing descriptors touches no memory; that their owners are gone is
    // `close_all_but`'s contract.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0 {
        return;
    }
    // Kernels before 5.9: one by one up to the highest number a descriptor can have had.
    // Where the limit cannot be asked for it is the highest.
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: getrlimit fills the struct.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let top = libc::c_uint::try_from(limit.rlim_max.min(1 << 20)).unwrap_or(1 << 20);
    for fd in first..=last.min(top) {
        // SAFETY: as above.
        unsafe { libc::close(fd as RawFd) };
    }
}

/// The calling process gets `sig` when the *thread* that made it ends (0: nothing).
/// Async-signal-safe.
///
/// If that thread may end before its process, or may have ended already, also watch its process by
/// pidfd or socket.
///
/// # Errors
/// `EINVAL` for a number that is no signal.
pub fn set_parent_death_signal(sig: i32) -> io::Result<()> {
    // SAFETY: an integer option.
    check_int(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, sig as libc::c_ulong) }).map(|_| ())
}

/// From now on processes below this one whose parent ends become its children.
///
/// # Errors
/// None in practice.
pub fn adopt_orphans() -> io::Result<()> {
    // SAFETY: numbers only.
    check_int(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }).map(|_| ())
}

/// Whether orphans below the calling process become its children; see [`adopt_orphans`].
pub fn adopts_orphans() -> bool {
    let mut adopts: libc::c_int = 0;
    // SAFETY: the kernel writes one number to a local.
    let asked = unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut adopts) };
    asked == 0 && adopts != 0
}

/// The calling thread's id. Async-signal-safe.
pub fn own_thread_id() -> i32 {
    // SAFETY: a call without arguments.
    unsafe { libc::gettid() }
}

/// Whether libc has made no thread in this process so far. False where it does not say.
pub fn has_made_no_thread() -> bool {
    /// Address of the word in which libc says so (from 2.32 on); 0: there is none.
    static WORD: OnceLock<usize> = OnceLock::new();
    // SAFETY: a name that ends with 0.
    let find = || unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) }.expose_provenance();
    let word = std::ptr::with_exposed_provenance::<AtomicU8>(*WORD.get_or_init(find));
    // SAFETY: if not null, a variable of one byte that libc has for this; it lives as long as libc.
    !word.is_null() && unsafe { (*word).load(Ordering::Relaxed) } != 0
}

/// Starts a thread of this process on a stack of the caller's, without libc: it runs `work` once.
/// The kernel keeps its id in `busy` from before the thread runs until it has left the stack, then
/// sets 0 there. Returns whether there is a thread.
///
/// # Safety
/// `stack_end` is the end of a stack that nothing else uses until `busy` is 0, large enough for
/// `work`; `busy` and what `argument` points to live as long. The thread shares its maker's
/// thread-local memory, so `work` may make system calls only.
pub unsafe fn start_thread_on(
    stack_end: *mut u8,
    work: extern "C" fn(*mut libc::c_void) -> libc::c_int,
    argument: *mut libc::c_void,
    busy: *mut i32,
) -> bool {
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    let no_tls = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: by contract.
    unsafe { libc::clone(work, stack_end.cast(), flags, argument, busy, no_tls, busy) > 0 }
}

/// Whether others of the same user may read the calling process: not if it has rights that it
/// was not started with.
pub fn is_dumpable() -> bool {
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_GET_DUMPABLE) == 1 }
}

/// The parent of the calling process now; -1, with errno, where a seccomp filter denies the call.
/// Async-signal-safe.
#[inline]
pub fn parent() -> i32 {
    // SAFETY: no pointers are passed.
    unsafe { libc::getppid() }
}

/// Whether children of this process would be in another PID namespace than itself, as after
/// `unshare(CLONE_NEWPID)`: the first is its process 1, and with that the namespace ends. False
/// where `/proc` does not say.
pub fn has_children_elsewhere() -> bool {
    let namespace = |file: &str| crate::procfs::own(file, |path| std::fs::read_link(path)).ok();
    match (namespace("ns/pid"), namespace("ns/pid_for_children")) {
        (Some(own), Some(of_children)) => own != of_children,
        // A namespace whose process 1 is still to come has no name.
        (Some(_), None) => procfs_has_children_file(),
        _ => false,
    }
}

fn procfs_has_children_file() -> bool {
    crate::procfs::own("ns/pid_for_children", |path| std::fs::symlink_metadata(path)).is_ok()
}

/// Has the kernel kill this process, and those it makes, before all others when it is out of
/// memory. Never to be called by a process that shares its memory with another, which would get the
/// same.
///
/// # Errors
/// Those of writing to `/proc`: none is mounted, or its files are another user's (a process that
/// has given up rights).
pub fn be_killed_first() -> io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", "1000")
}

/// Begins a session, and a process group in it, with the calling process alone. Async-signal-safe.
///
/// # Errors
/// `EPERM` if it leads a group already.
pub fn new_session() -> io::Result<()> {
    // SAFETY: no pointers are passed.
    check_int(unsafe { libc::setsid() }).map(|_| ())
}

/// Whether the calling process leads its session.
pub fn leads_session() -> bool {
    // SAFETY: numbers only.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// Whether a process is in the calling one's process group.
pub fn is_in_own_group(pid: i32) -> bool {
    // SAFETY: no pointers are passed.
    unsafe { libc::getpgid(pid) == libc::getpgrp() }
}

/// Whether the calling process' group is in the foreground of a terminal.
pub fn is_in_foreground(terminal: BorrowedFd<'_>) -> bool {
    // SAFETY: a live descriptor, and numbers.
    unsafe { libc::tcgetpgrp(terminal.as_raw_fd()) == libc::getpgrp() }
}

/// Whether a child is stopped by a signal, which was not reported yet; `keep`: it stays unreported.
/// Does not wait.
pub fn child_has_stopped(pid: i32, keep: bool) -> bool {
    let options = libc::WSTOPPED | libc::WNOHANG | if keep { libc::WNOWAIT } else { 0 };
    changed(libc::P_PID, pid, options) == Some(pid)
}

/// A child of the calling thread that has ended and was not reaped: it stays so. Does not wait.
/// Children that end without a signal are not seen.
pub fn ended_child() -> Option<i32> {
    changed(libc::P_ALL, 0, libc::WEXITED | libc::WNOHANG | libc::__WNOTHREAD | libc::WNOWAIT)
}

/// Reaps a child of the calling thread if it has ended. Does not wait.
pub fn reap(pid: i32) {
    changed(libc::P_PID, pid, libc::WEXITED | libc::WNOHANG | libc::__WNOTHREAD);
}

/// Kills a child and waits for its end, whatever its exit signal. Of a child that nothing else
/// reaps.
pub fn kill_child(pid: i32) {
    // SAFETY: numbers only. The number is still the child's, since it was not reaped.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    wait_child(pid);
}

/// Waits for the end of a child, whatever its exit signal. Returns at once if there is no such
/// child (any more).
pub fn wait_child(pid: i32) {
    // SAFETY: a number, and a null status, which is allowed.
    while unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) } == -1
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

/// Waits for the end of a child, whatever its exit signal; returns its status as `waitpid` has it.
///
/// # Errors
/// `ECHILD` if there is no such child (any more).
pub fn exit_status(pid: i32) -> io::Result<i32> {
    let mut status = 0;
    loop {
        // SAFETY: one number is written to a live local.
        match check_int(unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            found => return found.map(|_| status),
        }
    }
}

/// Reaps a child if it has ended, whatever its exit signal. Does not wait. False while it runs;
/// true also if there is no such child (any more).
pub fn reap_any(pid: i32) -> bool {
    // SAFETY: a number, and a null status, which is allowed.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL | libc::WNOHANG) != 0 }
}

/// Tries whether the ends of children can be asked for with [`reap_any`].
///
/// # Errors
/// What a seccomp filter answers that denies wait4.
pub fn can_reap() -> io::Result<()> {
    // SAFETY: a number that no process has, and a null status, which is allowed.
    unsafe { libc::waitpid(i32::MAX, std::ptr::null_mut(), libc::WNOHANG) };
    let said = io::Error::last_os_error();
    if said.raw_os_error() == Some(libc::ECHILD) { Ok(()) } else { Err(said) }
}

/// The child of which waitid reports something, if there is one.
fn changed(which: libc::idtype_t, pid: i32, options: libc::c_int) -> Option<i32> {
    // SAFETY: a siginfo is plain data; zeros say that nothing happened.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the struct outlives the call.
    let done = unsafe { libc::waitid(which, pid as libc::id_t, &raw mut info, options) };
    // SAFETY: waitid filled the fields of a child's change, or left zeros.
    let child = unsafe { info.si_pid() };
    (done == 0 && child != 0).then_some(child)
}

/// Page faults of the calling process so far that needed no disk.
pub fn minor_faults() -> u64 {
    // SAFETY: a rusage is numbers, for which zeros are a value; the kernel fills it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage.ru_minflt as u64
    }
}

/// Makes a process control call (`prctl`) with this option and zeros; returns the kernel's answer.
/// An executive answers options that the kernel does not know.
///
/// # Errors
/// `EINVAL` for an unknown option; the option's own.
pub fn control(option: u64) -> io::Result<u64> {
    // SAFETY: no memory is named.
    check(unsafe { libc::syscall(libc::SYS_prctl, option, 0usize, 0usize, 0usize, 0usize) }).map(|answer| answer as u64)
}

/// Names the calling thread (at most 15 bytes are kept), as `ps` and `top` show it.
/// Async-signal-safe.
///
/// # Errors
/// None in practice.
pub fn set_name(name: &CStr) -> io::Result<()> {
    // SAFETY: a C string that outlives the call.
    check_int(unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) }).map(|_| ())
}

/// Makes a child that ends at once, and reaps it.
pub fn probe() -> Support {
    let tried = (|| {
        // SAFETY: the child calls nothing but _exit.
        match unsafe { raw_fork(0) }? {
            // SAFETY: _exit ends the child without touching anything.
            None => unsafe { libc::_exit(0) },
            Some(RawChild { pidfd: Some(fd), .. }) => {
                use std::os::fd::AsFd;
                crate::pidfd::wait(fd.as_fd(), false).map(|_| ())
            }
            Some(RawChild { pid, pidfd: None }) => {
                let mut status = 0;
                // SAFETY: waits for the own child by its id, which cannot have been given to
                // another yet.
                unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
                Err(io::Error::from_raw_os_error(libc::ENOSYS))
            }
        }
    })();
    Support::from_result("clone with CLONE_PIDFD", tried, |_| "needs Linux 5.4".into())
}
