//! The system call a thread sits in: one line of `/proc/PID/task/TID/syscall`.

/// A system call as the kernel reports it of a blocked thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Number of the call.
    pub nr: i64,
    /// Its six arguments, meaningful or not.
    pub args: [u64; 6],
    /// Stack pointer of the program.
    pub sp: u64,
    /// Where the program continues.
    pub pc: u64,
}

/// What the `syscall` file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// On a CPU or waiting for one.
    Running,
    /// Blocked, but not in a system call: a page fault, a stop; stack pointer and program counter.
    Outside(u64, u64),
    /// Blocked in a call.
    In(Call),
}

impl Seen {
    /// Parses one line; nothing if it is not of a known form.
    pub(crate) fn parse(line: &[u8]) -> Option<Seen> {
        let text = std::str::from_utf8(line).ok()?.trim_end();
        if text == "running" {
            return Some(Seen::Running);
        }
        let mut f = text.split(' ');
        let nr: i64 = f.next()?.parse().ok()?;
        let mut hex = || u64::from_str_radix(f.next()?.strip_prefix("0x")?, 16).ok();
        if nr == -1 {
            return Some(Seen::Outside(hex()?, hex()?));
        }
        let mut args = [0; 6];
        for a in &mut args {
            *a = hex()?;
        }
        Some(Seen::In(Call { nr, args, sp: hex()?, pc: hex()? }))
    }
}

/// Name of a system call that blocks often, else nothing.
pub fn name(nr: i64) -> Option<&'static str> {
    Some(match nr {
        libc::SYS_read => "read",
        libc::SYS_write => "write",
        libc::SYS_readv => "readv",
        libc::SYS_writev => "writev",
        libc::SYS_pread64 => "pread64",
        libc::SYS_pwrite64 => "pwrite64",
        libc::SYS_open => "open",
        libc::SYS_openat => "openat",
        libc::SYS_openat2 => "openat2",
        libc::SYS_close => "close",
        libc::SYS_connect => "connect",
        libc::SYS_accept => "accept",
        libc::SYS_accept4 => "accept4",
        libc::SYS_sendto => "sendto",
        libc::SYS_recvfrom => "recvfrom",
        libc::SYS_sendmsg => "sendmsg",
        libc::SYS_recvmsg => "recvmsg",
        libc::SYS_sendmmsg => "sendmmsg",
        libc::SYS_recvmmsg => "recvmmsg",
        libc::SYS_futex => "futex",
        libc::SYS_futex_waitv => "futex_waitv",
        libc::SYS_poll => "poll",
        libc::SYS_ppoll => "ppoll",
        libc::SYS_select => "select",
        libc::SYS_pselect6 => "pselect6",
        libc::SYS_epoll_wait => "epoll_wait",
        libc::SYS_epoll_pwait => "epoll_pwait",
        libc::SYS_epoll_pwait2 => "epoll_pwait2",
        libc::SYS_nanosleep => "nanosleep",
        libc::SYS_clock_nanosleep => "clock_nanosleep",
        libc::SYS_pause => "pause",
        libc::SYS_rt_sigsuspend => "rt_sigsuspend",
        libc::SYS_rt_sigtimedwait => "rt_sigtimedwait",
        libc::SYS_wait4 => "wait4",
        libc::SYS_waitid => "waitid",
        libc::SYS_vfork => "vfork",
        libc::SYS_clone => "clone",
        libc::SYS_clone3 => "clone3",
        libc::SYS_flock => "flock",
        libc::SYS_fcntl => "fcntl",
        libc::SYS_fsync => "fsync",
        libc::SYS_fdatasync => "fdatasync",
        libc::SYS_sync => "sync",
        libc::SYS_syncfs => "syncfs",
        libc::SYS_msync => "msync",
        libc::SYS_semop => "semop",
        libc::SYS_semtimedop => "semtimedop",
        libc::SYS_msgsnd => "msgsnd",
        libc::SYS_msgrcv => "msgrcv",
        libc::SYS_mq_timedsend => "mq_timedsend",
        libc::SYS_mq_timedreceive => "mq_timedreceive",
        libc::SYS_io_getevents => "io_getevents",
        libc::SYS_io_uring_enter => "io_uring_enter",
        libc::SYS_splice => "splice",
        libc::SYS_sendfile => "sendfile",
        libc::SYS_copy_file_range => "copy_file_range",
        libc::SYS_ioctl => "ioctl",
        libc::SYS_stat => "stat",
        libc::SYS_newfstatat => "newfstatat",
        libc::SYS_statx => "statx",
        libc::SYS_getdents64 => "getdents64",
        libc::SYS_rename => "rename",
        libc::SYS_unlink => "unlink",
        libc::SYS_ftruncate => "ftruncate",
        libc::SYS_fallocate => "fallocate",
        libc::SYS_exit => "exit",
        libc::SYS_exit_group => "exit_group",
        libc::SYS_execve => "execve",
        libc::SYS_restart_syscall => "restart_syscall",
        libc::SYS_mmap => "mmap",
        libc::SYS_munmap => "munmap",
        libc::SYS_mprotect => "mprotect",
        libc::SYS_madvise => "madvise",
        _ => return None,
    })
}
