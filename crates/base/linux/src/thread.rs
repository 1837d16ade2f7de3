//! What the kernel says of a thread in `/proc`: counters, the call it sleeps in. Parsers of text
//! only; `status` has a file of its own.
//!
//! Each answers nothing for text that is not what the kernel writes, and never fails on any bytes.
//! Blocks never.

/// What the scheduler counted for a thread: `schedstat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sched {
    /// CPU time, ns.
    pub run: u64,
    /// Time it could have run but got no CPU, ns.
    pub wait: u64,
    /// Times it was put on a CPU.
    pub slices: u64,
}

/// Parses `schedstat`.
pub fn sched(bytes: &[u8]) -> Option<Sched> {
    let mut f = bytes.split(|b| b.is_ascii_whitespace()).map(number);
    Some(Sched { run: f.next()??, wait: f.next()??, slices: f.next()?? })
}

/// A system call that a thread sleeps in: `syscall`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Its number.
    pub nr: i64,
    /// Its arguments; what stands behind the last one is of no meaning.
    pub args: [u64; 6],
    /// Stack pointer.
    pub sp: u64,
    /// Where the program continues.
    pub pc: u64,
}

/// Parses `syscall`; nothing if the thread runs, or sleeps outside of a call.
pub fn call(line: &str) -> Option<Call> {
    let mut f = line.split_whitespace();
    let nr: i64 = f.next()?.parse().ok().filter(|&n| n >= 0)?;
    let mut hex = || u64::from_str_radix(f.next()?.strip_prefix("0x")?, 16).ok();
    let mut args = [0; 6];
    for a in &mut args {
        *a = hex()?;
    }
    Some(Call { nr, args, sp: hex()?, pc: hex()? })
}

/// Bytes and calls of `io`: read, written, reads, writes.
pub fn io(text: &str) -> Option<(u64, u64, u64, u64)> {
    let mut f = text.lines().filter_map(|l| l.split_once(": ")?.1.trim().parse().ok());
    Some((f.next()?, f.next()?, f.next()?, f.next()?))
}

/// Where the code of a process begins (field 26 of `stat`): exec puts it elsewhere. 0 if it may not
/// be seen.
pub fn start_of_code(stat: &str) -> u64 {
    let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    rest.split(' ').nth(23).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Whether a thread is on its way out, from its `stat`: it runs no code of its program any more.
pub fn is_exiting(stat: &str) -> bool {
    const PF_EXITING: u64 = 4;
    let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    rest.split(' ').nth(6).and_then(|n| n.parse().ok()).is_some_and(|flags: u64| flags & PF_EXITING != 0)
}

/// The descriptors that an epoll set watches, from its `fdinfo`, with the events each is watched
/// for.
pub fn epoll_set(fdinfo: &str) -> Vec<(i32, u32)> {
    let one = |line: &str| {
        let mut f = line.strip_prefix("tfd:")?.split_whitespace();
        let fd = f.next()?.parse().ok()?;
        let events = f.nth(1)?;
        Some((fd, u32::from_str_radix(events, 16).ok()?))
    };
    fdinfo.lines().filter_map(one).collect()
}

/// The access mode of a descriptor from its `fdinfo`: 0 read, 1 write, 2 both.
pub fn access(fdinfo: &str) -> u8 {
    let flags = fdinfo.lines().find_map(|l| l.strip_prefix("flags:"));
    flags.and_then(|f| u32::from_str_radix(f.trim(), 8).ok()).map_or(0, |f| (f & 3) as u8)
}

/// Descriptors that are on their way over a unix socket, from its `fdinfo`.
pub fn descriptors_on_their_way(fdinfo: &str) -> u32 {
    fdinfo.lines().find_map(|l| l.strip_prefix("scm_fds:")?.trim().parse().ok()).unwrap_or(0)
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_lines_and_rubbish() {
        assert_eq!(sched(b"12 3 4\n"), Some(Sched { run: 12, wait: 3, slices: 4 }));
        assert_eq!((sched(b""), sched(b"1 2"), sched(b"a b c")), (None, None, None));
        assert_eq!((call("running\n"), call("-1 0x7ffd 0x7f00\n")), (None, None));
        let c = call("232 0x3 0x10 0x20 0xffffffffffffffff 0x0 0x8 0x7ffd 0x7f00\n").expect("a call");
        assert_eq!((c.nr, c.args[0], c.sp, c.pc), (232, 3, 0x7ffd, 0x7f00));
        assert_eq!(io("rchar: 5\nwchar: 6\nsyscr: 7\nsyscw: 8\n"), Some((5, 6, 7, 8)));
        assert_eq!(epoll_set("pos:\t0\ntfd:        7 events:       19 data: 7\ntfd: x\n"), [(7, 0x19)]);
        assert_eq!((access("pos:\t0\nflags:\t0100001\n"), access("rubbish")), (1, 0));
        assert_eq!(descriptors_on_their_way("flags:\t02\nscm_fds: 3\n"), 3);
    }

    #[test]
    fn own_files_parse() {
        let text = |file: &str| crate::procfs::text(format!("/proc/thread-self/{file}")).expect("a file");
        assert!(sched(text("schedstat").as_bytes()).is_some_and(|s| s.slices > 0));
        assert!(start_of_code(&text("stat")) > 0);
        assert!(!is_exiting(&text("stat")) && is_exiting("7 (a) b) S 1 7 7 0 -1 4194628 0\n") && !is_exiting(""));
    }
}
