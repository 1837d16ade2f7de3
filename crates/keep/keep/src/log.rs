//! The log, as the keeper reads it: its size, and what an entry says of a call.

/// The size of a log at first.
pub(crate) const FIRST_LOG: u64 = 16 << 20;

/// The size of a log in which so many bytes were used at once: twice of that, within its space.
pub(crate) fn grown(now: u64, space: u64, used: u64) -> u64 {
    let mut size = now;
    while size < space && used > size / 2 {
        size *= 2;
    }
    size
}

/// The head of an entry of the log, as the program has written it.
pub(crate) struct LogEntry {
    pub nr: u32,
    pub fd: i32,
    pub ret: u64,
    pub hash: u64,
    /// Where the next one is.
    pub next: u64,
}

impl LogEntry {
    /// Whether the call has changed nothing that another process can see. What is not known to be
    /// so is taken to have.
    pub fn only_asks(&self) -> bool {
        const TURN: i64 = 2002;
        const PEEK: i64 = 1000;
        const ASKS: [i64; 41] = [
            libc::SYS_read,
            libc::SYS_pread64,
            libc::SYS_readv,
            libc::SYS_preadv,
            libc::SYS_recvfrom,
            libc::SYS_recvfrom + PEEK,
            libc::SYS_recvmsg,
            libc::SYS_recvmsg + PEEK,
            libc::SYS_getpeername,
            libc::SYS_getsockname,
            libc::SYS_getsockopt,
            libc::SYS_epoll_wait,
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_ctl,
            libc::SYS_poll,
            libc::SYS_ppoll,
            libc::SYS_select,
            libc::SYS_pselect6,
            libc::SYS_fstat,
            libc::SYS_newfstatat,
            libc::SYS_stat,
            libc::SYS_lstat,
            libc::SYS_statx,
            libc::SYS_access,
            libc::SYS_lseek,
            libc::SYS_clock_gettime,
            libc::SYS_gettimeofday,
            libc::SYS_time,
            libc::SYS_nanosleep,
            libc::SYS_getrusage,
            libc::SYS_getrandom,
            libc::SYS_getitimer,
            libc::SYS_timerfd_gettime,
            libc::SYS_readlinkat,
            libc::SYS_statfs,
            libc::SYS_fstatfs,
            libc::SYS_sysinfo,
            libc::SYS_times,
            libc::SYS_fdatasync,
            libc::SYS_fsync,
            TURN,
        ];
        self.hash == 0 && ASKS.contains(&i64::from(self.nr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_grows_to_twice_what_was_used_at_once() {
        const MIB: u64 = 1 << 20;
        assert_eq!(grown(16 * MIB, 64 * MIB, 8 * MIB), 16 * MIB);
        assert_eq!(grown(16 * MIB, 64 * MIB, 8 * MIB + 1), 32 * MIB);
        assert_eq!(grown(16 * MIB, 64 * MIB, u64::MAX), 64 * MIB);
        assert_eq!(grown(0, 0, u64::MAX), 0, "without a log");
    }
}
