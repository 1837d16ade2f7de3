//! The system calls that a program makes for Orbit once the library is set up: what a seccomp
//! filter that is installed then has to allow, and which of them this process is denied.

use std::io;

/// A system call, and arguments with which it fails for another reason than being denied, and
/// changes nothing.
struct Needed {
    name: &'static str,
    number: libc::c_long,
    /// None: there are no such arguments.
    harmless: Option<[usize; 3]>,
}

/// No descriptor, flag, size or process.
const BAD: usize = usize::MAX;
/// No address.
const NOWHERE: usize = 1;
/// A process group that cannot be.
const NO_PROCESS: usize = i32::MIN as u32 as usize;
/// CLONE_THREAD alone, which the kernel rejects.
const THREAD_ALONE: usize = 0x1_0000;

macro_rules! needed {
    ($($name:ident $number:ident $harmless:expr;)*) => {
        &[ $( Needed { name: stringify!($name), number: libc::$number, harmless: $harmless }, )* ]
    };
}

/// By name.
const NEEDED: &[Needed] = needed! {
    brk SYS_brk None;
    clock_nanosleep SYS_clock_nanosleep Some([0, 0, NOWHERE]);
    clone SYS_clone Some([THREAD_ALONE, 0, 0]);
    close SYS_close Some([BAD, 0, 0]);
    eventfd2 SYS_eventfd2 Some([0, BAD, 0]);
    exit SYS_exit None;
    exit_group SYS_exit_group None;
    fcntl SYS_fcntl Some([BAD, 0, 0]);
    ftruncate SYS_ftruncate Some([BAD, 0, 0]);
    futex SYS_futex Some([NOWHERE, 1, 1]);
    getpid SYS_getpid None;
    getrandom SYS_getrandom Some([NOWHERE, 0, BAD]);
    ioctl SYS_ioctl Some([BAD, 0, 0]);
    madvise SYS_madvise Some([NOWHERE, 0, 0]);
    memfd_create SYS_memfd_create Some([NOWHERE, BAD, 0]);
    mmap SYS_mmap Some([0, 0, 0]);
    mprotect SYS_mprotect Some([NOWHERE, 0, 0]);
    munmap SYS_munmap Some([NOWHERE, 0, 0]);
    newfstatat SYS_newfstatat Some([BAD, 0, 0]);
    openat SYS_openat Some([BAD, 0, 0]);
    pidfd_send_signal SYS_pidfd_send_signal Some([BAD, 0, 0]);
    poll SYS_poll Some([NOWHERE, BAD, 0]);
    ppoll SYS_ppoll Some([NOWHERE, BAD, 0]);
    prctl SYS_prctl Some([BAD, 0, 0]);
    prlimit64 SYS_prlimit64 Some([0, BAD, 0]);
    read SYS_read Some([BAD, 0, 0]);
    recvmsg SYS_recvmsg Some([BAD, 0, 0]);
    rt_sigpending SYS_rt_sigpending Some([NOWHERE, BAD, 0]);
    rt_sigprocmask SYS_rt_sigprocmask Some([BAD, 0, 0]);
    rt_sigreturn SYS_rt_sigreturn None;
    sendmsg SYS_sendmsg Some([BAD, 0, 0]);
    statx SYS_statx Some([BAD, 0, 0]);
    wait4 SYS_wait4 Some([NO_PROCESS, 0, 0]);
    write SYS_write Some([BAD, 0, 0]);
};

macro_rules! numbered {
    ($($name:ident $number:ident;)*) => { &[ $( (stringify!($name), libc::$number), )* ] };
}

/// Calls that make it faster where they are allowed, with their numbers: it does without each of
/// them.
pub const OPTIONAL: &[(&str, libc::c_long)] = numbered! {
    close_range SYS_close_range;
    getppid SYS_getppid;
    getrusage SYS_getrusage;
    lseek SYS_lseek;
    mincore SYS_mincore;
    mremap SYS_mremap;
    sched_yield SYS_sched_yield;
    sysinfo SYS_sysinfo;
    userfaultfd SYS_userfaultfd;
};

/// Calls that set-up makes besides, and what it makes: threads, templates, orbits. A filter that is
/// installed before set-up has to allow them too.
pub const SET_UP: &[(&str, libc::c_long)] = numbered! {
    alarm SYS_alarm;
    clone3 SYS_clone3;
    dup3 SYS_dup3;
    getdents64 SYS_getdents64;
    gettid SYS_gettid;
    kill SYS_kill;
    pidfd_open SYS_pidfd_open;
    pread64 SYS_pread64;
    readlink SYS_readlink;
    rseq SYS_rseq;
    rt_sigaction SYS_rt_sigaction;
    sched_getaffinity SYS_sched_getaffinity;
    set_robust_list SYS_set_robust_list;
    setsid SYS_setsid;
    sigaltstack SYS_sigaltstack;
    socketpair SYS_socketpair;
    tgkill SYS_tgkill;
    waitid SYS_waitid;
};

/// The names of the calls, in order. With an allocator that takes memory in other ways than libc's
/// it needs that one's too.
pub fn names() -> impl Iterator<Item = &'static str> {
    NEEDED.iter().map(|call| call.name)
}

/// Their numbers, without the call of this name: for a filter.
pub fn numbers_without(name: Option<&str>) -> Vec<libc::c_long> {
    NEEDED.iter().filter(|call| Some(call.name) != name).map(|call| call.number).collect()
}

/// Those that a filter denies this thread: they answer EPERM or ENOSYS before their arguments are
/// read. Makes each call once.
pub fn denied() -> Vec<&'static str> {
    let is_denied = |call: &&Needed| {
        let Some([a, b, c]) = call.harmless else { return false };
        // SAFETY: with these arguments the kernel reads and writes no memory, and rejects the call.
        let answer = unsafe { libc::syscall(call.number, a, b, c, 0usize, 0usize, 0usize) };
        answer == -1 && matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EPERM | libc::ENOSYS))
    };
    NEEDED.iter().filter(is_denied).map(|call| call.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_filter_none_is_denied() {
        assert_eq!(denied(), Vec::<&str>::new());
        assert!(names().is_sorted());
        assert!([OPTIONAL, SET_UP].iter().all(|list| list.is_sorted_by_key(|(name, _)| name)));
    }
}
