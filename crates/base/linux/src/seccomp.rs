//! System call filters for tests: one that answers as Docker's default profile does, so that what
//! Orbit does inside a container can be tried without one ([`install_docker_like`]), and one that
//! answers as a kernel does which lacks single calls ([`install_without`]).
//!
//! The first is a *model* of that profile, of the calls that matter here: those Orbit uses and the
//! profile rejects, and the well-known privileged ones. The real profile is a list of what is
//! allowed; this is a list of what is rejected, and everything else passes. Refused with EPERM:
//! userfaultfd, perf_event_open, bpf, io_uring, kernel keys, namespaces (`setns`, `unshare`,
//! `clone` with a namespace flag), mounts, modules, clocks, NUMA policy, descriptors and advice
//! across processes. `clone3` answers ENOSYS, so that libraries fall back to `clone`. ptrace and
//! process_vm_readv pass, as they do in Docker from Linux 4.8 on. Calls of another architecture
//! answer ENOSYS.

use crate::{Support, check, check_int};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

// Classic BPF, as the kernel's seccomp takes it.
const LOAD_WORD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_ABOVE_OR_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;

// struct seccomp_data: number at 0, architecture at 4, arguments of 8 bytes from 16.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;

const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;
const SECCOMP_SET_MODE_FILTER: libc::c_uint = 1;
const SECCOMP_FILTER_FLAG_TSYNC: libc::c_uint = 1;

#[cfg(target_arch = "x86_64")]
const THIS_ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const THIS_ARCHITECTURE: u32 = 0xC000_00B7;
/// Numbers from here on belong to x32, the 32-bit face of x86-64.
const X32: u32 = 0x4000_0000;

/// CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
const NAMESPACES: u32 = 0x7E02_0000;
const AF_VSOCK: u32 = 40;
/// The values of `personality` that pass.
const PERSONALITIES: [u32; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Refused with EPERM whatever their arguments.
const DENIED_BY_DOCKER: &[libc::c_long] = &[
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
    libc::SYS_bpf,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_fanotify_init,
    libc::SYS_mbind,
    libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
];

/// What [`install_without`] can take away, and the version of Linux that brought it. Also `ptrace`
/// and `capset`, which each Linux has, and hardened units forbid.
pub const MISSABLE: &[(&str, &str)] = &[
    ("userfaultfd", "4.3"),
    ("pidfd_send_signal", "5.1"),
    ("pidfd_open", "5.3"),
    ("clone3", "5.3"),
    ("close_range", "5.9"),
    ("MADV_POPULATE_WRITE", "5.14"),
];
/// The advice of that name, argument three of madvise.
const POPULATE_WRITE: u32 = 23;
const THIRD_ARGUMENT: u32 = FIRST_ARGUMENT + 16;

/// Puts a filter on all threads of the calling process, its future children and what they exec. It
/// cannot be taken off. Sets `no_new_privs`, so set-user-id programs gain nothing from now on
/// either, and ordinary users may do this.
///
/// # Errors
/// `EINVAL` or `ENOSYS` where the kernel has no seccomp filters; `EACCES` or `ESRCH` when a thread
/// has a filter of its own.
pub fn install_docker_like() -> io::Result<()> {
    install(&docker_like())
}

/// As [`install_docker_like`], but answers ENOSYS to the calls of these names, EINVAL to the
/// advice; all else passes.
///
/// # Errors
/// `InvalidInput` for a name that is not in [`MISSABLE`]; else as there.
pub fn install_without(names: &[&str]) -> io::Result<()> {
    install(&without(names)?)
}

/// As [`install_docker_like`], but all calls answer EPERM except those with these numbers.
///
/// # Errors
/// As there.
pub fn install_only(allowed: &[libc::c_long]) -> io::Result<()> {
    let mut p = number();
    for &call in allowed {
        p.extend([jump(JUMP_EQUAL, call as u32, 0, 1), allow()]);
    }
    p.push(answer(libc::EPERM));
    install(&p)
}

/// The same, but all other calls end the process with SIGSYS.
///
/// # Errors
/// As there.
pub fn install_only_or_kill(allowed: &[libc::c_long]) -> io::Result<()> {
    let mut p = number();
    for &call in allowed {
        p.extend([jump(JUMP_EQUAL, call as u32, 0, 1), allow()]);
    }
    p.push(libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_KILL_PROCESS });
    install(&p)
}

/// Has one call of the calling thread, by its number, answered by whoever reads the descriptor that
/// this returns: see [`answer_next`]. Sets `no_new_privs`.
///
/// # Errors
/// As [`install_docker_like`]; `EBUSY` where a filter of the thread has such a descriptor already.
pub fn notify_of(call: libc::c_long) -> io::Result<OwnedFd> {
    let notify = libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_USER_NOTIF };
    let mut p = number();
    p.extend([jump(JUMP_EQUAL, call as u32, 0, 1), notify, allow()]);
    let header = libc::sock_fprog { len: p.len() as u16, filter: p.as_mut_ptr() };
    // SAFETY: integers only.
    check_int(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // SAFETY: the kernel copies the program, which outlives the call.
    let fd = check(unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &raw const header) })?;
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Waits for the next call at a descriptor of [`notify_of`] and answers it with this value.
///
/// # Errors
/// `ENOENT` when the calling thread ended meanwhile, `EINTR`.
pub fn answer_next(listener: BorrowedFd<'_>, value: i64) -> io::Result<()> {
    // SAFETY: a structure of integers, for which zeros are a value.
    let mut request: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the live structure, whose size the request's number names.
    check_int(unsafe { libc::ioctl(listener.as_raw_fd(), NOTIFY_RECEIVE, &raw mut request) })?;
    let answer = libc::seccomp_notif_resp { id: request.id, val: value, error: 0, flags: 0 };
    // SAFETY: the kernel reads the live structure, whose size the request's number names.
    check_int(unsafe { libc::ioctl(listener.as_raw_fd(), NOTIFY_SEND, &raw const answer) }).map(|_| ())
}

/// `SECCOMP_IOCTL_NOTIF_RECV` and `SECCOMP_IOCTL_NOTIF_SEND`.
const NOTIFY_RECEIVE: libc::c_ulong = 0xc050_2100;
const NOTIFY_SEND: libc::c_ulong = 0xc018_2101;

fn install(program: &[libc::sock_filter]) -> io::Result<()> {
    let header = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: integers only.
    check_int(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: the kernel copies the program, which outlives the call.
    let r = unsafe {
        libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &raw const header)
    };
    match check(r)? {
        0 => Ok(()),
        // With TSYNC the kernel answers the id of a thread it could not bring along.
        _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// Leaves the call's number in place, if it is a call of this architecture.
fn number() -> Vec<libc::sock_filter> {
    vec![load(ARCHITECTURE), jump(JUMP_EQUAL, THIS_ARCHITECTURE, 1, 0), answer(libc::ENOSYS), load(NUMBER)]
}

fn without(names: &[&str]) -> io::Result<Vec<libc::sock_filter>> {
    let mut p = number();
    let mut refuse = |call: libc::c_long| {
        p.push(jump(JUMP_EQUAL, call as u32, 0, 1));
        p.push(answer(libc::ENOSYS));
    };
    for name in names {
        match *name {
            "capset" => refuse(libc::SYS_capset),
            "ptrace" => refuse(libc::SYS_ptrace),
            "userfaultfd" => refuse(libc::SYS_userfaultfd),
            "pidfd_send_signal" => refuse(libc::SYS_pidfd_send_signal),
            "pidfd_open" => refuse(libc::SYS_pidfd_open),
            "clone3" => refuse(libc::SYS_clone3),
            "close_range" => refuse(libc::SYS_close_range),
            "MADV_POPULATE_WRITE" => {}
            other => return Err(crate::invalid(format!("{other:?} is none of {MISSABLE:?}"))),
        }
    }
    if names.contains(&"MADV_POPULATE_WRITE") {
        p.extend([
            jump(JUMP_EQUAL, libc::SYS_madvise as u32, 0, 3),
            load(THIRD_ARGUMENT),
            jump(JUMP_EQUAL, POPULATE_WRITE, 0, 1),
            answer(libc::EINVAL),
        ]);
    }
    p.push(allow());
    Ok(p)
}

fn docker_like() -> Vec<libc::sock_filter> {
    let mut p = number();
    p.extend([
        #[cfg(target_arch = "x86_64")]
        jump(JUMP_ABOVE_OR_EQUAL, X32, 0, 1),
        #[cfg(target_arch = "x86_64")]
        answer(libc::ENOSYS),
        jump(JUMP_EQUAL, libc::SYS_clone3 as u32, 0, 1),
        answer(libc::ENOSYS),
    ]);
    for &call in DENIED_BY_DOCKER {
        p.push(jump(JUMP_EQUAL, call as u32, 0, 1));
        p.push(answer(libc::EPERM));
    }
    // Calls that depend on their first argument: each block either answers or leaves the number in
    // place for the next.
    p.extend([
        jump(JUMP_EQUAL, libc::SYS_clone as u32, 0, 5),
        load(FIRST_ARGUMENT),
        libc::sock_filter { code: AND, jt: 0, jf: 0, k: NAMESPACES },
        jump(JUMP_EQUAL, 0, 0, 1),
        allow(),
        answer(libc::EPERM),
        jump(JUMP_EQUAL, libc::SYS_socket as u32, 0, 4),
        load(FIRST_ARGUMENT),
        jump(JUMP_EQUAL, AF_VSOCK, 0, 1),
        answer(libc::EPERM),
        allow(),
    ]);
    let after = PERSONALITIES.len() as u8 + 3;
    p.push(jump(JUMP_EQUAL, libc::SYS_personality as u32, 0, after - 1));
    p.push(load(FIRST_ARGUMENT));
    for (i, value) in (0u8..).zip(PERSONALITIES) {
        p.push(jump(JUMP_EQUAL, value, PERSONALITIES.len() as u8 - i, 0));
    }
    p.extend([answer(libc::EPERM), allow()]);
    p
}

fn load(offset: u32) -> libc::sock_filter {
    libc::sock_filter { code: LOAD_WORD, jt: 0, jf: 0, k: offset }
}

fn jump(code: u16, value: u32, when_true: u8, when_false: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt: when_true, jf: when_false, k: value }
}

fn answer(errno: i32) -> libc::sock_filter {
    libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: ERRNO | errno as u32 }
}

fn allow() -> libc::sock_filter {
    libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: ALLOW }
}

/// Whether the kernel knows filters: asks with no program, which it must reject for its address and
/// nothing else.
pub fn probe() -> Support {
    // SAFETY: a null program is rejected with EFAULT before anything is changed.
    let r =
        unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, std::ptr::null::<libc::sock_fprog>()) };
    let tried = match check(r) {
        Err(e) if e.raw_os_error() == Some(libc::EFAULT) => Ok(()),
        Err(e) => Err(e),
        Ok(_) => Ok(()),
    };
    Support::from_result("seccomp", tried, |_| "kernel without CONFIG_SECCOMP_FILTER".into())
}
